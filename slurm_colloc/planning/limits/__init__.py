"""What packs must not exceed, and which jobs must not share one; no prices."""
