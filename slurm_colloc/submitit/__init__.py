"""submitit's names on csub's Executor: `from slurm_colloc import submitit` in its programs.

What differs is in docs/differences.md.
"""

from slurm_colloc.submitit import submitit_helpers as helpers
from slurm_colloc.submitit.auto_executor import AutoExecutor, SubmititJob
from slurm_colloc.submitit.job_environment import JobEnvironment

Job = SubmititJob
SlurmExecutor = AutoExecutor

__all__ = ["AutoExecutor", "Job", "JobEnvironment", "SlurmExecutor", "helpers"]
