"""MIG as values: a GPU's profiles, the words of a layout, and where its instances lie."""
