"""Sums over many packs, and one submission against another; a pack's own figures are elsewhere."""
