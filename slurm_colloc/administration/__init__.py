"""What an administrator does with a site: hooks put in place, verified, shown and removed.

Only the standard library is needed, because it also runs from the nodes' own installation.
"""
