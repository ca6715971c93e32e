"""The simulated NVML library: built, installed, and the state that it shows."""
