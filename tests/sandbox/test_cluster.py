from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_colloc.errors import NotFound, SlurmError, StateError, UsageProblem
from slurm_colloc.host.system.node_processes import (
    list_running_processes,
    read_command_line,
    read_environment,
)
from slurm_colloc_lab.sandbox.cgroups import find_node_groups
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_processes import send_signal, wait_until
from slurm_colloc_lab.sandbox.sandbox_record import read_record, write_record
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

pytestmark = pytest.mark.slurm


def ask(sandbox: Sandbox, *argv: str) -> str:
    ended = subprocess.run(
        argv,
        env={**os.environ, **sandbox.env()},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout.strip()


def submit(sandbox: Sandbox, script: str, *options: str) -> str:
    ended = subprocess.run(
        ["sbatch", "--parsable", "-o", str(sandbox.directory.parent / "out-%j"), *options],
        input=f"#!/bin/sh\n{script}\n",
        env={**os.environ, **sandbox.env()},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stdout.strip()


def wait_for_state(sandbox: Sandbox, job: str, *states: str) -> None:
    def reached() -> bool:
        return ask(sandbox, "squeue", "-h", "-t", "all", "-j", job, "-o", "%T") in states

    assert wait_until(reached, 60, poll_s=0.1), ask(sandbox, "scontrol", "show", "job", job)


def start_waiting_job(sandbox: Sandbox, *options: str) -> tuple[str, Path]:
    """A job whose script runs, not only its allocation; it ends when the file appears."""
    started, go = sandbox.directory.parent / "started", sandbox.directory.parent / "go"
    script = f"touch {started}; until [ -e {go} ]; do sleep 0.1; done"
    job = submit(sandbox, script, *options)
    assert wait_until(started.exists, 60, poll_s=0.1)
    return job, go


def wait_until_saved(sandbox: Sandbox) -> None:
    """slurmctld saves its jobs every few seconds; what is younger dies with a killed one."""
    saved, now = sandbox.layout.state / "job_state", time.time_ns()
    assert wait_until(lambda: saved.exists() and saved.stat().st_mtime_ns > now, 60, poll_s=0.1)


def find_traces(directory: Path) -> list[str]:
    """Processes that name this directory in their command line or run under its SLURM_CONF."""
    mark = str(directory)
    return [
        f"{process.id.pid} {read_command_line(process.id.pid)}"
        for process in list_running_processes()
        if process.id.pid != os.getpid()
        and (
            any(mark in word for word in read_command_line(process.id.pid))
            or mark in read_environment(process.id.pid).get("SLURM_CONF", "")
        )
    ]


def get_pids(sandbox: Sandbox) -> dict[str, int | None]:
    return {daemon.name: daemon.pid for daemon in sandbox.status().daemons}


def kill(pid: int | None) -> None:
    assert pid is not None
    (process,) = [process for process in list_running_processes() if process.id.pid == pid]
    assert send_signal(process.id, signal.SIGKILL)


@pytest.mark.smoke
def test_up_gives_idle_nodes_and_a_second_up_does_nothing(sandbox: Sandbox) -> None:
    started = sandbox.up(SandboxSpec(sandbox.directory, nodes=3, gpus_per_node=1, fake_gpus=True))
    status = sandbox.status()
    assert set(started.started) == {daemon.name for daemon in status.daemons}
    assert len(status.daemons) == 5
    assert status.running
    assert [(node.state, node.gpus) for node in status.nodes] == [("idle", 1)] * 3
    before = get_pids(sandbox)
    assert sandbox.up().started == ()
    assert get_pids(sandbox) == before


@pytest.mark.smoke
def test_down_leaves_no_process_and_no_cgroup_whatever_jobs_do(sandbox: Sandbox) -> None:
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True))
    nodes = sandbox.node_names
    stubborn = submit(sandbox, "trap '' TERM; while :; do sleep 1; done")
    detached = submit(
        sandbox, "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' </dev/null & sleep 600"
    )
    waiting = submit(sandbox, "sleep 600", "--hold")
    wait_for_state(sandbox, stubborn, "RUNNING")
    wait_for_state(sandbox, detached, "RUNNING")
    wait_for_state(sandbox, waiting, "PENDING")
    assert sandbox.down()
    assert find_traces(sandbox.directory) == []
    assert find_node_groups(nodes) == []
    assert not sandbox.down(), "there is nothing left to end"


def test_job_ids_go_on_after_down_and_old_jobs_do_not_come_back(sandbox: Sandbox) -> None:
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True))
    first = submit(sandbox, "sleep 600")
    wait_until_saved(sandbox)
    kill(get_pids(sandbox)["slurmctld"])
    sandbox.down()
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True, nodes=1))
    assert first not in ask(sandbox, "squeue", "-h", "-o", "%A").split()
    assert int(submit(sandbox, "true")) > int(first)
    assert len(sandbox.node_names) == 1


def test_another_cluster_on_the_machine_is_not_touched(
    sandbox: Sandbox, short_directory: Path
) -> None:
    other = Sandbox(short_directory / "o")
    try:
        other.up(SandboxSpec(other.directory, fake_gpus=True))
        sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True))
        assert not set(other.node_names) & set(sandbox.node_names)
        done = short_directory / "done"
        go = short_directory / "go"
        job = submit(other, f"until [ -e {go} ]; do sleep 0.1; done; srun touch {done}")
        wait_for_state(other, job, "RUNNING")
        before = get_pids(other)
        for _ in range(2):
            submit(sandbox, "sleep 600")
        sandbox.kill_node(sandbox.node_names[0], jobs=True)
        assert sandbox.down(purge=True)
        assert get_pids(other) == before
        go.touch()
        wait_for_state(other, job, "COMPLETED")
        assert done.exists()
    finally:
        other.down(purge=True)


@pytest.mark.parametrize("victim", ["munged", "slurmctld", "slurmd", "all"])
def test_up_repairs_what_was_killed_and_jobs_survive(sandbox: Sandbox, victim: str) -> None:
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True))
    key = sandbox.layout.munge_key.read_bytes()
    ports = [daemon.port for daemon in sandbox.status().daemons]
    job, go = start_waiting_job(sandbox, "--gres=gpu:1")
    wait_until_saved(sandbox)
    chosen = [name for name in get_pids(sandbox) if victim == "all" or name.startswith(victim)]
    for name in chosen:
        kill(get_pids(sandbox)[name])
    assert sorted(sandbox.up().started) == sorted(chosen)
    assert sandbox.layout.munge_key.read_bytes() == key
    assert [daemon.port for daemon in sandbox.status().daemons] == ports
    assert ask(sandbox, "squeue", "-h", "-j", job, "-o", "%T") == "RUNNING"
    go.touch()
    wait_for_state(sandbox, job, "COMPLETED")


def test_the_controller_stops_and_comes_back_with_its_jobs(sandbox: Sandbox) -> None:
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True))
    job = submit(sandbox, "sleep 600", "--hold")
    sandbox.stop_controller()
    status = sandbox.status()
    assert [daemon.name for daemon in status.daemons if not daemon.alive] == ["slurmctld"]
    assert {node.state for node in status.nodes} == {"unreachable"}
    with pytest.raises(subprocess.CalledProcessError):
        ask(sandbox, "scontrol", "ping")
    sandbox.start_controller()
    assert ask(sandbox, "squeue", "-h", "-j", job, "-o", "%T") == "PENDING"


def test_a_lost_node_loses_its_jobs_and_comes_back_alone(sandbox: Sandbox) -> None:
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True, slurmd_timeout_s=5))
    first, second = sandbox.node_names
    job = submit(sandbox, "sleep 600 & wait", "-w", first, "--no-requeue")
    other = submit(sandbox, "sleep 600", "-w", second)
    wait_for_state(sandbox, job, "RUNNING")
    wait_for_state(sandbox, other, "RUNNING")
    before = get_pids(sandbox)
    sandbox.kill_node(first, jobs=True)
    wait_for_state(sandbox, job, "NODE_FAIL")
    assert ask(sandbox, "squeue", "-h", "-j", other, "-o", "%T") == "RUNNING"
    sandbox.start_node(first)
    assert {node.name: node.state for node in sandbox.status().nodes}[first] == "idle"
    after = get_pids(sandbox)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"slurmd.{first}"}


def test_jobs_outlive_their_slurmd_where_only_that_is_killed(sandbox: Sandbox) -> None:
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True, nodes=1))
    (node,) = sandbox.node_names
    job, go = start_waiting_job(sandbox)
    sandbox.kill_node(node)
    assert not {daemon.name: daemon.alive for daemon in sandbox.status().daemons}[f"slurmd.{node}"]
    sandbox.start_node(node)
    go.touch()
    wait_for_state(sandbox, job, "COMPLETED")


def test_an_unknown_node_is_refused_with_the_names_of_the_known(sandbox: Sandbox) -> None:
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True, nodes=1))
    with pytest.raises(NotFound, match=sandbox.node_names[0]):
        sandbox.kill_node("elsewhere")


def test_other_settings_for_a_running_sandbox_are_refused(sandbox: Sandbox) -> None:
    spec = SandboxSpec(sandbox.directory, fake_gpus=True, nodes=1)
    sandbox.up(spec)
    with pytest.raises(UsageProblem, match=r"nodes 1, not 2.*csub sandbox down"):
        sandbox.up(replace(spec, nodes=2))
    assert sandbox.up(spec).started == ()


@pytest.mark.parametrize("moment", ["munged", "slurmctld", "slurmd"])
@pytest.mark.parametrize("command", ["up", "down"])
def test_an_up_that_was_killed_half_way_is_repaired_by_the_next_command(
    sandbox: Sandbox, moment: str, command: str
) -> None:
    # The process ends itself with KILL at the moment it has started the daemon.
    code = f"""
import os, signal
from pathlib import Path
from slurm_colloc_lab.sandbox import daemons
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec
start = daemons.start_daemon
def interrupted(name, argv, layout):
    start(name, argv, layout)
    if name.startswith({moment!r} if {moment!r} != "slurmd" else "slurmd."):
        os.kill(os.getpid(), signal.SIGKILL)
daemons.start_daemon = interrupted
directory = Path({str(sandbox.directory)!r})
Sandbox(directory).up(SandboxSpec(directory, fake_gpus=True))
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert find_traces(sandbox.directory) != []
    if command == "up":
        sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True))
        assert sandbox.status().running
        assert {node.state for node in sandbox.status().nodes} == {"idle"}
        sandbox.down()
    else:
        assert sandbox.down()
    assert find_traces(sandbox.directory) == []


def test_a_down_that_was_killed_half_way_is_finished_by_the_next_up(sandbox: Sandbox) -> None:
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True))
    old = submit(sandbox, "sleep 600")
    record = read_record(sandbox.layout.record)
    assert record is not None
    # All that a 'down' has done when it is killed right at its beginning.
    write_record(sandbox.layout.record, replace(record, wanted=False))
    before = set(find_traces(sandbox.directory))
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True, nodes=1))
    assert not before & set(find_traces(sandbox.directory))
    assert old not in ask(sandbox, "squeue", "-h", "-o", "%A").split()


def test_concurrent_ups_make_one_cluster(sandbox: Sandbox) -> None:
    code = f"""
from pathlib import Path
from slurm_colloc_lab.sandbox.cluster import Sandbox
print(len(Sandbox(Path({str(sandbox.directory)!r})).up().started))
"""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    counts = sorted(int(child.communicate(timeout=120)[0]) for child in children)
    assert counts == [0, 0, 0, 4]
    daemons = [line for line in find_traces(sandbox.directory) if "slurmctld" in line]
    assert len([line for line in daemons if "-f" in line]) == 1


def test_a_port_that_was_taken_meanwhile_is_named(sandbox: Sandbox) -> None:
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True, nodes=1))
    port = sandbox.status().daemons[1].port
    assert port is not None
    sandbox.stop_controller()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("", port))
        squatter.listen()
        with pytest.raises(SlurmError, match=f"TCP port {port} of slurmctld is taken"):
            sandbox.up()
        sandbox.down()
        sandbox.up()
        assert sandbox.status().running
        assert sandbox.status().daemons[1].port != port


def test_a_daemon_that_dies_at_its_start_is_reported_with_its_reason_and_log(
    sandbox: Sandbox,
) -> None:
    spec = SandboxSpec(sandbox.directory, fake_gpus=True, nodes=1, extra_conf=("NoSuchOption=1",))
    with pytest.raises(SlurmError) as caught:
        sandbox.up(spec)
    assert "slurmctld of the sandbox died" in str(caught.value)
    assert "NoSuchOption" in str(caught.value)
    assert str(sandbox.layout.log / "slurmctld.log") in str(caught.value)
    assert sandbox.down()
    assert find_traces(sandbox.directory) == []


def test_a_directory_that_cannot_be_made_or_is_anothers_is_refused(short_directory: Path) -> None:
    (short_directory / "file").touch()
    with pytest.raises(StateError, match="cannot be made"):
        Sandbox(short_directory / "file" / "c").up()
    if os.geteuid() == 0:
        foreign = short_directory / "foreign"
        foreign.mkdir()
        os.chown(foreign, 12345, 12345)
        with pytest.raises(StateError, match="belongs to somebody else"):
            Sandbox(foreign).up()


@pytest.mark.parametrize(
    "call", [Sandbox.env, Sandbox.status, Sandbox.start_controller, Sandbox.stop_controller]
)
def test_what_needs_a_sandbox_says_how_to_get_one(
    short_directory: Path, call: Callable[[Sandbox], object]
) -> None:
    short_directory.joinpath("c").mkdir()
    with pytest.raises(NotFound, match="csub sandbox up"):
        call(Sandbox(short_directory / "c"))


def test_a_damaged_record_is_reported(sandbox: Sandbox) -> None:
    sandbox.directory.mkdir()
    for text in ("{", "[]", '{"schema": 1}', '{"schema": 99}'):
        sandbox.layout.record.write_text(text)
        with pytest.raises(StateError, match=str(sandbox.layout.record)):
            sandbox.status()
    sandbox.layout.record.unlink()


def test_up_from_inside_a_sandbox_job_starts_a_cluster_of_its_own(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/elsewhere/slurm.conf")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "elsewhere")
    sandbox.up(SandboxSpec(sandbox.directory, fake_gpus=True, nodes=1))
    pid = get_pids(sandbox)["slurmctld"]
    assert pid is not None
    environment = read_environment(pid)
    assert environment["SLURM_CONF"] == str(sandbox.layout.slurm_conf)
    assert "SLURM_JOB_ID" not in environment
