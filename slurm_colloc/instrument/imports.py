"""Waits for the program to import torch or a tracker; imports none of it itself.

This is read at every start of Python under a pack, so it stays small. What counts, and what waits
before the first use of a GPU, is loaded when the parts of torch are that it changes.
"""

from __future__ import annotations

import os
import sys

# As the type checker knows it; to import typing would take as long as all else that Python does
# at its start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

# What is watched for: the module of ours and its function that is given it.
WATCHED: dict[str, tuple[str, str]] = {
    "torch.cuda": ("door", "hook_cuda"),
    "torch.compiler": ("torch_optimizer", "hook_compiler"),
    "torch.optim.optimizer": ("torch_optimizer", "hook_optimizers"),
    "torch.amp.grad_scaler": ("torch_optimizer", "hook_scaler"),
    "torch.cuda.amp.grad_scaler": ("torch_optimizer", "hook_scaler"),
    "torch._dynamo.eval_frame": ("torch_optimizer", "hook_dynamo"),
    "torch.utils.data.dataloader": ("torch_loader", "hook_loader"),
    "mlflow.tracking.fluent": ("results", "hook_mlflow"),
    "wandb.sdk.wandb_init": ("results", "hook_wandb"),
    "mlflow.tracking.client": ("results", "hook_mlflow_client"),
    "wandb.sdk.wandb_run": ("results", "hook_wandb_run"),
}

_API = "slurm_colloc"


class Watcher:
    """A finder that finds nothing itself; it adds to the loaders of the watched modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As importlib asks every finder; the answer is that of the finders after this one."""
        if name not in WATCHED:
            return None
        try:
            return self._find(name, path, target)
        except Exception:
            # Then the finders are asked again by importlib, as if we were not here.
            return None

    def _find(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is None:
                continue
            # On this one instance, so that the loader is of its own class for all who look.
            spec.loader.exec_module = _add_hook(name, spec.loader.exec_module)
            return spec
        return None


def _add_hook(name: str, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def execute_and_hook(module: ModuleType) -> None:
        execute(module)
        hook(name, module)

    return execute_and_hook


class Fallback:
    """Finds slurm_colloc itself where the program's Python does not have it.

    It comes last, so it is asked only then.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As importlib asks every finder."""
        del path, target
        if name != _API:
            return None
        try:
            from importlib.util import spec_from_file_location

            package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            return spec_from_file_location(
                name,
                os.path.join(package, "__init__.py"),
                submodule_search_locations=[package],
            )
        except Exception:
            return None


def hook(name: str, module: ModuleType | None) -> None:
    """Make a watched module count; leaves it as it is where that fails."""
    try:
        part, function = WATCHED[name]
        ours = __import__(f"{__package__}.{part}", fromlist=[function])
        getattr(ours, function)(module)
    except Exception:
        # A torch that is built differently; the program is not to notice.
        pass


def install() -> None:
    """Watch from now on."""
    sys.meta_path.insert(0, Watcher())
    sys.meta_path.append(Fallback())
    for name in WATCHED:
        module = sys.modules.get(name)
        # A .pth file may have imported it already.
        if module is not None:
            hook(name, module)
