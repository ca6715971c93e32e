"""The MIG instances of a pack: taken from the node, given to members, changed while it runs."""
