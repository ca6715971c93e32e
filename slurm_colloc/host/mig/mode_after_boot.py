"""Turning MIG on again after a reboot, on GPUs where it was on while a job had them; who: root.

From Hopper on the mode is lost with the driver. Whether it is on or off makes no GPU unfit: with
MIG off a job finds the whole GPU. Only a call that was made and not answered leaves that open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mig.cut_gpu import read_one, turn_on
from slurm_colloc.host.mig.kept_modes import forget_mode, list_kept_modes
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.mig.mig_state import MigProblem
from slurm_colloc.host.mig.plan_cut import find_refusal
from slurm_colloc.host.nvml.nvml_answer import NvmlAnswer
from slurm_colloc.host.system.node_processes import read_boot_id


@dataclass(frozen=True)
class ModeAfterBoot:
    """What became of one GPU's mode.

    Args:
        gpu: Its UUID.
        told: In a sentence.
        is_on: MIG was turned on again.
        is_unsafe: It is not known in which mode the GPU is.
    """

    gpu: str
    told: str
    is_on: bool = False
    is_unsafe: bool = False


def list_lost_modes(state: str) -> tuple[str, ...]:
    """GPUs on which MIG was on in an earlier boot while a job had them divided.

    Args:
        state: Root's directory for what outlasts a reboot; empty where nothing is kept.

    Raises:
        NodeError: The directory is not root's alone.
        OSError: It cannot be read.
    """
    if not state:
        return ()
    this_boot = read_boot_id()
    return tuple(uuid for uuid, boot in list_kept_modes(state).items() if boot != this_boot)


def restore_modes(
    answer: NvmlAnswer,
    lost: Collection[str],
    *,
    state: str,
    may_switch: bool,
    open_session: Callable[[Mapping[str, int]], MigSession],
) -> tuple[ModeAfterBoot, ...]:
    """Turn MIG on again where it was on, or say why it stays off.

    What could not be seen or done is kept for the next hook; what the site does not allow is told
    once.

    Args:
        answer: What NVML says of them.
        lost: UUIDs of GPUs that no job has, or only the one that this is done for.
        state: Root's directory for what outlasts a reboot.
        may_switch: The site's policy lets MIG be turned on.
        open_session: Opens a session about GPUs, by UUID with their minor numbers.
    """
    found = []
    for uuid in lost:
        gpu = answer.find(uuid)
        if gpu is None or gpu.mig_enabled is None or gpu.minor_number is None:
            why = answer.problem or "NVML does not show it whole"
            found.append(ModeAfterBoot(uuid, f"whether MIG is on on {uuid} is not known: {why}"))
            continue
        if not gpu.mig_enabled and may_switch:
            outcome = _turn_on_again(uuid, partial(open_session, {uuid: gpu.minor_number}))
            found.append(outcome)
            if not outcome.is_on:
                continue
        elif not gpu.mig_enabled:
            told = (
                f"MIG was on on {uuid} before the reboot, and stays off: the site's policy does "
                f"not let it be turned on"
            )
            found.append(ModeAfterBoot(uuid, told))
        # Where that fails the next hook finds it as it should be, or tells it again.
        with contextlib.suppress(NodeError, OSError):
            forget_mode(state, uuid)
    return tuple(found)


def _turn_on_again(uuid: str, open_session: Callable[[], MigSession]) -> ModeAfterBoot:
    was_asked = False
    try:
        with open_session() as session:
            refusal = find_refusal(read_one(session, uuid), may_switch=True)
            if refusal:
                raise NodeError(refusal)
            was_asked = True
            turn_on(session, uuid)
    except NodeError as error:
        told = f"MIG was on on {uuid} before the reboot, and is off: {error.message}"
        is_unsafe = was_asked and isinstance(error, MigProblem)
        return ModeAfterBoot(uuid, told, is_unsafe=is_unsafe)
    return ModeAfterBoot(
        uuid, f"MIG was turned on again on {uuid}, as before the reboot", is_on=True
    )
