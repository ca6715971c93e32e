"""MPS packs of an ordinary user on a real GPU under a real Slurm: throughput, faults, times.

Figures are written and printed, and not judged: a test fails where a pack fails, where a figure is
missing, or where something of a pack is left behind. See run.sh for what lies where.
"""

from __future__ import annotations

import os
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.system.node_processes import (
    identify,
    is_alive,
    list_processes,
    read_uid,
)

from ..signalling import send_signal
from .gpu_node import HERE, GpuNode, running_gpu_node
from .trainings import Kind, compare, run_trainings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.timeout(300),
]

CULPRIT = 3
PACK_PATIENCE_S = 120.0
WORK_PATIENCE_S = 40.0
DRIVERS_OWN_MB = 16
RESULTS: dict[str, Any] = {}
FAULTS: dict[str, Any] = {}
TIMES: dict[str, Any] = {}


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    """One Slurm and one user for all of it."""
    with running_gpu_node() as found:
        yield found


# -- throughput ------------------------------------------------------------------------------------


def build_kinds(bed: GpuNode) -> dict[str, Kind]:
    scale = bed.scale
    work = ("--images", str(int(scale.window_s * scale.images_per_s)))
    # They begin within a few seconds of each other.
    sliced = ("--seconds", str(scale.timeslice_window_s + 8))
    files = ("--seconds", str(scale.files_window_s + 4), "--files", str(bed.user.home / "images"))
    kinds = [
        Kind("alone", "", scale.window_s, work),
        Kind("mps", "mps!", scale.window_s, work),
        Kind("timeslice", "timeslice", scale.timeslice_window_s, sliced),
        Kind("files-alone", "", scale.files_window_s, files),
        Kind("files-mps", "mps!", scale.files_window_s, files),
    ]
    return {kind.name: kind for kind in kinds}


@pytest.fixture(scope="module")
def images(bed: GpuNode) -> str:
    """Image files on disk, and their format."""
    target = bed.user.home / "images"
    argv = [sys.executable, str(HERE / "image_files.py"), str(target), str(bed.scale.files)]
    return bed.user.run(argv).stdout.strip()


@pytest.fixture(scope="module")
def warm(bed: GpuNode) -> None:
    """Libraries and kernels have been read from disk once, so that no row is measured cold."""
    program = [sys.executable, str(HERE / "train_small.py"), "--seconds", "1"]
    program += ["--device", "cpu", "--batch", "2"] if bed.is_simulated else []
    bed.user.run([*program, "--progress", str(bed.user.home / "warm")])


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", ["alone", "mps", "timeslice"])
def test_trainings_run_and_are_counted(bed: GpuNode, name: str) -> None:
    measure(bed, name)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", ["files-alone", "files-mps"])
def test_trainings_that_read_files_run_and_are_counted(
    bed: GpuNode, images: str, name: str
) -> None:
    measure(bed, name)
    RESULTS["runs"][name]["file_format"] = images
    bed.write("mps.json", RESULTS)


def measure(bed: GpuNode, name: str) -> None:
    kind = build_kinds(bed)[name]
    run = run_trainings(bed, kind)
    RESULTS.update(
        gpu={key: bed.gpu_before[key] for key in ("name", "uuid", "driver_version")},
        simulated=bed.is_simulated,
        user_id=bed.user.uid,
        cpus_of_each=bed.scale.cpus,
        arguments={**RESULTS.get("arguments", {}), name: kind.arguments},
    )
    runs = RESULTS.setdefault("runs", {})
    runs[name] = run
    RESULTS["ratios"] = compare(runs)
    bed.write("mps.json", RESULTS)
    ratios = {key: value for key, value in RESULTS["ratios"].items() if key.startswith(f"{name}_")}
    print(
        f"\n{name}: {run['images_per_s_sum']:.0f} images/s in {run['window_s']:.1f} s, "
        f"wall {run['wall_s']:.1f} s {ratios}"
    )
    assert run["losses_are_finite"]
    assert run["starts"] == [1] * run["members"]
    assert run["modes"] == [{"alone": "exclusive", "mps!": "mps"}.get(run["asked"], run["asked"])]
    if kind.share == "mps!" and not bed.is_simulated:
        assert run["mps_clients"] == run["members"]


# -- faults ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A pack of three of which one is hit by something.

    Args:
        name: What happens.
        kills: Which process the test kills; empty where member 3 fails by itself.
        options: More options of the pack.
        state: How member 3 ends.
        cause: Why, as `csub show --json` says.
        starts: How often members 1 and 2 are started, and how often member 3.
        restarted_daemons: How often the pack starts another daemon.
        may_hit_all: MPS may take it for a fault of all, and members 1 and 2 start once more then.
    """

    name: str
    kills: str = ""
    options: tuple[str, ...] = ()
    state: str = "FAILED"
    cause: str = ""
    starts: tuple[int, int] = (1, 1)
    restarted_daemons: int = 0
    may_hit_all: bool = False


CASES = (
    # To kill a client while the GPU computes for it is undefined (NVIDIA's manual of MPS).
    Case("sigkill", cause="signal", may_hit_all=True),
    # First with its share, then with two shares, at last with the whole GPU.
    Case("out-of-memory", cause="CUDA out of memory", starts=(1, 3)),
    Case("memory-limit", options=("--no-requeue",), cause="CUDA out of memory"),
    Case("device-assert", cause="CUDA fault"),
    Case("illegal-address", cause="MPS fault: culprit", starts=(2, 2)),
    Case(
        "daemon-killed",
        "daemon",
        state="COMPLETED",
        cause="success",
        starts=(2, 2),
        restarted_daemons=1,
    ),
    Case("server-killed", "server", state="COMPLETED", cause="success", starts=(2, 2)),
    Case(
        "keeper-killed",
        "keeper",
        state="COMPLETED",
        cause="success",
        starts=(2, 2),
        restarted_daemons=1,
    ),
)


def build_member(bed: GpuNode, kind: str, number: int, flags: Path) -> str:
    """The line of a script that works, or fails once members 1 and 2 are up."""
    if bed.is_simulated:
        return build_simulated_member(kind, number, flags)
    argv = [sys.executable, str(HERE / "fault_member.py"), kind, "--flags", str(flags)]
    if kind == "work":
        argv += ["--number", str(number), "--seconds", str(bed.scale.innocent_s)]
    else:
        argv += ["--wait-for", "1", "2"]
    return f"exec {shlex.join(argv)}"


def build_simulated_member(kind: str, number: int, flags: Path) -> str:
    """The same with the simulated GPU's own program."""
    if kind == "work":
        return f"(sleep 2; touch {flags}/up.{number}) & exec simgpu run --seconds 8"
    wait = f"while ! [ -e {flags}/up.1 -a -e {flags}/up.2 ]; do sleep 0.1; done; "
    return (
        wait
        + {
            "sigkill": "exec simgpu run --seconds 60 --fault sigkill-itself@1",
            "out-of-memory": "exec simgpu run --gpu-memory 400G",
            "memory-limit": "exec simgpu run --gpu-memory 20G --block 1G",
            "device-assert": "exec simgpu run --seconds 60 --fault device-assert@1",
            "illegal-address": "exec simgpu run --seconds 60 --fault illegal-address@1",
        }[kind]
    )


def submit_three(bed: GpuNode, name: str, kind: str, *options: str) -> str:
    """Submit two members that work and a third; the job id."""
    home = bed.user.home
    flags = home / f"{name}.flags"
    flags.mkdir()
    os.chown(flags, bed.user.uid, bed.user.gid)
    scripts = []
    for number in (1, 2, CULPRIT):
        is_third = number == CULPRIT
        body = build_member(bed, kind if is_third else "work", number, flags)
        limit = "4G" if is_third else "8G"
        directives = f"#CSUB --gpu-mem={limit}" if kind == "memory-limit" else ""
        scripts.append(bed.user.script(f"{name}.{number}.sh", body, directives=directives))
    return bed.submit(
        name, "pack", "--share=mps!", "--degree=3", "--gres=gpu:1", "--cpus-per-task=2",
        "--mem=6G", "--time=4", *options, *map(str, scripts),
    )  # fmt: skip


def wait_for_work(bed: GpuNode, name: str, job_id: str) -> None:
    """Wait until all three work on the GPU and are known as clients."""
    flags = bed.user.home / f"{name}.flags"
    deadline = time.monotonic() + WORK_PATIENCE_S
    while not (
        all((flags / f"up.{number}").exists() for number in (1, 2, CULPRIT))
        and all(row["is_mps_client"] for row in bed.user.members(job_id).values())
    ):
        if time.monotonic() > deadline:
            pytest.fail(f"the members do not work as clients\n{bed.user.describe(job_id)}")
        time.sleep(0.05)


def kill_part(bed: GpuNode, job_id: str, part: str) -> int:
    """Kill a process of a pack's MPS, or its runner, by SIGKILL; its pid."""
    pid = int(bed.wait_for_event(job_id, "mps_daemon")["pid"])
    if part == "server":
        pid = int(bed.wait_for_event(job_id, "mps_server", status="ACTIVE")["server"])
    parents = {process.id.pid: process.parent_pid for process in list_processes()}
    for _ in range({"daemon": 0, "server": 0, "keeper": 1, "runner": 2}[part]):
        pid = parents[pid]
    identity = identify(pid)
    assert identity is not None
    assert read_uid(pid) == bed.user.uid
    send_signal(identity, signal.SIGKILL)
    return pid


def record(bed: GpuNode, name: str, job_id: str, **more: Any) -> dict[str, Any]:
    """Write what came of a pack, before anything is judged."""
    rows = bed.user.members(job_id)
    left = bed.wait_until_nothing_is_left()
    events = bed.read_events(job_id)
    found = {
        "job_id": job_id,
        "members": {
            number: {
                key: row[key]
                for key in (
                    "state",
                    "cause",
                    "reason",
                    "evidence",
                    "starts",
                    "mode",
                    "is_mps_client",
                    "gpu_memory_limit_mb",
                    "exit_code",
                )
            }
            for number, row in rows.items()
        },
        "setup": bed.read_setup(job_id),
        "events": [
            event for event in events if event["event"].startswith(("mps_", "requeue", "runner_"))
        ],
        **left,
        **more,
    }
    FAULTS[name] = found
    bed.write("mps_faults.json", FAULTS)
    return found


def test_nothing_runs_on_when_a_packs_runner_was_killed(bed: GpuNode) -> None:
    name = "runner-killed"
    job_id = submit_three(bed, name, "work", "--requeue")
    wait_for_work(bed, name, job_id)
    daemon = identify(int(bed.wait_for_event(job_id, "mps_daemon")["pid"]))
    server = identify(int(bed.wait_for_event(job_id, "mps_server", status="ACTIVE")["server"]))
    kill_part(bed, job_id, "runner")
    # Slurm requeues the pack, and its members start again under another daemon.
    bed.finish(job_id, patience_s=PACK_PATIENCE_S)
    found = record(bed, name, job_id)
    print("\nrunner killed: " + "; ".join(_tell(n, row) for n, row in found["members"].items()))
    for row in found["members"].values():
        assert (row["state"], row["cause"], row["starts"]) == ("COMPLETED", "success", 2)
        assert "restarted: its runner was killed by signal 9" in row["evidence"]
        assert row["mode"] == "mps"
    assert (found["setup"]["attempt"], found["setup"]["mode"]) == (2, "mps")
    daemons = [event["pid"] for event in found["events"] if event["event"] == "mps_daemon"]
    assert len(daemons) == 2
    for process in (daemon, server):
        assert process is not None
        assert not is_alive(process)
    assert found["left"] == {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_members_fault_is_nobody_elses(bed: GpuNode, case: Case) -> None:
    job_id = submit_three(bed, case.name, "work" if case.kills else case.name, *case.options)
    if case.kills:
        wait_for_work(bed, case.name, job_id)
        kill_part(bed, job_id, case.kills)
    bed.finish(job_id, patience_s=PACK_PATIENCE_S)
    found = record(bed, case.name, job_id)
    members = found["members"]
    print(f"\n{case.name}: " + "; ".join(_tell(n, row) for n, row in members.items()))
    for number in (1, 2):
        assert members[number]["state"] == "COMPLETED"
        assert members[number]["cause"] == "success"
        starts = members[number]["starts"]
        hit = [word for word in members[number]["evidence"] if word.startswith("MPS server: ")]
        assert starts == case.starts[0] + (case.may_hit_all and bool(hit))
    third = members[CULPRIT]
    assert (third["state"], third["cause"], third["starts"]) == (
        case.state,
        case.cause,
        case.starts[1],
    )
    if case.state == "FAILED" and case.cause != "signal":
        assert third["evidence"]
    if case.cause == "MPS fault: culprit":
        assert all(f"{job_id}/{CULPRIT}" in str(members[number]["evidence"]) for number in (1, 2))
    assert found["setup"]["mode"] == "mps"
    assert found["setup"]["restarts"] == case.restarted_daemons
    assert found["left"] == {}


def _tell(number: int, row: dict[str, Any]) -> str:
    return f"{number} {row['state']} ({row['cause']}) after {row['starts']} starts"


def test_all_packs_together_have_left_nothing(bed: GpuNode) -> None:
    assert bed.find_leftovers() == {}


# -- times and state -------------------------------------------------------------------------------


def test_start_and_stop_are_timed_over_packs(bed: GpuNode) -> None:
    keys = ("control_ms", "active_ms", "stop_ms", "restarts")
    rows: list[dict[str, Any]] = []
    for name, job_id in bed.jobs.items():
        setup = bed.read_setup(job_id)
        if setup.get("mode") == "mps":
            rows.append({"pack": name, **{key: setup.get(key) for key in keys}})
    summary = {}
    for key, goal in (("control_ms", 150), ("active_ms", None), ("stop_ms", 300)):
        values = [row[key] for row in rows if row[key] is not None]
        assert len(values) >= min(5, len(rows))
        summary[key] = {
            "goal": goal,
            "median": statistics.median(values),
            "lowest": min(values),
            "highest": max(values),
            "packs": len(values),
        }
    TIMES.update(summary=summary, packs=rows)
    bed.write("mps_times.json", TIMES)
    print(f"\n{summary}")
    assert len(rows) >= 5


def test_the_gpu_is_as_it_was(bed: GpuNode) -> None:
    """Settings and processes; GPU memory but for what the driver itself keeps or gives back."""
    before = bed.gpu_before
    after: dict[str, Any] = {}

    def is_back() -> bool:
        after.update(bed.read_gpu_state())
        differs = {key for key in before if before[key] != after[key]} - {"gpu_memory_used_mb"}
        change_mb = after["gpu_memory_used_mb"] - before["gpu_memory_used_mb"]
        return not differs and change_mb <= DRIVERS_OWN_MB

    try:
        bed.wait(is_back, f"a GPU as before: {before}", 20.0)
    finally:
        TIMES["gpu"] = {"before": before, "after": after}
        bed.write("mps_times.json", TIMES)
