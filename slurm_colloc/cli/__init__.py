"""The csub command: thin commands over submission and report."""
