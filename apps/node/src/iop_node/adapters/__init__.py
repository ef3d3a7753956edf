"""What executes a run: one module per kind of adapter, and the table that names them."""
