"""Choosing what shares a GPU, and how; pure functions, no effects."""
