"""On which GPUs MIG was on when a job's prolog divided them, as files that outlast a reboot.

Also: turning MIG on again after a reboot, on GPUs where it was on while a job had them; who: root.

    STATE/mig_on/UUID    the boot in which that was, from the prolog to the end of undoing

From Hopper on a reboot turns MIG off, and /run with the checkpoints is empty then, too. Who: root.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from slurm_colloc.errors import NodeError
from slurm_colloc.host.mig.cut_gpu import read_one, turn_on
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.mig.plan_cut import MigProblem, find_refusal
from slurm_colloc.host.nvml.nvml_query import NvmlAnswer
from slurm_colloc.host.system.directories import open_own_directory, open_trusted, write_json
from slurm_colloc.host.system.node_processes import read_boot_id

_DIRECTORY = "mig_on"
_UUID = re.compile(r"GPU-[0-9A-Fa-f-]{1,64}")
_LONGEST = 4096


def keep_mode(state: str, uuid: str, boot: str) -> None:
    """Write down that MIG is on on a GPU.

    Args:
        state: Root's directory for what outlasts a reboot.
        uuid: The GPU.
        boot: This boot.

    Raises:
        NodeError: The directory is not root's alone, or this is not a GPU's UUID.
        OSError: It cannot be written.
    """
    if not _UUID.fullmatch(uuid):
        raise NodeError(f"{uuid!r} is not a GPU's UUID")
    directory = _open(state, makes=True)
    try:
        write_json(directory, uuid, {"schema": 1, "boot": boot}, 0o600)
        # A node that loses its power in the middle of a job is what this is for.
        written = os.open(uuid, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fsync(written)
            os.fsync(directory)
        finally:
            os.close(written)
    finally:
        os.close(directory)


def forget_mode(state: str, uuid: str) -> None:
    """Take away what `keep_mode` has written, where it is there.

    Raises:
        NodeError: The directory is not root's alone.
        OSError: It cannot be taken away.
    """
    try:
        directory = _open(state, makes=False)
    except FileNotFoundError:
        return
    try:
        # And what a prolog that was killed had begun to write.
        for name in (uuid, f".{uuid}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)


def list_kept_modes(state: str) -> dict[str, str]:
    """The GPUs that are written down, and in which boot; that one is empty where it is not known.

    Raises:
        NodeError: The directory is not root's alone.
        OSError: It cannot be read.
    """
    try:
        directory = _open(state, makes=False)
    except FileNotFoundError:
        return {}
    try:
        names = sorted(filter(_UUID.fullmatch, os.listdir(directory)))
        return {name: _read_boot(directory, name) for name in names}
    finally:
        os.close(directory)


def _read_boot(directory: int, name: str) -> str:
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=directory), "rb") as file:
            return str(json.loads(file.read(_LONGEST))["boot"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _open(state: str, *, makes: bool) -> int:
    """The directory of these files, open; what is there already keeps its mode."""
    parent, name = os.path.split(state.rstrip("/"))
    above = open_trusted(os.path.realpath(parent))
    try:
        outer = _open_or_make(above, name, 0o755, state, makes=makes)
    finally:
        os.close(above)
    try:
        return _open_or_make(outer, _DIRECTORY, 0o700, f"{state}/{_DIRECTORY}", makes=makes)
    finally:
        os.close(outer)


def _open_or_make(parent: int, name: str, mode: int, path: str, *, makes: bool) -> int:
    try:
        return open_own_directory(parent, name, mode, path, makes=False)
    except FileNotFoundError:
        if not makes:
            raise
    return open_own_directory(parent, name, mode, path, makes=True)


# ----
# Turning MIG on again after a reboot, on GPUs where it was on while a job had them; who: root.
#
# From Hopper on the mode is lost with the driver. Whether it is on or off makes no GPU unfit: with
# MIG off a job finds the whole GPU. Only a call that was made and not answered leaves that open.


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
    lock: str,
    driver: str,
    node: str,
    ends_at: float,
) -> tuple[ModeAfterBoot, ...]:
    """Turn MIG on again where it was on, or say why it stays off.

    What could not be seen or done is kept for the next hook; what the site does not allow is told
    once.

    Args:
        answer: What NVML says of them.
        lost: UUIDs of GPUs that no job has, or only the one that this is done for.
        state: Root's directory for what outlasts a reboot.
        may_switch: The site's policy lets MIG be turned on.
        lock: As for a MigSession, as are driver, node and ends_at.
        driver: Likewise.
        node: Likewise.
        ends_at: Likewise.
    """
    found = []
    for uuid in lost:
        gpu = answer.find(uuid)
        if gpu is None or gpu.mig_enabled is None or gpu.minor_number is None:
            why = answer.problem or "NVML does not show it whole"
            found.append(ModeAfterBoot(uuid, f"whether MIG is on on {uuid} is not known: {why}"))
            continue
        if not gpu.mig_enabled and may_switch:
            minors = {uuid: gpu.minor_number}
            session = partial(MigSession, lock, minors, driver=driver, node=node, ends_at=ends_at)
            outcome = _turn_on_again(uuid, session)
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
