"""Pausing members: their processes are stopped and go on; nothing else is done to them."""
