"""Ends that members' wrappers have written and no runner has noted: `run.A.S.exit`.

Also: killed.N.json: a runner that died of a signal or with its node, and what its guard made of it;
runner.json: which process runs a pack, so that no other one is taken for it.

A runner may hang or be killed while its members run on. So whatever starts a member again, has its
pack requeued or takes it for lost reads this first: a member that has ended by itself has ended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.late_definitions import asdict, dataclass, late_pattern, replace
from slurm_colloc.model.member import EndCause, ExitRecord, MemberState, choose_plain_cause
from slurm_colloc.store.atomic_files import (
    is_there,
    list_names,
    read_json,
    read_record,
    write_json,
)
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import StateRecord, read_attempt, read_state, write_state
from slurm_colloc.store.pack_directory import list_members, read_spec

EVIDENCE = "its wrapper wrote how it ended when no runner was there to note it"

_RUN_FILE = late_pattern(r"(?a)run\.(\d+)\.(\d+)\.(?:started|exit)")


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
    if names is None:
        names = list_names(f"{pack}/members/{format_number(number)}")
    prefix, starts = _find_unnoted_run(record, names)
    if f"{prefix}.exit" not in names:
        return None
    written = _read_exit(f"{pack}/members/{format_number(number)}/{prefix}.exit")
    if written is None or not written.is_its_own:
        return None
    before = record or StateRecord(MemberState.PENDING, read_attempt(pack))
    before = replace(before, starts=starts, started_at=written.started_at or before.started_at)
    if starts_again and written.state is MemberState.FAILED:
        if _may_have_lost_its_daemon(before, written, killed_at):
            return None
        failures, most = before.retries.failures, read_spec(Path(pack), number).job.retries
        if not written.problem and failures < most:
            return replace(
                before,
                state=MemberState.PENDING,
                reason=f"{written.reason}; it runs again, retry {failures + 1} of {most}",
                retries=replace(before.retries, failures=failures + 1),
            )
    cause = EndCause.NOT_STARTED if written.problem else choose_plain_cause(
        written.state, written.code
    )  # fmt: skip
    return replace(
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
            write_state(pack, number, replace(end, attempt=max(attempt, 1)))


def read_run_times(folder: str, names: Iterable[str]) -> dict[tuple[int, int], tuple[float, float]]:
    """When the starts of a member began and ended, by attempt and start; those that are told.

    Args:
        folder: The member's directory.
        names: The files in it.

    Raises:
        StateError: They cannot be read.
    """
    found = {}
    for name in names:
        match = _RUN_FILE.fullmatch(name)
        if match is not None and name.endswith(".exit"):
            end = _read_exit(f"{folder}/{name}")
            if end is not None and end.started_at is not None and end.ended_at is not None:
                found[int(match[1]), int(match[2])] = end.started_at, end.ended_at
    return found


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
    """What was written; None where it makes no sense.

    Raises:
        StateError: It cannot be read, or is of another version.
    """
    try:
        value = read_json(path)
        return None if value is None else ExitRecord.parse(value)
    except (ValueError, KeyError, TypeError):
        return None
    except StateError as problem:
        if problem.__cause__ is None or isinstance(problem.__cause__, OSError):
            raise
        return None


def _may_have_lost_its_daemon(
    record: StateRecord, written: ExitRecord, killed_at: float | None
) -> bool:
    """Whether it failed under MPS after its runner, which had its daemon kept, was gone."""
    is_under_mps = record.gpu is not None and record.gpu.is_under_mps
    if not is_under_mps or killed_at is None:
        return False
    return written.ended_at is None or written.ended_at >= killed_at


# ----
# killed.N.json: a runner that died of a signal, and what its guard made of it.
#
# N is Slurm's restart count of the job, so every start of the batch script has a file of its own,
# also one whose runner was killed before it could begin an attempt. The guard alone writes it.

_PREFIX, _SUFFIX = "killed.", ".json"


@dataclass(frozen=True)
class RunnerKill:
    """A runner that was killed.

    Attributes:
        restarts: Slurm's restart count of the job at that time.
        attempt: The newest attempt at that time: that of the runner, if it had begun one.
        signal: What it died of.
        at: When, in seconds since the epoch.
        refusal: Why its pack does not start again; empty where Slurm was asked to requeue it.
    """

    restarts: int
    attempt: int
    signal: int
    at: float
    refusal: str = ""

    def __str__(self) -> str:
        return f"its runner was {self.how}"

    @property
    def how(self) -> str:
        """What became of it."""
        return f"killed by signal {self.signal}"

    @property
    def outcome(self) -> str:
        """What follows."""
        return self.refusal or "its pack was requeued"


def write_kill(pack: Path | str, kill: RunnerKill) -> None:
    """Write down what became of a pack's runner.

    Raises:
        StateError: It cannot be written.
    """
    write_json(f"{pack}/{_PREFIX}{kill.restarts}{_SUFFIX}", asdict(kill))


def forget_kill(pack: Path | str, restarts: int) -> None:
    """Take it back: Slurm was ending the job anyway."""
    with contextlib.suppress(OSError):
        os.unlink(f"{pack}/{_PREFIX}{restarts}{_SUFFIX}")


def read_kill(pack: Path | str, restarts: int) -> RunnerKill | None:
    """What is known of the runner that ran at a restart count; None where it was not killed.

    Raises:
        StateError: The file is damaged.
    """
    return read_record(f"{pack}/{_PREFIX}{restarts}{_SUFFIX}", RunnerKill)


def was_killed(pack: Path | str, restarts: int) -> bool:
    """Whether the runner of a restart count is known to be gone; nothing is read."""
    return is_there(f"{pack}/{_PREFIX}{restarts}{_SUFFIX}")


def list_kills(pack: Path | str) -> list[RunnerKill]:
    """All runners of a pack that were killed, oldest first.

    Raises:
        StateError: A file is damaged.
    """
    try:
        names = os.listdir(pack)
    except OSError:
        return []
    counts = [name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in names
              if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]  # fmt: skip
    kills = [read_kill(pack, int(count)) for count in counts if count.isdigit()]
    return sorted((kill for kill in kills if kill is not None), key=lambda kill: kill.restarts)


def find_kill(pack: Path | str, attempt: int) -> RunnerKill | None:
    """The killed runner of an attempt; None where it was not killed, or that was not seen.

    Raises:
        StateError: A file is damaged.
    """
    return next((kill for kill in reversed(list_kills(pack)) if kill.attempt == attempt), None)


# ---- runner.json: which process runs a pack, so that no other one is taken for it ----------------
#
# A pid says nothing on another host that sees the same path, nor after the process has ended.


@dataclass(frozen=True)
class RunnerProcess:
    """The process of a pack's newest runner.

    Attributes:
        host: Where it runs, as uname(2) has it.
        pid: Its process id there.
        start_ticks: Its start, in clock ticks after boot (proc(5)).
    """

    host: str
    pid: int
    start_ticks: int


def write_runner(pack: Path | str, runner: RunnerProcess) -> None:
    """Write down which process runs a pack.

    Raises:
        StateError: It cannot be written.
    """
    write_json(f"{pack}/runner.json", asdict(runner))


def read_runner(pack: Path | str) -> RunnerProcess | None:
    """Which process runs a pack, or has; None where none wrote it down.

    Raises:
        StateError: It is damaged.
    """
    return read_record(f"{pack}/runner.json", RunnerProcess)


def is_of_another_host(pack: Path | str) -> bool:
    """A pack's newest runner runs, or has run, on another machine that sees the same path."""
    with contextlib.suppress(StateError):
        runner = read_runner(pack)
        return runner is not None and runner.host != os.uname().nodename
    return False
