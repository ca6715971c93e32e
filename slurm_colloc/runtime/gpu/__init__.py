"""How the members share the GPU: the mode that holds, the MPS daemon and its clients."""
