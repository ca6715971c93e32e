"""The login side: from a command line and a script to a submitted pack."""
