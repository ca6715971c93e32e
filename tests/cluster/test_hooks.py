"""Packs under MPS that root's hooks prepare, on a real Slurm with simulated GPUs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.host.mps.daemon_limits import DAEMON_GID
from slurm_colloc.host.mps.mps_control import read_peer
from slurm_colloc.host.system.control_groups import read_hierarchies
from slurm_colloc.host.system.node_processes import identify
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.installation import find_installation

from ..bed import CsubUser, require_slurm, user_of
from ..wait_until import wait_until
from .hooks import (
    changed_policy,
    list_prepared,
    read_audit,
    read_prepared_setup,
    require_other_users,
    run_directory,
    sandbox_with_hooks,
    wait_for_epilog,
)
from .mps import (
    TRAIN,
    Untouched,
    daemon_pid,
    explained,
    journal,
    keeper_pid,
    kill,
    list_directories,
    only_node,
    pack_directory,
    read_parent,
    read_setup,
    runner_pid,
    submit_pack,
    wait_for_clients,
    wait_for_starts,
)

pytestmark = [pytest.mark.slurm, pytest.mark.root]

FIRST_WITH_RUN_IN_JOB = (24, 5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """One node with two simulated GPUs, whose hooks prepare MPS."""
    with sandbox_with_hooks() as sandbox:
        yield sandbox


@pytest.fixture
def user(cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    require_other_users(accounts[0])
    with user_of(cluster, accounts[0]) as somebody:
        yield somebody


@pytest.fixture
def other_user(cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(cluster, accounts[1]) as somebody:
        yield somebody


@pytest.fixture(scope="module")
def cluster_in_job() -> Iterator[Sandbox]:
    """The same with hooks that run inside the job."""
    require_slurm()
    version = find_installation(os.environ).version
    if version < FIRST_WITH_RUN_IN_JOB:
        pytest.skip(f"Slurm {version[0]}.{version[1]:02} has no PrologFlags=RunInJob")
    with sandbox_with_hooks(extra_conf=("PrologFlags=Alloc,Contain,RunInJob",)) as sandbox:
        yield sandbox


def check_nothing_is_left(untouched: Untouched, cluster: Sandbox) -> None:
    untouched.check()
    wait_until(lambda: not list_prepared(cluster), "the hooks have taken back all they did")


def prepared_pid(cluster: Sandbox, job_id: str) -> int:
    """The daemon that the prolog has started for a job."""
    peer = read_peer(str(run_directory(cluster) / job_id / "0" / "p"))
    assert peer is not None
    return peer.pid


def check_administration(cluster: Sandbox, job_id: str, pid: int) -> None:
    """`csub admin` tells of the sandbox's hooks, and not of this machine's."""

    def ask(*words: str) -> list[dict[str, object]]:
        ended = subprocess.run(
            ["csub", "admin", *words, "--json"],
            env={**os.environ, **cluster.env()},
            capture_output=True,
            text=True,
            check=True,
        )
        return [json.loads(line) for line in ended.stdout.splitlines()]

    (status,) = ask("status")
    assert status["run_directory"] == str(run_directory(cluster))
    assert [(job["job_id"], job["daemon_pids"]) for job in status["jobs"]] == [(job_id, [pid])]  # type: ignore[attr-defined]
    assert status["policy"]["path"] == str(cluster.layout.hooks / "node.toml")  # type: ignore[index]
    assert [(line["hook"], line["job"]) for line in ask("log", "--job", job_id)] == [
        ("prolog", job_id)
    ]
    (config,) = ask("show-config")
    logs = [row["value"] for row in config["policy"] if row["name"] == "audit_log"]  # type: ignore[attr-defined]
    assert logs == [str(cluster.layout.log / "hooks.log")]


@pytest.mark.smoke
def test_a_pack_runs_under_the_nodes_own_daemon_from_submission_to_epilog(
    user: CsubUser, cluster: Sandbox
) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh", "train.sh")
    with explained(user, job_id):
        rows = wait_for_clients(user, job_id)
        setup = read_prepared_setup(cluster, job_id)
        [daemon] = setup["daemons"]
        assert {row["mode"] for row in rows.values()} == {"mps"}
        assert {tuple(row["gpu_uuids"]) for row in rows.values()} == {tuple(setup["gpus"])}
        for number in rows:
            text = user.output(f"slurm-{job_id}_{number}.out")
            assert f"pipe={daemon['pipe_directory']}\n" in text

        pid = prepared_pid(cluster, job_id)
        assert daemon_pid(user, job_id) == pid
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        assert status["Uid"].split() == [str(user.uid)] * 4
        # A group that the user's other processes are not in, besides all that the user is in.
        assert status["Gid"].split() == [str(DAEMON_GID)] * 4
        assert str(user.gid) in status["Groups"].split()
        assert status["NoNewPrivs"] == "1"
        # It is nobody's child and in nobody's session; slurmd's cgroup is not its own.
        assert read_parent(pid) == 1
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        node = cluster.node_names[0]
        assert groups.count(f"/slurm_colloc/{node}-{job_id}-") == len(read_hierarchies())
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "0"

        check_administration(cluster, job_id, pid)

        # The pack has none of its own, and the user cannot change what root has written.
        assert list_directories(user) == []
        assert read_setup(user, job_id)["by"] == "prolog"
        run = run_directory(cluster)
        for command in (
            f"echo x > {run}/{job_id}/setup.json",
            f"mv {run}/{job_id}/0 {run}/{job_id}/1",
            f"touch {run}/{job_id}/x",
            f"ls {run}/jobs",
        ):
            assert user.run(["sh", "-c", command], check=False).returncode != 0
        shown = user.csub("show", job_id).stdout
        assert re.search(
            r"MPS: +the node's own daemon \(prolog\): control socket after \d+ ms, "
            r"server after \d+ ms\n",
            shown,
        )
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {(row["state"], row["cause"]) for row in rows.values()} == {("COMPLETED", "success")}
        line = wait_for_epilog(cluster, job_id)
        assert (line["action"], line["outcome"], line["exit"]) == ("undone", "", 0)
        assert read_setup(user, job_id)["notes"] == []
        [log] = (pack_directory(user, job_id) / "mps").iterdir()
        assert "Server has started" in log.read_text()
    check_nothing_is_left(untouched, cluster)
    [before] = read_audit(cluster, "prolog", job_id)
    assert (before["action"], before["mode"], before["exit"]) == ("prepared", "mps", 0)


@pytest.mark.smoke
def test_scancel_of_the_pack_leaves_nothing(user: CsubUser, cluster: Sandbox) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    wait_for_clients(user, job_id)
    user.run(["scancel", job_id])
    with explained(user, job_id):
        assert wait_for_epilog(cluster, job_id)["exit"] == 0
    check_nothing_is_left(untouched, cluster)


@pytest.mark.smoke
def test_a_killed_runner_leaves_nothing(user: CsubUser, cluster: Sandbox) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    wait_for_clients(user, job_id)
    kill(runner_pid(user, job_id))
    with explained(user, job_id):
        wait_for_epilog(cluster, job_id)
        user.run(["scancel", job_id], check=False)
    check_nothing_is_left(untouched, cluster)


def test_a_killed_daemon_is_replaced_by_one_of_the_packs_own(
    user: CsubUser, cluster: Sandbox
) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        kill(prepared_pid(cluster, job_id))
        wait_for_starts(user, job_id, 2)
        setup = read_setup(user, job_id)
        assert (setup["by"], setup["restarts"]) == ("runner", 1)
        assert "the node's own MPS daemon is not used: it has died" in setup["notes"]
        assert len(list_directories(user)) == 1
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
        assert wait_for_epilog(cluster, job_id)["exit"] == 0
    check_nothing_is_left(untouched, cluster)


def test_a_killed_keeper_costs_the_members_nothing(user: CsubUser, cluster: Sandbox) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        runner, daemon = runner_pid(user, job_id), prepared_pid(cluster, job_id)
        [keeper] = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit()
            and b"host.keeper.keeper" in _read(entry / "cmdline")
            and read_parent(int(entry.name)) == runner
        ]
        kill(keeper)
        wait_until(lambda: len(journal(user, job_id, "mps_daemon")) == 2, "another keeper")
        assert prepared_pid(cluster, job_id) == daemon
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {(row["state"], row["starts"]) for row in rows.values()} == {("COMPLETED", 1)}
    check_nothing_is_left(untouched, cluster)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_fault_under_the_nodes_daemon_finds_its_culprit(user: CsubUser, cluster: Sandbox) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    user.script(
        "bad.sh",
        'echo "start restart=${SLURM_RESTART_COUNT:-0}"\n'
        "simgpu run --seconds 300 --fault illegal-address@2",
    )
    job_id = submit_pack(user, "train.sh", "bad.sh")
    with explained(user, job_id):
        wait_until(lambda: user.members(job_id)[2]["state"] == "FAILED", "the culprit is found")
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert (rows[1]["state"], rows[1]["starts"]) == ("COMPLETED", 2)
        assert (rows[2]["state"], rows[2]["cause"]) == ("FAILED", "MPS fault: culprit")
        assert read_setup(user, job_id)["by"] == "prolog"
    check_nothing_is_left(untouched, cluster)


def test_slurmd_restarted_in_the_middle_kills_nothing(user: CsubUser, cluster: Sandbox) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        pid = prepared_pid(cluster, job_id)
        node = cluster.node_names[0]
        cluster.kill_node(node)
        cluster.start_node(node)
        assert prepared_pid(cluster, job_id) == pid
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {(row["state"], row["starts"]) for row in rows.values()} == {("COMPLETED", 1)}
        assert wait_for_epilog(cluster, job_id)["action"] == "undone"
    check_nothing_is_left(untouched, cluster)


def test_hooks_that_run_inside_the_job_prepare_a_daemon_that_is_the_jobs(
    cluster_in_job: Sandbox, accounts: tuple[str, ...]
) -> None:
    require_other_users(accounts[0])
    cluster = cluster_in_job
    with user_of(cluster, accounts[0]) as user:
        untouched = Untouched(user)
        user.script("train.sh", TRAIN)
        job_id = submit_pack(user, "train.sh", "train.sh")
        with explained(user, job_id):
            wait_for_clients(user, job_id)
            pid = prepared_pid(cluster, job_id)
            assert daemon_pid(user, job_id) == pid
            notes = read_prepared_setup(cluster, job_id)["notes"]
            assert "Slurm runs its hooks inside the job: the daemon is the job's" in notes
            groups = Path(f"/proc/{pid}/cgroup").read_text()
            if cluster.status().cgroup_version:
                assert f"/job_{job_id}/" in groups
            assert "/slurm_colloc/" not in groups
            # The prolog's step daemon goes on, and so does the daemon where slurmd ends.
            node = cluster.node_names[0]
            cluster.kill_node(node)
            cluster.start_node(node)
            assert prepared_pid(cluster, job_id) == pid
            (user.home / "end").touch()
            rows = user.finish(job_id)
            assert {(row["state"], row["starts"]) for row in rows.values()} == {("COMPLETED", 1)}
            line = wait_for_epilog(cluster, job_id)
            assert (line["action"], line["exit"]) == ("undone", 0)
            assert identify(pid) is None
        check_nothing_is_left(untouched, cluster)


@pytest.mark.smoke
def test_two_jobs_of_two_users_at_once_have_a_daemon_each(
    user: CsubUser, other_user: CsubUser, cluster: Sandbox
) -> None:
    untouched = Untouched(user, other_user)
    jobs = {}
    for somebody in (user, other_user):
        somebody.script("train.sh", TRAIN)
        jobs[somebody.name] = submit_pack(somebody, "train.sh", "train.sh")
    seen = {}
    for somebody in (user, other_user):
        job_id = jobs[somebody.name]
        wait_for_clients(somebody, job_id)
        setup = read_prepared_setup(cluster, job_id)
        peer = read_peer(setup["daemons"][0]["pipe_directory"])
        assert peer is not None
        assert peer.uid == somebody.uid
        seen[somebody.name] = setup["gpus"]
        stranger = other_user if somebody is user else user
        pipe = setup["daemons"][0]["pipe_directory"]
        asked = stranger.run(["ls", pipe], check=False)
        assert "Permission denied" in asked.stderr
    assert seen[user.name] != seen[other_user.name]
    for process in only_node(cluster).read_processes():
        assert process.uid in (user.uid, other_user.uid)
    # The end of one is nothing to the other.
    (user.home / "end").touch()
    user.finish(jobs[user.name])
    wait_for_epilog(cluster, jobs[user.name])
    assert {r["state"] for r in other_user.members(jobs[other_user.name]).values()} == {"RUNNING"}
    (other_user.home / "end").touch()
    rows = other_user.finish(jobs[other_user.name])
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    wait_for_epilog(cluster, jobs[other_user.name])
    check_nothing_is_left(untouched, cluster)


def test_the_compute_mode_is_set_for_the_job_and_set_back(user: CsubUser, cluster: Sandbox) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    with changed_policy(cluster, exclusive_process=True):
        job_id = submit_pack(user, "train.sh", "train.sh")
        with explained(user, job_id):
            wait_for_clients(user, job_id)
            [uuid] = read_prepared_setup(cluster, job_id)["gpus"]
            modes = {gpu.uuid: gpu.compute_mode for gpu in only_node(cluster).read_gpus()}
            assert modes.pop(uuid) == 3
            assert set(modes.values()) == {0}
            (user.home / "end").touch()
            user.finish(job_id)
            assert wait_for_epilog(cluster, job_id)["restored"] == {uuid: "DEFAULT"}
    check_nothing_is_left(untouched, cluster)


def test_a_comment_changed_in_between_changes_nothing(user: CsubUser, cluster: Sandbox) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        user.run(["scontrol", "update", f"job={job_id}", "comment=nothing of yours"])
        (user.home / "end").touch()
        user.finish(job_id)
        assert wait_for_epilog(cluster, job_id)["action"] == "undone"
    check_nothing_is_left(untouched, cluster)


def test_what_the_policy_denies_the_pack_does_for_itself(user: CsubUser, cluster: Sandbox) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    with changed_policy(cluster, partitions=["elsewhere"]):
        job_id = submit_pack(user, "train.sh", "train.sh")
        with explained(user, job_id):
            wait_for_clients(user, job_id)
            setup = read_setup(user, job_id)
            assert setup["by"] == "runner"
            reason = "the site's policy leaves out this partition"
            assert f"the node has prepared no MPS: {reason}" in setup["notes"]
            assert f"Note:     the node has prepared no MPS: {reason}" in (
                user.csub("show", job_id).stdout
            )
            assert keeper_pid(user, job_id)
            (user.home / "end").touch()
            user.finish(job_id)
            wait_for_epilog(cluster, job_id)
    check_nothing_is_left(untouched, cluster)


def scontrol(cluster: Sandbox, *words: str) -> None:
    """Tell the controller something as root."""
    environment = {**os.environ, **cluster.env()}
    subprocess.run(["scontrol", *words], env=environment, check=True)


def test_in_place_of_a_node_daemon_that_does_not_answer_the_pack_starts_its_own(
    user: CsubUser, cluster: Sandbox
) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    node = f"nodename={cluster.node_names[0]}"
    scontrol(cluster, "update", node, "state=drain", "reason=test")
    with changed_policy(cluster, enabled=False):
        job_id = submit_pack(user, "train.sh", "train.sh")
        # As root would have written it, for a daemon that is gone by now.
        prepared = run_directory(cluster) / job_id
        pipe = prepared / "0" / "p"
        pipe.mkdir(parents=True)
        [uuid, *_] = [gpu.uuid for gpu in only_node(cluster).read_gpus()]
        daemon = {"gpus": [uuid], "pipe_directory": str(pipe), "control_ms": 20.0}
        setup = {"schema": 1, "job_id": job_id, "mode": "mps", "reason": "", "by": "prolog"}
        setup |= {"daemons": [daemon], "compute_mode": None, "notes": []}
        (prepared / "setup.json").write_text(json.dumps(setup))
        try:
            scontrol(cluster, "update", node, "state=resume")
            with explained(user, job_id):
                wait_for_clients(user, job_id)
                found = read_setup(user, job_id)
                reason = "no process listens on the control socket of the node's MPS daemon"
                assert found["by"] == "runner"
                assert found["notes"] == [f"the node's own MPS daemon is not used: {reason}"]
                assert len(list_directories(user)) == 1
                (user.home / "end").touch()
                rows = user.finish(job_id)
                assert {row["state"] for row in rows.values()} == {"COMPLETED"}
        finally:
            shutil.rmtree(prepared)
    check_nothing_is_left(untouched, cluster)


def test_a_requeued_pack_gets_a_fresh_daemon(user: CsubUser, cluster: Sandbox) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        first = prepared_pid(cluster, job_id)
        user.run(["scontrol", "requeue", job_id])
        wait_for_epilog(cluster, job_id)
        wait_for_starts(user, job_id, 2)
        assert prepared_pid(cluster, job_id) != first
        assert read_setup(user, job_id)["by"] == "prolog"
        (user.home / "end").touch()
        user.finish(job_id)
        wait_until(
            lambda: len(read_audit(cluster, "epilog", job_id)) == 2, "the second epilog has run"
        )
    check_nothing_is_left(untouched, cluster)


def test_a_lost_nodes_leftovers_are_cleared_by_the_next_prolog(
    user: CsubUser, cluster: Sandbox
) -> None:
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    user.script("more.sh", "simgpu run --steps 3")
    lost = submit_pack(user, "train.sh", "train.sh")
    wait_for_clients(user, lost)
    # Another of ours has seen it run.
    other = submit_pack(user, "more.sh", "more.sh")
    user.finish(other)
    wait_for_epilog(cluster, other)
    node = cluster.node_names[0]
    hidden = cluster.layout.hooks / "epilog.sh"
    epilog = hidden.read_text()
    try:
        # The epilog that never was: slurmd finds one that does nothing.
        hidden.write_text("#!/bin/sh\nexit 0\n")
        user.run(["scancel", lost])
        wait_until(
            lambda: (
                "slurm_load_jobs"
                in (shown := user.run(["squeue", "-h", "-j", lost, "-o", "%T"], check=False)).stderr
                or shown.stdout.strip() in ("", "CANCELLED")
            ),
            "the job has gone",
        )
        wait_until(
            lambda: (
                "COMPLETING" not in user.run(["scontrol", "show", "node", node], check=False).stdout
            ),
            "the node is done",
        )
    finally:
        hidden.write_text(epilog)
    assert (run_directory(cluster) / "jobs" / f"{lost}.json").exists()
    again = submit_pack(user, "more.sh", "more.sh")
    with explained(user, again):
        user.finish(again)
        wait_for_epilog(cluster, again)
        [line] = read_audit(cluster, "prolog", again)
        [recovered] = line["recovered"]
        assert (recovered["job"], recovered["undone"]) == (lost, True)
        assert recovered["reason"] == "Slurm no longer runs it"
    check_nothing_is_left(untouched, cluster)
