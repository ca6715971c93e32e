"""How many members run at once: the ramp's rules and the probe window; values and arithmetic."""
