"""Packs under MPS from submission to end, on a real Slurm with simulated GPUs."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from slurm_colloc.planning.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.simgpu.nvml.gpu_records import SimulatedGpu

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import (
    OPTIONS,
    Untouched,
    explained,
    journal,
    only_node,
    pack_directory,
    read_setup,
    shorten_waits,
    submit_pack,
    wait_for_clients,
)

pytestmark = pytest.mark.slurm

TRAIN_UNTIL_STOP = (
    "simgpu run --seconds 300 & pid=$!; until [ -e stop ]; do sleep 0.1; done; kill $pid"
)
UNTIL_END = "until [ -e end ]; do sleep 0.1; done"
TRAIN = f"env; simgpu run --seconds 300 & pid=$!; {UNTIL_END}; kill $pid; wait $pid; echo done"


def read_variables(text: str) -> dict[str, str]:
    """What `env` has written."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def check_members(
    user: CsubUser, job_id: str, rows: dict[int, dict[str, Any]], gpu: SimulatedGpu
) -> None:
    """What three members were given is what they see and what is told; the second said its need."""
    usable_mb = compute_usable_gpu_memory_mb(gpu.gpu_memory_mb)
    assert usable_mb is not None
    # A quarter of what is free, as each starts.
    first_mb = usable_mb // 4
    limits_mb = {1: first_mb, 2: 10240, 3: (usable_mb - first_mb - 10240) // 4}
    queued = {row["member"]: row for row in json.loads(user.csub("queue", "--json").stdout)}
    directories = set()
    for number, row in rows.items():
        assert row["mode"] == "mps"
        assert row["share"] == "auto"
        assert row["gpu_uuids"] == [gpu.uuid]
        assert row["thread_percentage"] == 66
        assert row["gpu_memory_limit_mb"] == limits_mb[number]
        for name in ("mode", "gpu_uuids", "thread_percentage", "gpu_memory_limit_mb"):
            assert queued[f"{job_id}/{number}"][name] == row[name]
        assert queued[f"{job_id}/{number}"]["is_mps_client"] is True
        seen = read_variables(user.output(f"slurm-{job_id}_{number}.out"))
        # Where a cgroup hides the node's other GPUs it is the first, as under sbatch.
        assert seen["CUDA_VISIBLE_DEVICES"] in ("0", gpu.uuid)
        assert seen["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "66"
        limit = f"{gpu.uuid}={limits_mb[number]}M"
        assert seen["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == limit
        directories.add(seen["CUDA_MPS_PIPE_DIRECTORY"])
    [directory] = directories
    assert len(directory) <= 87


@pytest.mark.smoke
def test_a_pack_runs_under_mps_from_submission_to_end_and_leaves_the_gpu_as_it_was(
    mps_user: CsubUser, mps_cluster: Sandbox
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("a.sh", TRAIN)
    user.script("b.sh", TRAIN, directives="#CSUB --gpu-mem=10G")
    told = user.csub("pack", *OPTIONS, "a.sh", "b.sh", "a.sh")
    job_id = told.stdout.split()[3]
    assert told.stderr == f"csub: members {job_id}/1-{job_id}/3 in 1 pack, mps or timeslice\n"
    rows = wait_for_clients(user, job_id)

    gpu = next(gpu for gpu in only_node(mps_cluster).read_gpus() if gpu.nvml_index == 0)
    check_members(user, job_id, rows, gpu)
    processes = only_node(mps_cluster).read_processes()
    assert sorted(process.type for process in processes) == ["C", "M+C", "M+C", "M+C"]
    assert {process.uid for process in processes} == {user.uid}

    shown = user.csub("show", f"{job_id}/2").stdout
    assert "Sharing:  mps, 3 at the same time (the node has MPS, and its GPU takes it)" in shown
    assert re.search(
        r"MPS: +a daemon of this pack's own: control socket after \d+ ms, server after \d+ ms\n",
        shown,
    )
    assert f"GPU:      NVIDIA H200 {gpu.uuid}" in shown
    assert re.search(
        r"On the GPU: +mps, threads at most 66 %, GPU memory at most 10G, "
        r"a client of the MPS server\n",
        shown,
    )
    queue = user.csub("queue", job_id).stdout
    assert re.search(rf"{job_id}/1 +a.sh +RUNNING +mps ", queue)
    (user.home / "end").touch()
    user.finish(job_id)
    with explained(user, job_id):
        rows = user.wait_for_states(job_id, "COMPLETED")
        assert {row["cause"] for row in rows.values()} == {"success"}
        assert all(row["is_mps_client"] for row in rows.values())
        setup = wait_until(
            lambda: (found := read_setup(user, job_id))["stop_ms"] is not None and found,
            "the daemon's end is told",
        )
        assert setup["notes"] == []
        [stopped] = journal(user, job_id, "mps_stopped")
        assert stopped["gpu_processes"] == stopped["unkillable"] == stopped["left"] == []
        assert "stopped in" in user.csub("show", job_id).stdout
        [log] = (pack_directory(user, job_id) / "mps").iterdir()
        assert log.name == "mps.1.daemon.log"
        assert "Server has started" in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o600
    untouched.check()


@pytest.mark.smoke
def test_show_tells_clients_from_those_that_go_without_mps_and_those_that_need_no_gpu(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    shorten_waits(user, gpu_looks_s=(0.5, 1.5), gpu_look_every_s=0.5)
    user.script("client.sh", TRAIN_UNTIL_STOP)
    user.script("idle.sh", "until [ -e stop ]; do sleep 0.1; done")
    # A mount namespace of its own hides the daemon's sockets.
    inside = f"mount -t tmpfs none /tmp; {TRAIN_UNTIL_STOP}"
    user.script("leaver.sh", f"exec unshare -Urm sh -c {shlex.quote(inside)}")
    # It is a client at last: then it was one.
    user.script(
        "late.sh",
        "CUDA_MPS_PIPE_DIRECTORY=/nowhere simgpu run --seconds 300 & pid=$!\n"
        f"{UNTIL_END}; kill $pid; wait; {TRAIN_UNTIL_STOP}",
    )
    job_id = submit_pack(user, "client.sh", "idle.sh", "leaver.sh", "late.sh")

    def read_clients() -> list[bool | None]:
        return [row["is_mps_client"] for _, row in sorted(user.members(job_id).items())]

    with explained(user, job_id):
        wait_until(lambda: read_clients() == [True, None, False, False], "NVML was asked")
        modes = [row["mode"] for _, row in sorted(user.members(job_id).items())]
        assert modes == ["mps", "mps", "timeslice", "timeslice"]
        why = user.csub("why", f"{job_id}/3").stdout
        assert "by time slices, as it does not reach the pack's MPS daemon" in why
        assert "by time slices" not in user.csub("why", f"{job_id}/1").stdout
        shown = [user.csub("show", f"{job_id}/{number}").stdout for number in (1, 2, 3)]
        assert ", a client of the MPS server\n" in shown[0]
        assert ", not seen to use it\n" in shown[1]
        assert ", used without MPS: none of these limits binds it\n" in shown[2]
        (user.home / "end").touch()
        wait_until(lambda: read_clients() == [True, None, False, True], "the late one has joined")
        assert {event["member"] for event in journal(user, job_id, "mps_outside")} == {3, 4}
    (user.home / "stop").touch()
    user.finish(job_id)
    user.wait_for_states(job_id, "COMPLETED")
    assert read_clients() == [True, None, False, True]
    untouched.check()


def test_packs_of_one_user_and_of_another_run_side_by_side_on_one_node(
    mps_user: CsubUser, other_mps_user: CsubUser, mps_cluster: Sandbox
) -> None:
    untouched = Untouched(mps_user, other_mps_user)
    packs = []
    for user in (mps_user, mps_user, other_mps_user):
        user.script("train.sh", TRAIN)
        packs.append((user, submit_pack(user, "train.sh", "train.sh")))
    pipes, gpus, servers = [], [], []
    for user, job_id in packs:
        rows = wait_for_clients(user, job_id)
        gpus.append(rows[1]["gpu_uuids"])
        pipes.append(
            {
                read_variables(user.output(f"slurm-{job_id}_{number}.out"))[
                    "CUDA_MPS_PIPE_DIRECTORY"
                ]
                for number in rows
            }
        )
        servers.append(journal(user, job_id, "mps_server")[-1]["server"])
    assert len({uuid for uuids in gpus for uuid in uuids}) == 3
    assert [len(found) for found in pipes] == [1, 1, 1]
    assert len(set.union(*pipes)) == 3
    by_server: dict[int | None, list[int]] = {}
    for process in only_node(mps_cluster).read_processes():
        by_server.setdefault(process.mps_server, []).append(process.uid)
    uids = [user.uid for user, _ in packs]
    assert [by_server[server] for server in servers] == [[uid, uid] for uid in uids]
    # The end of one is nothing to the others.
    mps_user.csub("cancel", packs[0][1])
    mps_user.wait_for_states(packs[0][1], "CANCELLED")
    for user, job_id in packs[1:]:
        assert {row["state"] for row in user.members(job_id).values()} == {"RUNNING"}
        (user.home / "end").touch()
        with explained(user, job_id):
            user.wait_for_states(job_id, "COMPLETED")
    untouched.check()


def test_members_that_wait_get_the_place_and_the_daemon_of_those_that_have_ended(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("train.sh", 'echo "$CUDA_MPS_PIPE_DIRECTORY"; exec simgpu run --seconds 0.5')
    job_id = user.submit("--array=1-4", "--degree=2", "--pack-size=4", *OPTIONS, "train.sh")
    with explained(user, job_id):
        rows = user.finish(job_id)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
        assert {row["thread_percentage"] for row in rows.values()} == {100}
        pipes = {user.output(f"slurm-{job_id}_{number}.out") for number in rows}
        assert len(pipes) == 1
        assert pipes != {"\n"}
        assert len(journal(user, job_id, "mps_daemon")) == 1
    untouched.check()


def test_neighbours_of_one_that_is_to_stay_fast_have_the_lower_priority(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    user.script("fast.sh", "env", directives="#SBATCH --priority=fast")
    user.script("train.sh", "env")
    job_id = user.submit("pack", *OPTIONS, "train.sh", "fast.sh", "train.sh")
    rows = user.finish(job_id)
    seen = [read_variables(user.output(f"slurm-{job_id}_{number}.out")) for number in rows]
    assert [variables["CUDA_MPS_CLIENT_PRIORITY"] for variables in seen] == ["1", "0", "1"]
    assert [row["thread_percentage"] for row in rows.values()] == [66, 100, 66]


@pytest.mark.parametrize("export", ["ALL,STEPS=900", "STEPS=900", "NONE"])
def test_the_programs_are_found_along_the_path_in_which_csub_was_called(
    mps_user: CsubUser, export: str
) -> None:
    """With these Slurm gives the batch script the PATH of a login, without a module's."""
    mps_user.script("tell.sh", 'echo "$STEPS $CUDA_MPS_PIPE_DIRECTORY"')
    job_id = submit_pack(mps_user, f"--export={export}", "tell.sh", "tell.sh")
    mps_user.finish(job_id)
    assert "is not installed" not in mps_user.csub("explain", job_id).stdout
    for number, row in mps_user.members(job_id).items():
        assert (row["state"], row["mode"]) == ("COMPLETED", "mps")
        steps, pipe = mps_user.output(f"slurm-{job_id}_{number}.out").rstrip("\n").split(" ")
        assert steps == ("" if export == "NONE" else "900")
        assert pipe
