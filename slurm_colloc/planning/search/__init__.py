"""Dividing jobs into packs: exact for few, local for many."""
