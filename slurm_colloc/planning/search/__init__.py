"""Dividing jobs into packs: exact for few, local for many, and rules of others to compare."""
