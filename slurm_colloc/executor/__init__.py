"""Functions and scripts submitted from Python, and the program that runs a call in its member."""
