"""What packs must not exceed, and which of it keeps a job alone; no prices."""
