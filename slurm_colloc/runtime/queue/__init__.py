"""The members of a pack: which may start, in which place, how many at once, until when."""
