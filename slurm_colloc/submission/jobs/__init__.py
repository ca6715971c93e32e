"""From a command line and its scripts to jobs."""
