"""Measures what a pack's GPUs and members do; user side on the node, one process per node."""
