"""A seeded simulation of one Edge and its Nodes: the production cores, a virtual clock, a network that misbehaves."""
