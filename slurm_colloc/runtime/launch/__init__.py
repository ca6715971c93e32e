"""Starting a member and ending it: command line, environment, processes, signals."""
