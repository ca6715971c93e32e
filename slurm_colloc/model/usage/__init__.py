"""What jobs were seen to use, and how it adds up to usage profiles; values only."""
