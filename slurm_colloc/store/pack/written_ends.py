"""Ends that members' wrappers have written and no runner has noted: `run.A.S.exit`.

A runner may hang or be killed while its members run on. So whatever starts a member again, has its
pack requeued or takes it for lost reads this first: a member that has ended by itself has ended.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from slurm_colloc.model.end_causes import EndCause, choose_plain_cause
from slurm_colloc.model.exit_record import ExitRecord
from slurm_colloc.model.member import MemberState
from slurm_colloc.store.atomic_files import explain_os_errors, read_bytes
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.pack.member_states import (
    StateRecord,
    read_attempt,
    read_state,
    write_state,
)
from slurm_colloc.store.pack.pack_directory import list_members, read_spec

EVIDENCE = "its wrapper wrote how it ended when no runner was there to note it"

_RUN_FILE = re.compile(r"run\.(\d+)\.(\d+)\.(?:started|exit)", re.ASCII)


def find_written_end(
    pack: Path | str,
    number: int,
    record: StateRecord | None,
    names: Iterable[str] | None = None,
    *,
    starts_again: bool = False,
    killed_at: float | None = None,
) -> StateRecord | None:
    """How a member has ended by what its wrapper has written; None where that tells of no end.

    That a script ended after a TERM is no end: it may have saved what it had, to go on later.

    Args:
        pack: The pack's directory.
        number: The member's number.
        record: Its newest state; None where no runner wrote one.
        names: The files in the member's directory; None where they were not looked at.
        starts_again: Its pack starts again, and with it what may be tried again: such a member
            is PENDING, with what its failure has taught.
        killed_at: When its runner was killed: soon after that its MPS daemon ends as well.

    Raises:
        StateError: It cannot be read.
    """
    if record is not None and record.is_final:
        return None
    names = _list_names(pack, number) if names is None else names
    prefix, starts = _find_unnoted_run(record, names)
    if f"{prefix}.exit" not in names:
        return None
    written = _read_exit(f"{pack}/members/{format_number(number)}/{prefix}.exit")
    if written is None or not written.is_its_own:
        return None
    before = record or StateRecord(MemberState.PENDING, read_attempt(pack))
    before = dataclasses.replace(
        before, starts=starts, started_at=written.started_at or before.started_at
    )
    if starts_again and written.state is MemberState.FAILED:
        if _may_have_lost_its_daemon(before, written, killed_at):
            return None
        failures, most = before.retries.failures, read_spec(Path(pack), number).job.retries
        if not written.problem and failures < most:
            return dataclasses.replace(
                before,
                state=MemberState.PENDING,
                reason=f"{written.reason}; it runs again, retry {failures + 1} of {most}",
                retries=dataclasses.replace(before.retries, failures=failures + 1),
            )
    cause = EndCause.NOT_STARTED if written.problem else choose_plain_cause(
        written.state, written.code
    )  # fmt: skip
    return dataclasses.replace(
        before,
        state=written.state,
        ended_at=written.ended_at,
        exit_code=written.code,
        reason=written.reason,
        cause=cause.value if cause else "",
        evidence=tuple(dict.fromkeys((*before.evidence, EVIDENCE))),
    )


def read_settled(
    pack: Path | str,
    number: int,
    attempt: int,
    names: Iterable[str] | None = None,
    *,
    starts_again: bool = False,
    killed_at: float | None = None,
) -> StateRecord | None:
    """The newest state of a member, or the end that its wrapper has written since.

    See `find_written_end`; `attempt` is the newest of the pack.
    """
    names = None if names is None else frozenset(names)
    record = read_state(pack, number, attempt, names)
    end = find_written_end(
        pack, number, record, names, starts_again=starts_again, killed_at=killed_at
    )
    return end or record


def write_down_ends(pack: Path) -> None:
    """Note the ends that no runner has noted, of a pack that has ended.

    Raises:
        StateError: One cannot be read, or not be written down.
    """
    attempt = read_attempt(pack)
    for number in list_members(pack):
        end = find_written_end(pack, number, read_state(pack, number, attempt))
        if end is not None:
            write_state(pack, number, dataclasses.replace(end, attempt=max(attempt, 1)))


def _list_names(pack: Path | str, number: int) -> frozenset[str]:
    folder = f"{pack}/members/{format_number(number)}"
    with explain_os_errors("read", folder):
        try:
            return frozenset(os.listdir(folder))
        except FileNotFoundError:
            return frozenset()


def _find_unnoted_run(record: StateRecord | None, names: Iterable[str]) -> tuple[str, int]:
    """The newest start whose end was not noted, as its files are named; empty for none."""
    matches = [match for match in map(_RUN_FILE.fullmatch, names) if match]
    start, attempt = max(((int(m[2]), int(m[1])) for m in matches), default=(0, 0))
    if record is not None:
        # The end of an earlier start was noted when the member began to wait for the next one.
        is_noted = start < record.starts or (
            start == record.starts and record.state is not MemberState.RUNNING
        )
        # And what an earlier attempt has left was judged when this one took the member in.
        if is_noted or (start > record.starts and attempt < record.attempt):
            return "", 0
    return (f"run.{attempt}.{start}", start) if start else ("", 0)


def _read_exit(path: str) -> ExitRecord | None:
    """What was written; None where it makes no sense."""
    with explain_os_errors("read", path):
        data = read_bytes(path)
    try:
        return ExitRecord.parse(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _may_have_lost_its_daemon(
    record: StateRecord, written: ExitRecord, killed_at: float | None
) -> bool:
    """Whether it failed under MPS after its runner, which had its daemon kept, was gone."""
    is_under_mps = record.gpu is not None and record.gpu.is_under_mps
    if not is_under_mps or killed_at is None:
        return False
    return written.ended_at is None or written.ended_at >= killed_at
