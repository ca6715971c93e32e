"""The files of one pack and its members; no figure is computed here."""
