"""slurm_colloc: share a GPU between jobs inside one ordinary Slurm allocation.

`from slurm_colloc import Executor, Job, submit` is loaded where it is asked for: csub has to stay
quick, and nodes run parts of this package. `__init__.pyi` tells type checkers of these names.
"""

__version__ = "0.1.0"

__all__ = ["Executor", "Job", "MemberFailed", "__version__", "shared", "submit"]

_PLACES = {
    "Executor": "executor.function_executor",
    "Job": "executor.function_executor",
    "MemberFailed": "errors",
    "shared": "loading.shared_loader",
    "submit": "executor.function_executor",
}


def __getattr__(name):
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
