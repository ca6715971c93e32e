"""How many members run at once: what is measured by pausing them, and the probe window."""
