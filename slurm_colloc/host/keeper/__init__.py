"""The process that starts or watches an MPS daemon for a pack, and talking to it; who: the user."""
