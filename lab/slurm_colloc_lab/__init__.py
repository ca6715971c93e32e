"""What slurm_colloc is tried and developed with; no node needs it.

csub finds its commands by the entry points that lab/pyproject.toml declares.
"""
