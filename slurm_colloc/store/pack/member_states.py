"""Attempts of a pack, and the states of its members.

Each start of a pack has an attempt number. A member's state is written to a file of that
attempt (`state.2.json`) and the newest attempt's file counts, so that a runner which was taken
for dead and still writes can never overwrite what its successor says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Container
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.member import FINAL_STATES, ExitCode, MemberState
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.recorded_words import is_known
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    read_bytes,
    write_atomic,
    write_json,
)
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.record_files import read_record


@dataclasses.dataclass(frozen=True)
class GpuUse:
    """How a member was put on the GPU at its last start.

    Attributes:
        mode: The sharing mode that really held: `mps`, `mig`, `timeslice` or `exclusive`.
        thread_percentage: Its MPS thread limit; None for none.
        gpu_memory_limit_mb: Its limit on GPU memory; None for none.
        uuids: The GPUs, or its MIG instance; empty where they could not be read.
        is_mps_client: The MPS daemon lists one of its processes; False where one of its processes
            uses the GPU without MPS; None where it has not been seen on the GPU.
        instance: The profile of its MIG instance, `3g.40gb`; empty without one.
        gpu_instance: NVML's id of its GPU instance; None without one.
        gpu: The GPU of that by UUID; empty without one.
        instance_sms: Streaming multiprocessors of its instance; None without one.
        gpu_sms: Those of the whole GPU; None where unknown.
        inside: How it shares its instance with other members: `mps`; empty where it does not.
    """

    mode: str
    thread_percentage: int | None = None
    gpu_memory_limit_mb: int | None = None
    is_mps_client: bool | None = None
    uuids: tuple[str, ...] = ()
    instance: str = ""
    gpu_instance: int | None = None
    gpu: str = ""
    instance_sms: int | None = None
    gpu_sms: int | None = None
    inside: str = ""

    @property
    def is_under_mps(self) -> bool:
        """An MPS server was to serve it: the GPU's, or its instance's."""
        return SharingMode.MPS.value in (self.mode, self.inside)


@dataclasses.dataclass(frozen=True)
class Retries:
    """What restarts have taught about a member.

    Attributes:
        faults: How often it was restarted after a fault that may have been another member's.
        out_of_gpu_memory: How often it was restarted because it was out of GPU memory.
        apart: It does not run under MPS any more: there, a fault would hit its neighbours.
        alone: It runs with the GPU to itself.
        gpu_memory_mb: What is reserved for it from now on, without a limit, because it was out of
            GPU memory with less; 0 for nothing.
        suspected: A fault has hit it that may have been its own.
        failures: How often it was restarted because it failed by itself (`--retries`).
    """

    faults: int = 0
    out_of_gpu_memory: int = 0
    apart: bool = False
    alone: bool = False
    gpu_memory_mb: int = 0
    suspected: bool = False
    failures: int = 0


@dataclasses.dataclass(frozen=True)
class StateRecord:
    """A member's state as its runner wrote it.

    Attributes:
        state: The state.
        attempt: The pack's attempt that wrote it.
        starts: How often the member was started, over all attempts.
        started_at: Seconds since the epoch; None before the start.
        ended_at: Seconds since the epoch; None before the end.
        exit_code: How it ended; None before the end.
        node: Node name; None before the start.
        gpus: UUIDs, or Slurm's indices where no UUID could be read.
        cpus: CPU numbers it is bound to; empty where it is not bound.
        step: Slurm step id, `4711.2`; None where it runs as a plain process.
        wall_limit_s: Its wall-clock limit; None for none.
        reason: Why it is in this state, for people.
        gpu: How it was put on the GPU; None before its first start, and where it has no GPU.
        cause: The class of its end (model.end_causes.EndCause); empty before that, and where its
            state
            and exit code say all.
        evidence: What that class rests on, a line each.
        retries: What restarts have taught.
        at_door: It was started to load its program, and may not use the GPU yet; says something of
            running members only.
    """

    state: MemberState
    attempt: int
    starts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: ExitCode | None = None
    node: str | None = None
    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()
    step: str | None = None
    wall_limit_s: int | None = None
    reason: str = ""
    gpu: GpuUse | None = None
    cause: str = ""
    evidence: tuple[str, ...] = ()
    retries: Retries = Retries()
    at_door: bool = False

    @property
    def is_final(self) -> bool:
        """It will not run again; a state that only a newer csub knows tells by its end."""
        if self.state in FINAL_STATES:
            return True
        return self.ended_at is not None and not is_known(self.state)


def read_attempt(pack: Path | str) -> int:
    """The newest attempt of a pack, 0 before its first start."""
    try:
        return int(read_bytes(f"{pack}/attempt"))
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise StateError(f"{pack}/attempt is damaged", hint="it must hold one number") from error


def begin_attempt(pack: Path | str, least: int) -> int:
    """Start a new attempt and fence all older ones; returns its number.

    Args:
        pack: The pack's directory.
        least: Slurm's restart count plus 1; the number is at least that.
    """
    attempt = max(least, read_attempt(pack) + 1)
    write_atomic(f"{pack}/attempt", f"{attempt}\n".encode())
    return attempt


def write_state(pack: Path | str, number: int, record: StateRecord) -> None:
    """Write a member's state under its attempt."""
    value = dataclasses.asdict(record)
    value["exit_code"] = None if record.exit_code is None else str(record.exit_code)
    write_json(f"{pack}/members/{format_number(number)}/state.{record.attempt}.json", value)


def read_state(
    pack: Path | str, number: int, attempt: int, names: Container[str] | None = None
) -> StateRecord | None:
    """Read a member's newest state, None if no runner wrote one.

    Args:
        pack: The pack's directory.
        number: The member's number.
        attempt: The newest attempt of the pack, from `read_attempt`.
        names: The files in the member's directory; None where they were not looked at.
    """
    for candidate in range(attempt, 0, -1):
        if names is not None and f"state.{candidate}.json" not in names:
            continue
        path = f"{pack}/members/{format_number(number)}/state.{candidate}.json"
        if (record := read_record(path, StateRecord)) is not None:
            return record
    return None


PUT_ASIDE = "env.again"
"""The environment of a member that may be tried again (`csub retry`)."""

DONE_WITH = frozenset({MemberState.COMPLETED, MemberState.CANCELLED})
"""The ends after which a member is not tried again as it was."""


def put_environment_aside(pack: Path | str, number: int) -> None:
    """Keep a member's captured environment for another try; nothing reads it but that.

    Raises:
        StateError: It cannot be moved.
    """
    path = f"{pack}/members/{format_number(number)}/env"
    with explain_os_errors("rename", path), contextlib.suppress(FileNotFoundError):
        os.rename(path, f"{path.removesuffix('env')}{PUT_ASIDE}")


def remove_environment(pack: Path | str, number: int) -> None:
    """Remove a member's captured environment: it may hold secrets.

    Raises:
        StateError: It cannot be removed.
    """
    path = f"{pack}/members/{format_number(number)}/env"
    with explain_os_errors("remove", path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)
