"""Simulated NVIDIA GPUs: an NVML library, MPS programs, and a program that trains nothing."""
