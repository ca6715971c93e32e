"""What the lines of queue, history and top are made of; the tables themselves are elsewhere."""
