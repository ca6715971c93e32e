"""Counts steps of torch's optimizers, and steps that AMP scalers skip.

An optimizer's step is counted when its outermost call ends: a subclass whose step calls
`super().step()` and a wrapper that steps another optimizer count once. What torch.compile makes
of a step is left as it is; see `_is_compiled_into_a_graph`.
"""

from __future__ import annotations

import functools
import sys
from sys import _getframe
from threading import get_ident
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from .tally import tally

if TYPE_CHECKING:
    from collections.abc import Callable


class _StepState:
    """Where a thread is: how deep in steps, and whether a scaler asked for them."""

    __slots__ = ("depth", "scaled", "visited")

    def __init__(self) -> None:
        self.depth = 0
        self.scaled = False
        self.visited = False


# By thread; a threading.local would take three times as long.
_nests: dict[int, _StepState] = {}
_WRAPPED = "_slurm_colloc_counts"


def _find_nest() -> _StepState:
    thread = get_ident()
    nest = _nests.get(thread)
    if nest is None:
        nest = _nests[thread] = _StepState()
    return nest


def _enter_step() -> None:
    """A step begins, called from the frame above that of `_before`."""
    nest = _nests.get(get_ident()) or _find_nest()
    if nest.depth and not _is_inside_a_step(_getframe(2)):
        # The step that seems to be around this one has been left by an exception.
        nest.depth = 0
    nest.depth += 1


def _leave_step(optimizer: Any) -> None:
    """A step has ended; the outermost one counts."""
    nest = _nests.get(get_ident()) or _find_nest()
    if nest.depth > 1:
        nest.depth -= 1
        return
    nest.depth = 0
    nest.visited = True
    skipped = nest.scaled and _was_skipped_inside(optimizer)
    tally.count_step(id(optimizer), not skipped)


def _is_inside_a_step(caller: FrameType) -> bool:
    above = caller.f_back
    while above is not None:
        if above.f_code.co_filename in _OURS:
            return True
        above = above.f_back
    return False


def _was_skipped_inside(optimizer: Any) -> bool:
    """Whether a fused optimizer, which is always called, has left its parameters alone.

    It looks at `found_inf` on the GPU. Reading it there would make the host wait for the GPU at
    every step, so it is read only where it lies in host_memory.
    """
    found = getattr(optimizer, "found_inf", None)
    if found is None:
        return False
    try:
        if found.device.type == "cpu":
            return bool(found.item())
    except Exception:
        # Not a tensor as we know it.
        pass
    tally.note_unknown_skips()
    return False


def _before(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if _is_traced() and _is_compiled_into_a_graph():
        return
    _enter_step()


def _after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if _is_traced() and _is_compiled_into_a_graph():
        return
    _leave_step(optimizer)


def _is_traced() -> bool:
    """Replaced by torch's own where there is one; true only while dynamo reads our code."""
    return False


def _is_compiled_into_a_graph() -> bool:
    """Whether dynamo is compiling a step as part of a larger graph; asked while it compiles.

    torch's own optimizers break the graph around a step, so the code that calls our hooks is
    called by the interpreter, and counting there costs no break. An optimizer without that break
    becomes part of the user's graph. Counting would split it (and fail with fullgraph=True), so
    its steps are not counted.
    """
    try:
        convert = sys.modules["torch._dynamo.symbolic_convert"]
        outermost = convert.InstructionTranslator.current_tx().f_code.co_filename
    except Exception:
        # A dynamo that we do not know.
        return True
    return outermost not in _OURS


# Files with the code that calls the hooks.
_OURS = {__file__}
# torch.compile calls it while compiling and puts its answer into what it compiles.
_is_compiled_into_a_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]
_function: Any
for _function in (_enter_step, _leave_step):
    # torch.compile calls them instead of compiling them.
    _function._torchdynamo_disable = True


def hook_optimizers(module: ModuleType) -> None:
    """Count from now on; `module` is torch.optim.optimizer, just imported."""
    _OURS.add(str(module.__file__))
    keep_dynamo_out(_enter_step, _leave_step, _before, _after)
    if hasattr(module, "register_optimizer_step_post_hook"):
        # torch 2.0 and later.
        module.register_optimizer_step_pre_hook(_before)
        module.register_optimizer_step_post_hook(_after)
        return
    original = module.Optimizer._hook_for_profile

    @functools.wraps(original)
    def hook(self: Any) -> None:
        original(self)
        _wrap_step(type(self))

    module.Optimizer._hook_for_profile = hook


def hook_compiler(module: ModuleType) -> None:
    """Learn from torch.compile when it reads our code; `module` is torch.compiler."""
    global _is_traced  # noqa: PLW0603 - it is torch's to answer
    _is_traced = getattr(module, "is_dynamo_compiling", _is_traced)


def keep_dynamo_out(*functions: Any) -> None:
    """Tell torch.compile to run our functions as they are."""
    codes = [function.__code__ for function in functions]
    try:
        frames = sys.modules["torch._C"]._dynamo.eval_frame
        if hasattr(frames, "skip_code"):
            for code in codes:
                frames.skip_code(code)
        else:
            skip = frames._FrameAction.SKIP
            for code in codes:
                frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    except Exception:
        # No dynamo (before 2.0), or one that we do not know.
        pass


def _wrap_step(optimizer: Any) -> None:
    """Count in the step of an optimizer's class, where torch calls no hooks."""
    original = optimizer.step
    if getattr(original, _WRAPPED, False):
        return

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        _before(self, args, kwargs)
        value = original(self, *args, **kwargs)
        _after(self, args, kwargs)
        return value

    setattr(step, _WRAPPED, True)
    optimizer.step = step


def hook_dynamo(module: ModuleType) -> None:
    """Keep counting where torch.compile takes torch's hooks away.

    From 2.0 to about 2.5 the first torch.compile, of whatever, unwraps the steps of torch's own
    optimizers, and the hooks are called no more. `module` is torch._dynamo.eval_frame.
    """
    patcher = module.TorchPatcher
    original = patcher.patch

    @functools.wraps(original)
    def patch(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        try:
            restore_counting()
        except Exception:
            # Of a torch that is built differently.
            pass
        return value

    patcher.patch = staticmethod(patch)


def restore_counting() -> None:
    """Count again in optimizers that say they are hooked, but are not wrapped by torch."""
    base = sys.modules["torch.optim.optimizer"].Optimizer
    wrapper = {c for c in base.profile_hook_step.__code__.co_consts if hasattr(c, "co_name")}
    waiting = [base]
    while waiting:
        optimizer = waiting.pop()
        waiting.extend(optimizer.__subclasses__())
        step = optimizer.__dict__.get("step")
        if getattr(step, "hooked", False) and getattr(step, "__code__", None) not in wrapper:
            _wrap_step(optimizer)


def hook_scaler(module: ModuleType) -> None:
    """Tell skipped steps; `module` has just defined a GradScaler."""
    scaler = module.GradScaler
    original: Callable[..., Any] | None = scaler.__dict__.get("step")
    if original is None or getattr(original, _WRAPPED, False):
        # The class of torch.cuda.amp inherits it from that of torch.amp.
        return

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return original(self, optimizer, *args, **kwargs)
        nest = _find_nest()
        nest.scaled, nest.visited = True, False
        try:
            value = original(self, optimizer, *args, **kwargs)
        finally:
            nest.scaled = False
        if not nest.visited and _is_counted(optimizer):
            tally.count_step(id(optimizer), stepped=False)
        return value

    setattr(step, _WRAPPED, True)
    scaler.step = step


def _is_counted(optimizer: Any) -> bool:
    return bool(getattr(getattr(type(optimizer), "step", None), "hooked", False))
