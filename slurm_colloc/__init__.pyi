from slurm_colloc.errors import MemberFailed as MemberFailed
from slurm_colloc.executor.function_executor import Executor as Executor
from slurm_colloc.executor.function_executor import Job as Job
from slurm_colloc.executor.function_executor import submit as submit
from slurm_colloc.loading.shared_loader import shared as shared

__version__: str
__all__ = ["Executor", "Job", "MemberFailed", "__version__", "shared", "submit"]
