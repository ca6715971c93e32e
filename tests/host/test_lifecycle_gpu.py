"""Root's hooks where NVML, the daemon or its clients do not behave."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.host.mps.mps_control import read_peer
from slurm_colloc_lab.simgpu.install import simulation_environment

from .hook_node import (
    COMMENT,
    DEFAULT,
    EXCLUSIVE_PROCESS,
    NOBODY,
    NODE,
    PATIENCE_S,
    PROHIBITED,
    HookNode,
    check_clean,
    set_mode,
)

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("absent", "NVML cannot be used"),
        ("no-driver", "NVML cannot be used"),
        ("lie=uuid", "CUDA finds none of the GPUs"),
        ("hang=30", "no answer within 4 s"),
    ],
)
def test_without_a_true_word_of_nvml_nothing_is_prepared(
    bed: HookNode, fault: str, words: str
) -> None:
    before = bed.snapshot()
    bed.fail_nvml(fault)
    ended = bed.prolog()
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert words in bed.setup()["reason"]
    assert bed.list_programs() == []
    assert bed.epilog().status == 0
    bed.fail_nvml()
    assert bed.snapshot() == before
    check_clean(bed)


@pytest.mark.parametrize("fault", ["absent", "hang=30", "lie=uuid"])
def test_an_epilog_that_cannot_ask_nvml_undoes_the_rest_and_says_so(
    bed: HookNode, fault: str
) -> None:
    bed.prolog()
    bed.fail_nvml(fault)
    ended = bed.epilog()
    assert ended.status == 0
    assert any("was not checked" in note for note in ended.audit["notes"])
    check_clean(bed)


def test_the_compute_mode_is_set_back_or_the_node_is_not_fit(bed: HookNode) -> None:
    bed.write_policy(exclusive_process=True)
    before = bed.snapshot()
    bed.prolog()
    assert [gpu.compute_mode for gpu in bed.node.read_gpus()] == [EXCLUSIVE_PROCESS, DEFAULT]
    assert bed.setup()["compute_mode"] == "EXCLUSIVE_PROCESS"
    bed.fail_nvml("absent")
    ended = bed.epilog()
    assert ended.status == 1
    assert "the compute mode of GPU-" in ended.audit["outcome"]
    assert bed.list_programs() == []
    # Nothing is forgotten: the next epilog, prolog or recover goes on.
    assert bed.checkpoint_path().exists()
    bed.fail_nvml()
    told = bed.command("recover")
    assert (told["status"], told["jobs"][0]["undone"]) == (0, True)
    assert bed.snapshot() == before
    check_clean(bed)


def test_a_compute_mode_that_somebody_else_has_set_is_left(bed: HookNode) -> None:
    bed.write_policy(exclusive_process=True)
    bed.prolog()
    set_mode(bed, 0, PROHIBITED)
    ended = bed.epilog()
    assert ended.status == 0
    assert any("somebody else has set" in note for note in ended.audit["notes"])
    assert bed.node.read_gpus()[0].compute_mode == PROHIBITED
    check_clean(bed)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_daemon_that_is_dead_or_hangs_is_undone_all_the_same(bed: HookNode, number: int) -> None:
    before = bed.snapshot()
    bed.prolog()
    os.kill(bed.peer().pid, number)
    ended = bed.epilog()
    assert ended.status == 0, ended.audit
    assert bed.snapshot() == before
    check_clean(bed)


def start_client(bed: HookNode, job_id: str = "11") -> subprocess.Popen[bytes]:
    """A process of the job's that uses the GPU through its daemon, and is seen to."""
    environment = simulation_environment(bed.simulation, {"PATH": "/usr/bin:/bin"})
    client = subprocess.Popen(
        [str(bed.simulation / "bin" / "simgpu"), "run", "--seconds", "600"],
        env={
            **environment,
            "SLURMD_NODENAME": NODE,
            "CUDA_MPS_PIPE_DIRECTORY": str(bed.run / job_id / "0" / "p"),
            "CUDA_VISIBLE_DEVICES": bed.setup(job_id)["gpus"][0],
        },
        stdin=subprocess.DEVNULL,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    deadline = time.monotonic() + PATIENCE_S
    while not any(p.pid == client.pid and p.type == "M+C" for p in bed.node.read_processes()):
        assert client.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return client


def test_a_client_that_outlived_its_job_is_ended(bed: HookNode) -> None:
    before = bed.snapshot()
    bed.prolog()
    client = start_client(bed)
    try:
        assert bed.epilog().status == 0
        assert client.wait(PATIENCE_S) != 0
    finally:
        client.kill()
        client.wait()
    assert bed.snapshot() == before
    check_clean(bed)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process in state D for as long as this lasts."""
    if not (FREEZER / "tasks").exists():
        pytest.skip("needs the freezer of cgroup v1, where a process sits in state D")
    group = FREEZER / f"colloc-test-{pid}"
    group.mkdir()
    try:
        (group / "tasks").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        for _ in range(500):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.01)


def test_a_daemon_that_cannot_be_killed_makes_the_node_unfit_until_it_has_gone(
    bed: HookNode,
) -> None:
    before = bed.snapshot()
    bed.prolog()
    daemon = bed.peer().pid
    with frozen(daemon):
        ended = bed.epilog()
        assert ended.status == 1
        assert f"process {daemon} (nvidia-cuda-mps) is still there" in ended.audit["outcome"]
        assert bed.checkpoint_path().exists()
        # The next job of ours there is told, and starts without.
        told = bed.prolog("12")
        assert told.status == 0
        assert bed.setup("12")["mode"] == ""
        assert bed.epilog("12").status == 0
        assert bed.epilog().status == 1
    assert bed.epilog().status == 0
    assert bed.snapshot() == before
    check_clean(bed)


def test_a_process_that_was_sent_no_signal_never_makes_the_node_unfit(bed: HookNode) -> None:
    before = bed.snapshot()
    bed.prolog()
    client = start_client(bed)
    try:
        # In state D and on the job's GPU, but Slurm's to end.
        with frozen(client.pid):
            ended = bed.epilog()
            assert (ended.status, ended.audit["outcome"]) == (0, "")
            assert any(f"process {client.pid}" in note for note in ended.audit["notes"])
    finally:
        client.kill()
        client.wait(PATIENCE_S)
    assert bed.snapshot() == before
    check_clean(bed)


def test_a_user_who_keeps_the_daemon_busy_does_not_keep_the_epilog(bed: HookNode) -> None:
    bed.prolog()
    pipe = str(bed.run / "11" / "0" / "p")
    environment = simulation_environment(bed.simulation, {"PATH": "/usr/bin:/bin"})
    busy = subprocess.Popen(
        [str(bed.simulation / "bin" / "nvidia-cuda-mps-control")],
        env={**environment, "SLURMD_NODENAME": NODE, "CUDA_MPS_PIPE_DIRECTORY": pipe},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    try:
        time.sleep(0.5)
        assert read_peer(pipe) is not None
        assert bed.epilog().status == 0
        check_clean(bed)
    finally:
        busy.kill()
        busy.wait()
        assert busy.stdin is not None
        busy.stdin.close()


def test_a_hook_that_runs_out_of_its_time_lets_the_job_start(bed: HookNode) -> None:
    bed.write_policy(deadline_s=2.5, stop_s=2.0)
    bed.fail_nvml("hang=30")
    ended = bed.prolog()
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert "out of its time" in bed.setup()["reason"]
    bed.fail_nvml()
    assert bed.epilog().status == 0
    check_clean(bed)


def test_only_root_and_slurmd_may_call_it(bed: HookNode) -> None:
    ended = subprocess.run(
        bed.argv("prolog"),
        env=bed.environment("11"),
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    ended = subprocess.run(
        bed.argv("epilog"), env={}, capture_output=True, text=True, cwd="/", check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert COMMENT not in ended.stderr
