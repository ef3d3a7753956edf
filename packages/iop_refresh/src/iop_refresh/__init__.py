"""Compare two Edge configs: what changed, what may be applied while serving, what waits for a restart."""
