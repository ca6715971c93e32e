"""Shell completion: what may follow, and the scripts for bash, zsh and fish that ask for it."""
