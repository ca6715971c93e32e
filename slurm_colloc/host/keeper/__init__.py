"""The process that is the parent of a pack's own MPS daemon, and talking to it."""
