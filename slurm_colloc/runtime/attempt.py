"""The batch script's only command: run a pack. Who: the user; where: the pack's first node.

python -IB -m slurm_colloc.runtime PACK_DIRECTORY [--local L3]
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.host.system.node_processes import identify
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.member import (
    FINAL_STATES,
    ExitCode,
    MemberState,
    SlurmJobState,
    effective_state,
    is_guest,
)
from slurm_colloc.runtime.allocation import Allocation, read_allocation
from slurm_colloc.runtime.divide_gpus import wait_for_gpu
from slurm_colloc.runtime.guarded_steps import Journal, insist
from slurm_colloc.runtime.runner import Runner
from slurm_colloc.runtime.stop_member import Fenced
from slurm_colloc.settings import load_node_settings, read_given_environment
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import State, write_job_index
from slurm_colloc.store.atomic_files import hold_lock, is_there, write_atomic
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import (
    StateRecord,
    begin_attempt,
    is_held,
    read_attempt,
    read_emptied,
    remove_environment,
    write_state,
)
from slurm_colloc.store.pack_directory import (
    PackRecord,
    drop_unfinished,
    forget_ended,
    list_members,
    read_ended,
    read_moved,
    read_own_pack,
    read_pack,
    read_slurm_job_id,
    write_record,
)
from slurm_colloc.store.written_ends import RunnerProcess, read_settled, write_runner

JOINER_WAIT_S = 5.0


def run_attempt(path: str, local: str, announce: Callable[[str], None] | None) -> int:
    """Run the pack; the exit status is its worst member's.

    Args:
        path: The pack's directory.
        local: Its id where it runs without Slurm, else empty.
        announce: Told of a directory that must be gone before the batch script ends.
    """
    pack = Path(path)
    try:
        return run_pack(pack, local, announce)
    except CollocError as error:
        sys.stderr.write(f"csub: error: {error}\n")
        return error.exit_code
    except Exception:  # noqa: BLE001 - a batch script's traceback is not seen: into its log
        sys.stderr.write(f"csub: the runner of {pack} failed:\n{traceback.format_exc()}")
        return 1


def run_pack(pack: Path, local: str, announce: Callable[[str], None] | None) -> int:
    """Run one attempt of a pack.

    Raises:
        StateError: The pack's directory is not there or damaged.
    """
    record = insist("reading the pack", lambda: read_own_pack(pack))
    if record is None:
        raise StateError(
            f"{pack} is not on this node",
            hint="the state directory must be on a file system that login and compute nodes "
            "share: set state_dir in the settings",
        )
    allocation = read_allocation(read_given_environment(), local)
    state = State(pack.parent.parent)
    write_down = partial(write_down_job, pack, state, record, allocation, local=local)
    insist("writing down its job", write_down)
    if local:
        insist("waiting for a GPU", lambda: wait_for_gpu(state.root / "local"))
        allocation = read_allocation(os.environ, local)
    allocation = replace(allocation, called_in=dict(record.client_environment))
    os.environ.update(allocation.own_environment)
    if record.shown_id:
        allocation = replace(allocation, shown_job_id=record.shown_id)
    slurm = None if local else SlurmAccess()
    load = partial(load_node_settings, os.environ, record.settings)
    settings, problems = insist("reading the settings", load)
    # A member that is joining has then either entered or finds that the pack has started.
    with hold_lock(pack / "lock", JOINER_WAIT_S):
        was_over = insist("reopening the pack", lambda: reopen(pack, state))
        record = insist(
            "reading the pack", lambda: leave_out_absent(pack, read_pack(pack) or record)
        )
        if insist("reading the pack", partial(read_emptied, pack)):
            return insist("closing the pack", partial(end_emptied, pack, state))
        lone = record.request is None
        slurm_log = 2 if lone or local else leave_output_to_members(pack)
        runner = Runner(
            pack, record, allocation, settings, slurm, slurm_log=slurm_log, announce=announce
        )
        runner.prepare()
        for problem in problems:
            runner.pack.journal.write("settings", problem=problem)
            if not lone:
                sys.stderr.write(f"csub: warning: {problem}\n")
        if was_over:
            runner.pack.journal.write("reopened")
    try:
        status = runner.run()
    except Fenced as error:
        runner.pack.journal.write("fenced", reason=str(error))
        raise
    close_if_over(runner, pack, state)
    if lone and not local:
        end_like_the_member(runner.states.worst)
    return status


def write_down_job(
    pack: Path, state: State, record: PackRecord, allocation: Allocation, *, local: str
) -> None:
    """Say which job, and which process, runs the pack; it may be called several times."""
    if not local and read_slurm_job_id(pack) is None:
        # csub was killed between sbatch's answer and writing it down.
        write_job_index(state.root, allocation.shown_job_id, record)
        write_atomic(pack / "slurm_job_id", f"{allocation.job_id}\n".encode())
    if (itself := identify(os.getpid())) is not None:
        write_runner(pack, RunnerProcess(os.uname().nodename, itself.pid, itself.start_ticks))


def leave_out_absent(pack: Path, record: PackRecord) -> PackRecord:
    """The plan without the place of a joiner that was killed on its way in."""
    count = sum(not is_guest(number) for number in list_members(pack))
    # A pack that none joins has more places than members on purpose: it takes members over. So has
    # one that is open for others. One that members have left keeps their places, for others.
    if (
        record.closed
        or record.open_for
        or not 0 < count < record.degree
        or _may_have_left(pack, record)
    ):
        return record
    record = replace(record, degree=count)
    with contextlib.suppress(StateError):
        write_record(pack, record)
    return record


def _may_have_left(pack: Path, record: PackRecord) -> bool:
    """Packs of other submissions may have members of this one's."""
    job_id = record.shown_id or (read_slurm_job_id(pack) or "").partition("_")[0]
    return bool(State(pack.parent.parent, record.cluster).list_takers(job_id))


def end_emptied(pack: Path, state: State) -> int:
    """All that this pack had was taken over before it began; called under its lock.

    Returns:
        The exit status: all is well.
    """
    Journal(pack).write("emptied", by=read_emptied(pack))
    for number in list_members(pack):
        # One that was cancelled while it waited.
        remove_environment(pack, number)
    state.forget_open(pack.name)
    return 0


def close_pack(pack: Path, state: State, attempt: int) -> None:
    """No csub needs to look at a pack any more; nothing of an interrupted joiner stays in it.

    Args:
        pack: The pack's directory.
        state: The state directory.
        attempt: The attempt that has ended; after a newer one has begun the pack is not over.
    """
    with hold_lock(pack / "lock", JOINER_WAIT_S) as locked:
        # Otherwise the next call of csub does it.
        if locked and read_attempt(pack) == attempt and not inbox.list_moving(str(pack)):
            drop_unfinished(pack)
            # One that was cancelled while waiting never was this runner's.
            for number in list_members(pack):
                remove_environment(pack, number)
            state.forget_open(pack.name)


def close_if_over(runner: Runner, pack: Path, state: State) -> None:
    """Close a pack that is over; its members have ended as they did, whatever becomes of that."""
    try:
        if runner.is_over:
            close_pack(pack, state, runner.pack.attempt)
    except (OSError, StateError) as error:
        # The next call of csub closes it.
        sys.stderr.write(f"csub: error: the pack was not closed: {error}\n")


def leave_output_to_members(pack: Path) -> int:
    """Keep the runner's words out of a file that belongs to a member, which others have joined.

    Slurm opened that file for the batch script. What slurmstepd says goes to its end from now on,
    behind what the member writes there itself.

    Returns:
        A descriptor of what the batch script's standard error was.
    """
    for descriptor in (1, 2):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
    before = os.dup(2)
    with contextlib.suppress(OSError):
        log = os.open(pack / "pack.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if not os.path.samestat(os.fstat(log), os.fstat(2)):
            os.dup2(log, 1)
            os.dup2(log, 2)
        os.close(log)
    return before


def end_like_the_member(code: ExitCode) -> None:
    """A lone member died of a signal: end by the same, so that Slurm shows what it would have."""
    if code.signal and code.signal not in (signal.SIGSTOP, signal.SIGTSTP):
        signal.signal(code.signal, signal.SIG_DFL) if code.signal != signal.SIGKILL else None
        os.kill(os.getpid(), code.signal)  # noqa: TID251 - its own


def reopen(pack: Path, state: State) -> bool:
    """Take back Slurm's last word on a pack; called under its lock, before the attempt begins.

    A member that csub has settled (its environment is gone) stays what it was shown as and does
    not start again. The others are as open as before the end.

    Args:
        pack: The pack's directory.
        state: The state directory that it lies in.

    Returns:
        True where there was a last word.
    """
    ended = read_ended(pack)
    if ended is None:
        return False
    attempt = read_attempt(pack) or begin_attempt(pack, 1)
    is_open = False
    for number in list_members(pack):
        folder = pack / "members" / format_number(number)
        record = read_settled(pack, number, attempt, starts_again=True)
        if record is None:
            record = StateRecord(MemberState.PENDING, attempt)
        moved = read_moved(pack, number) is not None
        if record.is_final or moved:
            continue
        if is_there(folder / "env"):
            is_open = True
        else:
            _settle(pack, number, record, attempt, ended)
    if is_open:
        write_atomic(state.open / pack.name, b"")
    # Last: until then every reader sees the end as it was.
    forget_ended(pack)
    return True


def _settle(
    pack: Path, number: int, record: StateRecord, attempt: int, ended: SlurmJobState
) -> None:
    """Write down what the end of its pack made of a member."""
    cancelled = is_there(pack / "members" / format_number(number) / "cancelled")
    shown = effective_state(record.state, ended, cancelled=cancelled, held=is_held(pack, number))
    if shown in FINAL_STATES:
        reason = f"its pack had ended ({ended.value}) before it was requeued"
        write_state(pack, number, replace(record, state=shown, attempt=attempt, reason=reason))
