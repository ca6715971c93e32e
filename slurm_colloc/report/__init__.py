"""Reading: what the packs are and were, for people and for programs."""
