"""One DataLoader for the members of a pack that load the same; runs in the members' own Python.

Standard library and torch only, Python 3.8 on.
"""
