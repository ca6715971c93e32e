"""The simulated MPS programs, on the drivers' own socket protocol."""
