"""State as files on a path that login and compute nodes share; no server."""
