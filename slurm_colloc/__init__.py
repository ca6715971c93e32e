"""slurm_colloc: share a GPU between jobs inside one ordinary Slurm allocation."""

__version__ = "0.1.0"
