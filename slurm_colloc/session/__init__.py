"""One call of csub or of its Python interface: what it sees, places, waits for and ends."""
