"""Dividing a GPU by MIG and putting it back, one NVML call a step; who: root's hooks."""
