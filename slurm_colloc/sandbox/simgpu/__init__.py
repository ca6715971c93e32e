"""Simulated NVIDIA GPUs: an NVML library, MPS programs and a program that behaves like a training.

docs/simulated-gpu.md names, for each rule of the simulation, the measured or documented fact that
it stands for.
"""
