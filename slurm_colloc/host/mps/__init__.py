"""A private MPS daemon: started, asked, read and ended; whose it is, its caller decides."""
