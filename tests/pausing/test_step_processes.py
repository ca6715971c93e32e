"""All processes of a member are stopped, and none of its neighbours; all go on again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.host.system.node_processes import read_process
from slurm_colloc.runtime.pause_members import StepProcesses, continue_stopped, resume

from ..wait_until import wait_until
from .running_member import RunningMember

Start = Callable[..., RunningMember]

COUNT = "{ i=0; while :; do i=$((i+1)); echo $i > %s; sleep 0.01; done; }"


def count(path: Path) -> int:
    """What a script has counted."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.strip() else 0


def stands_still(path: Path) -> bool:
    """Whether nothing is counted for a while."""
    before = count(path)
    time.sleep(0.3)
    return count(path) == before


def wait_for_more(files: list[Path], what: str) -> None:
    """Wait until each has counted on."""
    before = {path: count(path) for path in files}
    wait_until(lambda: all(count(path) > before[path] for path in files), what)


def list_states(pids: list[int]) -> set[str]:
    return {found.state for pid in pids if (found := read_process(pid)) is not None}


def test_a_script_and_its_children_stop_and_its_neighbour_does_not(
    start: Start, tmp_path: Path
) -> None:
    stopped = start("/bin/bash", "-c", COUNT % "a" + " & " + COUNT % "b")
    other = start("/bin/bash", "-c", COUNT % "a")
    files = [stopped.folder / "a", stopped.folder / "b", other.folder / "a"]
    wait_until(lambda: all(count(path) > 3 for path in files), "they count")
    processes = StepProcesses(str(tmp_path))
    found = processes.stop({1: stopped.wrapper_pid})[1]
    assert found.is_whole
    assert stands_still(files[0])
    assert stands_still(files[1])
    wait_for_more([files[2]], "its neighbour counts on")
    # The wrapper answers Slurm all the same.
    assert list_states([stopped.wrapper_pid]) <= {"S", "R"}
    resume(found.processes)
    wait_for_more(files, "they go on")


def test_one_that_forks_all_the_time_is_stopped_whole(start: Start, tmp_path: Path) -> None:
    forking = start(
        "/bin/bash", "-c", "while :; do (echo x >> forks; exec sleep 0.02) & sleep 0.002; done"
    )
    log = forking.folder / "forks"
    wait_until(lambda: log.exists() and log.stat().st_size > 100, "it forks")
    found = StepProcesses(str(tmp_path)).stop({1: forking.wrapper_pid})[1]
    assert found.is_whole
    size = log.stat().st_size
    time.sleep(0.3)
    assert log.stat().st_size == size
    resume(found.processes)
    wait_until(lambda: log.stat().st_size > size, "it forks again")


def test_an_orphan_and_one_of_a_step_of_its_own_belong_to_it(start: Start, tmp_path: Path) -> None:
    member = start("/bin/bash", "-c", f"(setsid bash -c '{COUNT % 'orphan'}' &); sleep 1000")
    # As slurmstepd starts the task of an srun: elsewhere, with the member's environment.
    pid = os.fork()
    if pid == 0:
        environment = {
            "PATH": os.environ["PATH"],
            "SLURM_COLLOC_PACK": str(tmp_path),
            "SLURM_COLLOC_START": str(member.folder / "run.1.1"),
        }
        os.chdir(member.folder)
        os.execve("/bin/bash", ["bash", "-c", COUNT % "task"], environment)
    try:
        files = [member.folder / "orphan", member.folder / "task"]
        wait_until(lambda: all(count(path) > 3 for path in files), "they count")
        found = StepProcesses(str(tmp_path)).stop({1: member.wrapper_pid})[1]
        assert [stands_still(path) for path in files] == [True, True]
        resume(found.processes)
        before = [count(path) for path in files]
        wait_until(
            lambda: all(count(p) > b for p, b in zip(files, before, strict=True)), "they go on"
        )
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_what_the_user_has_stopped_stays_stopped(start: Start, tmp_path: Path) -> None:
    member = start("/bin/bash", "-c", "sleep 1000 & echo $! > child; kill -STOP $!; " + COUNT % "a")
    path = member.folder / "child"
    wait_until(lambda: count(path) > 0 and list_states([count(path)]) == {"T"}, "it is stopped")
    found = StepProcesses(str(tmp_path)).stop({1: member.wrapper_pid})[1]
    resume(found.processes)
    wait_until(lambda: not stands_still(member.folder / "a"), "the script goes on")
    assert list_states([count(path)]) == {"T"}


def test_shims_and_srun_answer_slurm_while_their_member_is_paused(
    start: Start, tmp_path: Path
) -> None:
    shim = tmp_path / "programs" / "shim.py"
    shim.parent.mkdir()
    shim.write_text("import time\ntime.sleep(1000)\n")
    (tmp_path / "srun").symlink_to("/bin/sleep")
    member = start(
        "/bin/bash",
        "-c",
        f"{sys.executable} -IBS {shim} /x/bin/squeue & {tmp_path}/srun 1000 & wait",
    )
    processes = StepProcesses(str(tmp_path))

    def names() -> set[str]:
        table = processes.find({1: member.wrapper_pid})[1]
        return {process.name for process in table}

    wait_until(lambda: len(names()) == 1, "both are up")
    assert names() == {"bash"}


def test_what_a_killed_runner_leaves_stopped_goes_on(start: Start, tmp_path: Path) -> None:
    member = start("/bin/bash", "-c", COUNT % "a" + " & " + COUNT % "b")
    files = [member.folder / "a", member.folder / "b"]
    wait_until(lambda: all(count(path) > 3 for path in files), "they count")
    found = StepProcesses(str(tmp_path)).stop({1: member.wrapper_pid})[1]
    wait_until(lambda: list_states([p.pid for p in found.processes]) == {"T"}, "all are stopped")
    # One that was about to end may be gone.
    assert continue_stopped(str(tmp_path)) >= 2
    wait_for_more(files, "they go on")
    wait_until(lambda: continue_stopped(str(tmp_path)) == 0, "none is stopped any more")


def test_a_paused_member_is_ended_like_any_other(start: Start, tmp_path: Path) -> None:
    member = start("/bin/bash", "-c", "trap 'echo saved; exit 3' TERM; " + COUNT % "a")
    wait_until(lambda: count(member.folder / "a") > 3, "it counts")
    StepProcesses(str(tmp_path)).stop({1: member.wrapper_pid})
    member.process.terminate()
    assert member.process.wait(30) == 3
    assert member.output.splitlines()[-1] == "saved"
