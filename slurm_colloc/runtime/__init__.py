"""What runs as the user inside the allocation: the runner and its members; standard library only."""
