"""Which power limits a job's GPUs get, and setting them; who: root.

The wish is the user's: it decides nothing but a number between the site's lowest limit and the one
that the GPU has. A limit is never raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.errors import NodeError
from slurm_colloc.host.nvml.nvml_query import NVML_S, Gpu, NvmlAnswer, start_question

_NEAR_MW = 1000
"""A card may round to its own steps."""


def is_limit(gpu: Gpu | None, limit_mw: int) -> bool:
    """Whether a GPU has a power limit, as nearly as cards take it; pure."""
    known = None if gpu is None else gpu.power_limit_mw
    return known is not None and abs(known - limit_mw) < _NEAR_MW


def choose_limits(
    answer: NvmlAnswer, uuids: Sequence[str], wish_w: int, *, least_w: int, divides: bool
) -> dict[str, tuple[int, int]]:
    """The limits from before and to be set, in mW by UUID, of the GPUs that change; pure.

    Args:
        answer: What NVML said of the GPUs before anything of the job ran.
        uuids: The job's GPUs.
        wish_w: What the job asks for.
        least_w: The lowest limit that the site allows.
        divides: The GPUs are divided by MIG for this very job.

    Raises:
        NodeError: One of them may not be this job's alone, or would not keep its limit.
    """
    found = {}
    for uuid in uuids:
        gpu = answer.find(uuid)
        if (
            gpu is None
            or gpu.power_limit_mw is None
            or gpu.power_limit_least_mw is None
            or gpu.processes is None
        ):
            raise NodeError(f"NVML does not tell power limits and processes of {uuid}")
        if gpu.processes:
            raise NodeError(f"process {gpu.processes[0].pid} is already on {uuid}")
        if gpu.mig_enabled and not divides:
            raise NodeError(f"MIG is on on {uuid}: other jobs may have parts of it")
        if not gpu.is_persistent:
            raise NodeError(f"without persistence mode the driver would forget it on {uuid}")
        limit = max(1000 * max(wish_w, least_w), gpu.power_limit_least_mw)
        if limit < gpu.power_limit_mw:
            found[uuid] = gpu.power_limit_mw, limit
    return found


def set_limits(
    driver: str, node: str, limits: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, float], list[str]]:
    """Set limits that are written down; what NVML takes otherwise is set back at once.

    Args:
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        node: Slurm's name of this node.
        limits: Those from before and to be set, in mW by UUID.

    Returns:
        The limits that hold, in watts by UUID, and what is to be told.
    """
    wanted = {uuid: limit for uuid, (_, limit) in limits.items()}
    after = _set(driver, node, wanted)
    held = {uuid: mw / 1000 for uuid, mw in wanted.items() if is_limit(after.find(uuid), mw)}
    failed = {uuid: before for uuid, (before, _) in limits.items() if uuid not in held}
    if failed:
        _set(driver, node, failed)
    why = after.problem or "NVML did not take it"
    return held, [f"no power limit was set on {uuid}: {why}" for uuid in failed]


def _set(driver: str, node: str, limits: Mapping[str, int]) -> NvmlAnswer:
    question = start_question(driver, node, uuids=tuple(limits), power_limits=limits)
    return question.ask(NVML_S)
