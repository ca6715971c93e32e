"""What is prepared and undone on a node: who: the user today, root's hooks later; where: the node.

Everything here is written for both: as root the caller adds whom to become and a base directory of
its own, nothing else changes. It uses the standard library only, and runs on Python 3.9 and later.
"""
