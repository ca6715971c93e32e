"""Packs whose members have MIG instances: which layout, who sits where, how fast; pure."""
