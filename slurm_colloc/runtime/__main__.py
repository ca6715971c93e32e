"""The batch script's only command: run a pack. Who: the user; where: the pack's first node.

python -I -m slurm_colloc.runtime PACK_DIRECTORY [--local L3]
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import CollocError, StateError
from slurm_colloc.model.member import ExitCode
from slurm_colloc.runtime.allocation import read_allocation
from slurm_colloc.runtime.local import wait_for_local_gpu
from slurm_colloc.runtime.runner import Fenced, Runner
from slurm_colloc.settings import load_settings, read_given_environment
from slurm_colloc.slurm.client import SlurmCommands
from slurm_colloc.store.directory import read_pack, read_slurm_job_id
from slurm_colloc.store.files import write_atomic
from slurm_colloc.store.packs import State, write_job_index


def main(argv: Sequence[str]) -> int:
    """Run the pack; the exit status is its worst member's."""
    pack = Path(argv[0])
    local = argv[2] if len(argv) > 2 and argv[1] == "--local" else ""
    try:
        return run_pack(pack, local)
    except CollocError as error:
        sys.stderr.write(f"csub: error: {error}\n")
        return error.exit_code
    except Exception:  # noqa: BLE001 - nobody reads a batch script's traceback: into its log
        sys.stderr.write(f"csub: the runner of {pack} failed:\n{traceback.format_exc()}")
        return 1


def run_pack(pack: Path, local: str = "") -> int:
    """Run one attempt of a pack.

    Raises:
        StateError: The pack's directory is not there or damaged.
    """
    record = read_pack(pack)
    if record is None:
        raise StateError(
            f"{pack} is not on this node",
            hint="the state directory must be on a file system that login and compute nodes "
            "share: set state_dir in the settings",
        )
    allocation = read_allocation(read_given_environment(), local)
    state = State(pack.parent.parent)
    if not local and not record.carried and read_slurm_job_id(pack) is None:
        # csub was killed between sbatch's answer and writing it down.
        write_job_index(state.root, allocation.shown_job_id, record)
        write_atomic(pack / "slurm_job_id", f"{allocation.job_id}\n".encode())
    write_atomic(pack / "runner_pid", f"{os.getpid()}\n".encode())
    if local:
        allocation = wait_for_local_gpu(state.root / "local", local)
    slurm = None if local else SlurmCommands()
    runner = Runner(pack, record, allocation, load_settings(), slurm)
    try:
        status = runner.run()
    except Fenced as error:
        runner.journal.write("fenced", reason=str(error))
        raise
    if runner.is_over:
        state.forget_open(record.pack_id)
    if record.carried:
        report_carried(runner, pack, lone=record.request is None)
    if record.request is None and not local:
        end_like_the_member(runner.ledger.worst)
    return status


def report_carried(runner: Runner, pack: Path, *, lone: bool) -> None:
    """Say in the pack's log how the members ended, and remove what travelled here."""
    for member in () if lone else runner.list_members():
        code = member.record.exit_code
        sys.stdout.write(
            f"csub: member {member.number} {member.spec.job.name} {member.record.state}"
            f"{f' {code}' if code is not None else ''}\n"
        )
    shutil.rmtree(pack.parent.parent, ignore_errors=True)


def end_like_the_member(code: ExitCode) -> None:
    """A lone member died of a signal: end by the same, so that Slurm shows what it would have."""
    if code.signal and code.signal not in (signal.SIGSTOP, signal.SIGTSTP):
        signal.signal(code.signal, signal.SIG_DFL) if code.signal != signal.SIGKILL else None
        os.kill(os.getpid(), code.signal)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
