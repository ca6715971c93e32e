"""submitit's names on csub's Executor: `from slurm_colloc import submitit` in its programs.

What differs is in docs/differences.md.
"""

from slurm_colloc.submitit import auto_executor as helpers
from slurm_colloc.submitit.auto_executor import AutoExecutor, JobEnvironment, SubmititJob

Job = SubmititJob
SlurmExecutor = AutoExecutor

__all__ = ["AutoExecutor", "Job", "JobEnvironment", "SlurmExecutor", "helpers"]
