"""What runs as the user in the allocation: the runner and its members; standard library only."""
