"""What slurm_colloc is tried and developed with; no node needs it."""

__version__ = "0.0.0"
