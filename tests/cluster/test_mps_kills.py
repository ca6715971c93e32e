"""Packs under MPS whose server, daemon, keeper, runner or members are ended from outside."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.host.mps.mps_state import MpsOptions
from slurm_colloc.host.system.node_processes import ProcessId, identify, is_alive

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import (
    HELLO,
    OPTIONS,
    TRAIN,
    Untouched,
    daemon_pid,
    explained,
    journal,
    keeper_pid,
    kill,
    list_directories,
    list_processes,
    list_starts,
    only_node,
    pack_directory,
    read_setup,
    require_cgroups,
    runner_pid,
    server_pid,
    submit_pack,
    wait_for_clients,
    wait_for_starts,
)

pytestmark = pytest.mark.slurm

HIDE = "until [ -e end ]; do kill -0 $pid || break; sleep 0.1; done; kill $pid"


@pytest.mark.parametrize(
    ("find", "reason", "restarts"),
    [
        pytest.param(server_pid, "the MPS server has ended; it runs again", 0, id="server"),
        pytest.param(
            daemon_pid,
            "the MPS daemon has died; it runs again",
            1,
            id="daemon",
            marks=pytest.mark.smoke,
        ),
        pytest.param(
            keeper_pid, "the MPS daemon's keeper was killed; it runs again", 1, id="keeper"
        ),
    ],
)
def test_members_run_again_under_mps_when_it_was_killed(
    mps_user: CsubUser, find: Callable[[CsubUser, str], int], reason: str, restarts: int
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        before = list_directories(user)
        kill(find(user, job_id))
        rows = wait_for_starts(user, job_id, 2)
        again = journal(user, job_id, "requeue")
        assert {event["reason"] for event in again} == {reason}
        for number, row in rows.items():
            first, second = list_starts(user, job_id, number)
            assert first.startswith("start restart=0 pipe=/")
            assert second.startswith("start restart=1 pipe=/")
            # A new daemon has a new directory, and the old one is gone.
            assert (first.split("pipe=")[1] == second.split("pipe=")[1]) is (restarts == 0)
            assert row["evidence"][0] == f"MPS: {reason.partition(';')[0]}"
        assert len(list_directories(user)) == 1
        assert (list_directories(user) == before) is (restarts == 0)
        assert read_setup(user, job_id)["restarts"] == restarts
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {(row["state"], row["cause"]) for row in rows.values()} == {("COMPLETED", "success")}
        assert journal(user, job_id, "mps_culprit") == []
        if restarts:
            assert "started again once" in user.csub("show", job_id).stdout
    untouched.check()


def test_after_the_third_daemon_the_pack_goes_on_by_time_slices(mps_user: CsubUser) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    user.script("late.sh", HELLO)
    job_id = user.submit(
        "pack", "--degree=2", "--pack-size=3", *OPTIONS, "train.sh", "train.sh", "late.sh"
    )
    with explained(user, job_id):
        for count in (1, 2):
            wait_for_starts(user, job_id, count, 1, 2)
            kill(daemon_pid(user, job_id))
        # Apart from MPS no daemon is ended below them.
        wait_until(
            lambda: all(
                [is_apart(line, 2) for line in list_starts(user, job_id, number)[2:]] == [True]
                for number in (1, 2)
            ),
            "both have started for the third time",
        )
        wait_until(
            lambda: len(journal(user, job_id, "mps_daemon")) == 3, "the third daemon answers"
        )
        kill(daemon_pid(user, job_id))
        wait_until(lambda: len(journal(user, job_id, "mps_lost")) == 3, "the third daemon is lost")
        (user.home / "end").touch()
        rows = user.finish(job_id)
        for number in (1, 2):
            assert (rows[number]["state"], rows[number]["starts"]) == ("COMPLETED", 3)
            assert rows[number]["mode"] == "timeslice"
        again = journal(user, job_id, "requeue")
        assert {event["reason"].partition("; ")[2] for event in again} == {
            "it runs again",
            "it runs again apart from MPS",
        }
        assert (rows[3]["state"], rows[3]["mode"]) == ("COMPLETED", "timeslice")
        assert [is_apart(line, 0) for line in list_starts(user, job_id, 3)] == [True]
        setup = read_setup(user, job_id)
        assert setup["reason"] == "the MPS daemon has died, 3 times"
        shown = user.csub("show", job_id).stdout
        assert "Sharing:  timeslice, 2 at the same time (the MPS daemon has died, 3 times)" in shown
    untouched.check()


def is_apart(line: str, restart: int) -> bool:
    """Whether a start begins without MPS: its own pipe directory is not there."""
    head, _, pipe = line.partition(" pipe=")
    return head == f"start restart={restart}" and pipe.endswith("/mps") and not Path(pipe).exists()


def write_bystanders(user: CsubUser) -> None:
    """Members that are no clients when something is ended: one not any more, one not at all."""
    wait = "until [ -e end ]; do sleep 0.1; done; echo done"
    user.script("early.sh", f"{HELLO}; simgpu run --seconds 3; touch early; {wait}")
    user.script("idle.sh", f"{HELLO}; {wait}")


def test_whose_daemon_a_neighbour_ends_runs_again_whatever_its_script_says_of_that(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("hide.sh", f"{HELLO}; simgpu run --seconds 300 & pid=$!; {HIDE}; echo done")
    # As `pkill -u $USER '^nvidia-cuda-mps'` does it, but for what runs along with this test.
    user.script(
        "own.sh",
        f"{HELLO}; until [ -e victims ]; do sleep 0.1; done; kill $(cat victims)\n"
        "export CUDA_MPS_PIPE_DIRECTORY=$TMPDIR/p CUDA_MPS_LOG_DIRECTORY=$TMPDIR/l\n"
        'mkdir "$TMPDIR/p" "$TMPDIR/l"; nvidia-cuda-mps-control -d\n'
        f"simgpu run --seconds 300 & pid=$!; {HIDE}\n"
        "echo quit | nvidia-cuda-mps-control; exit 0",
    )
    write_bystanders(user)
    pack = ("own.sh", "hide.sh", "hide.sh", "early.sh", "idle.sh")
    # Its check would keep it alone.
    job_id = user.submit("pack", "--accept=mps-control", "--degree=5", *OPTIONS, *pack)
    with explained(user, job_id):
        wait_for_clients(user, job_id, 2, 3, 4)
        wait_until((user.home / "early").exists, "the program of the fourth has ended")
        pids = (daemon_pid(user, job_id), server_pid(user, job_id))
        wait_until(lambda: count_gpu_processes(user) == 2, "its context is gone")
        (user.home / "victims.tmp").write_text(" ".join(map(str, pids)))
        (user.home / "victims.tmp").rename(user.home / "victims")
        wait_for_starts(user, job_id, 2, 2, 3)
        wait_until(lambda: journal(user, job_id, "mps_own_daemon"), "its own daemon is seen")
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {n: (row["state"], row["starts"]) for n, row in rows.items()} == {
            1: ("COMPLETED", 1),
            2: ("COMPLETED", 2),
            3: ("COMPLETED", 2),
            4: ("COMPLETED", 1),
            5: ("COMPLETED", 1),
        }
        again = journal(user, job_id, "requeue")
        assert sorted(event["member"] for event in again) == [2, 3]
        # The daemon and its server were ended at the same moment.
        assert {event["reason"] for event in again} <= {
            "the MPS daemon has died; it runs again",
            "the MPS server has ended; it runs again",
        }
        [ended] = journal(user, job_id, "mps_ended_by")
        assert ended["member"] == 1
        assert "it started an MPS daemon of its own after" in rows[1]["evidence"][0]
        told = f"since then, member {job_id}/1 has an MPS daemon of its own"
        assert [told in row["evidence"] for row in rows.values()] == [
            False, True, True, False, False,
        ]  # fmt: skip
    # It runs apart from others from then on.
    said = user.csub("pack", "--dry-run", *OPTIONS, *pack)
    assert said.stderr.startswith(
        "csub: own.sh runs alone: it put its own MPS daemon in place of its neighbours' when it "
        f"ran as {job_id}/1; it shares again once its script changes\n"
    )
    untouched.check()


def test_without_leave_to_requeue_an_exit_code_of_0_hides_no_ended_server(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("hide.sh", f"{HELLO}; simgpu run --seconds 300; echo done")
    write_bystanders(user)
    job_id = user.submit(
        "pack", "--degree=4", "--no-requeue", *OPTIONS[1:],
        "hide.sh", "hide.sh", "early.sh", "idle.sh",
    )  # fmt: skip
    with explained(user, job_id):
        wait_for_clients(user, job_id, 1, 2, 3)
        wait_until((user.home / "early").exists, "the program of the third has ended")
        wait_until(lambda: count_gpu_processes(user) == 2, "its context is gone")
        kill(server_pid(user, job_id))
        rows = user.wait_for_states(job_id, {1: "FAILED", 2: "FAILED", 3: "RUNNING", 4: "RUNNING"})
        (user.home / "end").touch()
        rows = user.finish(job_id)
        reason = "its exit code 0 does not count: the MPS server has ended; it may not be requeued"
        for number in (1, 2):
            row = rows[number]
            assert (row["state"], row["cause"], row["starts"]) == ("FAILED", "MPS daemon gone", 1)
            assert (row["exit_code"]["code"], row["reason"]) == (0, reason)
            assert "done" in user.output(f"slurm-{job_id}_{number}.out").split()
            assert reason in user.csub("why", f"{job_id}/{number}").stdout
        assert [(rows[n]["state"], rows[n]["starts"]) for n in (3, 4)] == [("COMPLETED", 1)] * 2
    untouched.check()


def count_gpu_processes(user: CsubUser) -> int:
    """How many clients have a context on a GPU of the sandbox."""
    return sum(
        process.mps_server is not None for process in only_node(user.sandbox).read_processes()
    )


def test_members_of_a_killed_runner_run_again_under_a_new_daemon(mps_user: CsubUser) -> None:
    user = mps_user
    untouched = Untouched(user)
    # At TERM it works on for a moment, as to save what it has on the GPU.
    save = "sleep 1; kill -0 $pid && echo worked-on; kill $pid; exit 0"
    user.script("train.sh", f"trap '{save}' TERM; {TRAIN}")
    user.script("done.sh", HELLO)
    job_id = user.submit(
        "pack", "--degree=2", "--pack-size=4", *OPTIONS, "done.sh", "train.sh", "train.sh",
        "done.sh",
    )  # fmt: skip
    with explained(user, job_id):
        wait_for_clients(user, job_id, 2, 3)
        before = list_directories(user)
        killed = read_parts(user, job_id)
        kill(runner_pid(user, job_id))
        rows = wait_for_starts(user, job_id, 2, 2, 3)
        assert not any(is_alive(process) for process in killed)
        [directory] = list_directories(user)
        assert [directory] != before
        for number in (2, 3):
            first, second = list_starts(user, job_id, number)
            assert first.startswith(f"start restart=0 pipe={before[0]}/")
            assert second.startswith(f"start restart=1 pipe={directory}/")
            assert "restarted: its runner was killed by signal 9" in rows[number]["evidence"]
            if user.sandbox.status().cgroup_version:
                # Elsewhere Slurm signals every process of a step, and not the script alone.
                assert "worked-on" in user.output(f"slurm-{job_id}_{number}.out").split()
        assert (rows[1]["state"], rows[1]["starts"]) == ("COMPLETED", 1)
        assert rows[4]["state"] == "PENDING"
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {(row["state"], row["cause"]) for row in rows.values()} == {("COMPLETED", "success")}
        assert [rows[number]["starts"] for number in (1, 2, 3, 4)] == [1, 2, 2, 1]
    untouched.check()


@pytest.mark.long
def test_members_of_a_killed_runner_keep_their_daemon_while_slurm_cannot_be_asked(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        server = identify(server_pid(user, job_id))
        assert server is not None
        pack = pack_directory(user, job_id)
        user.sandbox.stop_controller()
        try:
            kill(runner_pid(user, job_id))
            # Longer than clients of a killed runner may go on without a guard.
            time.sleep(MpsOptions(("GPU-0",)).orphan_grace_s + 8)
            assert is_alive(server)
            assert not list(pack.glob("members/*/run.*.exit"))
        finally:
            user.sandbox.start_controller()
        wait_until(
            lambda: all(len(list_starts(user, job_id, number)) == 2 for number in (1, 2)),
            "both start again",
            patience_s=180,
        )
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {(row["state"], row["cause"]) for row in rows.values()} == {("COMPLETED", "success")}


@pytest.mark.long
def test_a_killed_runner_that_may_not_be_requeued_leaves_its_members_their_daemon_and_then_nothing(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh", options=("--no-requeue", *OPTIONS[1:]))
    wait_for_clients(user, job_id)
    parts = read_parts(user, job_id)
    kill(runner_pid(user, job_id))
    # Longer than clients of a killed runner may go on without a guard.
    time.sleep(MpsOptions(("GPU-0",)).orphan_grace_s + 8)
    assert all(is_alive(process) for process in parts[1:])
    (user.home / "end").touch()
    rows = user.wait_for_states(job_id, "COMPLETED")
    assert {row["exit_code"]["code"] for row in rows.values()} == {0}
    wait_until(
        lambda: not any(is_alive(process) for process in parts),
        "keeper, daemon and server have ended",
    )
    untouched.check()


def read_parts(user: CsubUser, job_id: str) -> list[ProcessId]:
    """Keeper, daemon and server of a pack that runs under MPS now."""
    parts = []
    for find in (keeper_pid, daemon_pid, server_pid):
        process = identify(find(user, job_id))
        assert process is not None
        parts.append(process)
    return parts


def test_what_a_pack_could_not_remove_itself_the_next_one_does(mps_user: CsubUser) -> None:
    user = mps_user
    require_cgroups(user)
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh", options=("--no-requeue", *OPTIONS[1:]))
    wait_for_clients(user, job_id)
    # The node takes both at the same moment.
    keeper, runner = keeper_pid(user, job_id), runner_pid(user, job_id)
    kill(keeper, signal.SIGSTOP)
    kill(runner)
    # Where the pack may not start again, its members run to their ends.
    (user.home / "end").touch()
    wait_until(lambda: not list_processes(user), "Slurm has ended all processes")
    [left] = list_directories(user)
    again = submit_pack(user, "train.sh", "train.sh")
    with explained(user, again):
        user.finish(again)
        [swept] = journal(user, again, "mps_swept")
        assert (swept["path"], swept["of"]) == (left, job_id)
    untouched.check()
