"""`csub admin`: what an administrator does on a node; standard library only."""
