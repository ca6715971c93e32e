"""The tables of squeue and sacct, asked for in a way in which single cells can be replaced."""
