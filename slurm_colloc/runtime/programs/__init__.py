"""Programs that are started by path or with -m, and imported by no part of the runner."""
