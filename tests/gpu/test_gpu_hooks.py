"""Root's prolog and epilog on a real GPU: what they cost, what they leave, and whom they serve.

Figures are written and printed, and not judged. See run.sh for what lies where. With
CSUB_GPU_SIMULATED=1 all of it runs on the sandbox's simulated GPU, and figures mean nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.mps.daemon_limits import DaemonLimits, make_limited_groups
from slurm_colloc.host.system.control_groups import enter_groups, read_hierarchies, remove_groups
from slurm_colloc.host.system.node_processes import identify, is_alive

from ..cluster.hooks import read_audit
from ..cluster.mps import write_settings
from .driver_use import held_nvml, list_driver_users
from .gpu_node import GpuNode, read_number, running_gpu_node
from .hook_rounds import PROVED, playing_hooks, render_summary
from .namespaces import TRIAL_S, TRIALS, running_client, try_client
from .prepared_packs import (
    CASES,
    Case,
    disturb,
    end_clients,
    find_daemon,
    find_server,
    keep_result,
    list_entries,
    submit_clients,
    wait_for_clients,
    wait_for_epilogs,
    wait_until_nothing_is_left,
)
from .trainings import Kind, run_trainings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.timeout(240),
]

ROUNDS = int(read_number("CSUB_GPU_HOOK_ROUNDS", 10))
WINDOW_S = read_number("CSUB_GPU_HOOK_WINDOW_S", 12)
# One between two, so that a machine that slows down bit by bit slows both alike.
ORDER = ("node", "own", "node")
PATIENCE_S = 90.0
SETTLING_S = 2.0


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    """One Slurm whose hooks prepare MPS, and one user, for all of it."""
    with running_gpu_node(hooks=True) as found:
        keep_result(found, found.gpu_before, "gpu_before")
        keep_result(found, found.is_simulated, "simulated")
        yield found


@pytest.fixture(scope="module")
def before() -> set[str]:
    """What lies in shared directories without any pack."""
    return list_entries()


# -- times -----------------------------------------------------------------------------------------


def test_prolog_and_epilog_are_timed_with_nvml_cold_and_warm(bed: GpuNode) -> None:
    with playing_hooks(bed) as rounds:
        # The first fills the file cache.
        rounds.measure("first", 0)
        users = list_driver_users()
        for number in range(1, ROUNDS + 1):
            rounds.measure("cold", number)
            with held_nvml(bed):
                rounds.measure("warm", number)
        rounds.write(bed.out / "hooks.csv")
        summary = rounds.summarize()
    keep_result(
        bed,
        {
            "goals_ms": {PROVED: 150, "epilog: whole": 300},
            "persistence_mode": bed.gpu_before["settings"].get("persistence_mode"),
            "driver_users_when_cold": users,
            "summary": summary,
        },
        "times",
    )
    print(f"\n{render_summary(summary)}", end="")
    for kind in ("cold", "warm"):
        assert summary[kind][PROVED]["rounds"] == ROUNDS
        assert summary[kind]["epilog: whole"]["rounds"] == ROUNDS


def read_confinement(daemon: int, server: int) -> dict[str, Any]:
    """What root's daemon and its server use of what their control groups leave them."""
    found: dict[str, Any] = {}
    for name, pid in (("daemon", daemon), ("server", server)):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        found[name] = {
            key: status[key].strip()
            for key in ("Uid", "Gid", "Groups", "Threads", "VmRSS", "RssAnon", "RssShmem")
            if key in status
        }
    for line in Path(f"/proc/{daemon}/cgroup").read_text().splitlines():
        path = line.split(":", 2)[-1]
        if "/slurm_colloc/" not in path:
            continue
        for hierarchy in read_hierarchies():
            for name in ("memory.peak", "memory.current", "memory.usage_in_bytes", "pids.current"):
                place = Path(hierarchy.mount + path, name)
                if place.exists():
                    found[name] = place.read_text().strip()
    return found


# -- nothing is left -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_is_left_after(bed: GpuNode, before: set[str], case: Case) -> None:
    job_id = submit_clients(bed, case.name)
    wait_for_clients(bed, job_id)
    setup = bed.read_setup(job_id)
    assert setup["by"] == "prolog", setup["notes"]
    processes = [identify(find(bed, job_id)) for find in (find_daemon, find_server)]
    confined = read_confinement(find_daemon(bed, job_id), find_server(bed, job_id))
    disturb(bed, case.name, job_id)
    if case.name == "slurmd-restarted":
        # Time for a slurmd that ends what it finds to do so.
        time.sleep(SETTLING_S)
        assert all(process is not None and is_alive(process) for process in processes)
    if case.state == "COMPLETED":
        wait_for_clients(bed, job_id, case.starts)
        end_clients(bed, case.name)
    rows = bed.finish(job_id, patience_s=PATIENCE_S)
    audit = wait_for_epilogs(bed, job_id)
    after = wait_until_nothing_is_left(bed, before)
    gpu = bed.read_nvml()
    setup = bed.read_setup(job_id)
    found = {
        "members": {
            number: {key: row[key] for key in ("state", "cause", "reason", "starts", "evidence")}
            for number, row in rows.items()
        },
        "setup": setup,
        "audit": audit,
        "gpu": {key: gpu[key] for key in ("compute_mode", "mig_enabled", "processes")},
        "confinement": confined,
        **after,
    }
    keep_result(bed, found, "ends", case.name)
    print(f"\n{case.name}: {confined}", end="")
    hooks = [f"{line['hook']} {line['ms']:.0f} ms" for line in audit]
    print(f"\n{case.name}: {', '.join(hooks)}; gone after {after['gone_after_s']} s", end="")
    assert after["left"] == {}
    assert {row["state"] for row in rows.values()} == {case.state}
    if case.state == "COMPLETED":
        assert {row["starts"] for row in rows.values()} == {case.starts}
        assert setup["by"] == case.by
    assert all(line["exit"] == 0 for line in audit)
    for name in ("compute_mode", "mig_enabled"):
        assert gpu[name] == bed.gpu_before[name]


def test_devices_of_other_gpus_are_denied_on_this_machines_cgroups(bed: GpuNode) -> None:
    """The job's GPU can be opened in a daemon's group and no other one: here none is the job's."""
    label = f"gpu-suite-{os.getpid()}"
    device = f"/dev/nvidia{bed.read_nvml()['minor_number']}"
    found: dict[str, Any] = {"hierarchies": [str(one) for one in read_hierarchies()]}
    for name, minors in (("its own", (bed.read_nvml()["minor_number"],)), ("another", (250,))):
        made = make_limited_groups(read_hierarchies(), label, DaemonLimits(minors, 512, 64, 1))
        try:
            look = f"import os; os.open({device!r}, os.O_RDWR)"
            ended = subprocess.run(
                [sys.executable, "-I", "-S", "-c", look],
                preexec_fn=partial(enter_groups, made.paths),
                capture_output=True,
                text=True,
                check=False,
            )
            found[name] = {
                "limits": sorted(made.limits),
                "refused": made.refused,
                "opens": ended.returncode == 0,
                "words": ended.stderr[-200:],
            }
        finally:
            remove_groups(made.paths)
    keep_result(bed, found, "devices")
    print(f"\n{found}", end="")
    if "devices" in found["another"]["limits"]:
        assert (found["its own"]["opens"], found["another"]["opens"]) == (True, False)


# -- what users and administrators see -------------------------------------------------------------


def write_checks(bed: GpuNode, title: str, text: str) -> None:
    """Keep what a command printed."""
    with (bed.out / "checks.txt").open("a") as file:
        file.write(f"== {title}\n{text}\n")


def test_the_doctor_finds_nothing_wrong(bed: GpuNode) -> None:
    ended = bed.user.csub("doctor", check=False)
    write_checks(bed, f"csub doctor: {ended.returncode}", ended.stdout + ended.stderr)
    asked = bed.user.csub("doctor", "--json", check=False)
    write_checks(bed, f"csub doctor --json: {asked.returncode}", asked.stdout + asked.stderr)
    assert "Traceback" not in ended.stdout + ended.stderr + asked.stderr
    levels = {each["check"]: each["level"] for each in json.loads(asked.stdout)["findings"]}
    keep_result(bed, levels, "doctor")
    print(f"\n{levels}", end="")
    assert (ended.returncode, asked.returncode) == (0, 0)
    # Some, such as cgroups, depend on the machine.
    assert set(levels.values()) <= {"green", "yellow"}
    assert levels["hooks"] == levels["mps"] == levels["nvml"] == "green"


def test_the_hooks_of_an_installation_are_verified(bed: GpuNode) -> None:
    base = Path("/var/tmp") / f"gv{os.getpid()}"
    launcher = base / "opt" / "slurm_colloc" / "bin" / "python"
    launcher.parent.mkdir(parents=True)
    base.chmod(0o755)
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    launcher.chmod(0o755)
    environment = {**os.environ, **bed.sandbox.env(), "SLURM_COLLOC_BASE": str(base)}
    state = bed.read_nvml()
    for words in (("install-hooks", "--node"), ("verify",), ("uninstall", "--node")):
        ended = subprocess.run(
            [sys.executable, "-m", "slurm_colloc", "admin", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        text = ended.stdout + ended.stderr
        write_checks(bed, f"csub admin {' '.join(words)}: {ended.returncode}", text)
        if words[0] == "verify":
            print(f"\n{text}", end="")
        assert "Traceback" not in text
        assert "FAILED" not in text
        assert ended.returncode == 0, text
    after = bed.read_nvml()
    assert (after["compute_mode"], after["processes"]) == (state["compute_mode"], [])
    subprocess.run(["rm", "-rf", str(base)], check=True)


# -- namespaces ------------------------------------------------------------------------------------


def test_clients_in_namespaces_of_their_own_are_tried_against_a_daemon_outside(
    bed: GpuNode,
) -> None:
    found = {}
    with playing_hooks(bed) as rounds:
        job_id, _ = rounds.begin_job()
        rounds.wait_for_active(job_id)
        pipe = rounds.pipe_directory(job_id)
        # Each works next to one that shares all namespaces with the daemon.
        with running_client(bed, pipe, "nothing", "companion", len(TRIALS) * TRIAL_S) as companion:
            for name in TRIALS:
                told = found[name] = try_client(bed, pipe, name)
                keep_result(bed, told, "namespaces", name)
                print(
                    f"\nown {name}: works {told['exit'] == 0}, client of the daemon "
                    f"{told['is_listed']}, multiprocessors "
                    f"{told['client'].get('multiprocessors')}, "
                    f"daemon: {told['daemon_names_it_by']}, NVML: {told['nvml_names_it_by']}, "
                    f"clients {told['get_client_list']}",
                    end="",
                )
        keep_result(bed, companion, "namespaces", "companion")
        rounds.end_job(job_id)
    assert companion["exit"] == 0, companion["printed"]
    # A runner lets members with a /dev/shm of their own use the node's daemon.
    for name in ("nothing", "/dev/shm", "/dev/shm and /tmp"):
        assert found[name]["exit"] == 0, found[name]["printed"]
        assert found[name]["is_listed"]


# -- throughput ------------------------------------------------------------------------------------


def test_trainings_under_the_nodes_daemon_and_the_packs_own_are_counted(bed: GpuNode) -> None:
    runs: dict[str, dict[str, Any]] = {}
    try:
        for number, by in enumerate(ORDER, start=1):
            write_settings(bed.user, hooks="auto" if by == "node" else "never")
            # They begin within a few seconds of each other.
            work = ("--seconds", str(WINDOW_S + 8))
            run = run_trainings(bed, Kind(f"{number}-{by}", "mps!", WINDOW_S, work))
            run["by"] = bed.read_setup(run["job_id"])["by"]
            runs[f"{number}-{by}"] = run
            keep_result(bed, run, "throughput", "runs", f"{number}-{by}")
            print(f"\n{number}-{by}: {run['images_per_s_sum']:.0f} images/s", end="")
            assert run["by"] == {"node": "prolog", "own": "runner"}[by]
            assert run["losses_are_finite"]
            assert run["starts"] == [1] * run["members"]
    finally:
        write_settings(bed.user)
    rates = {
        by: [run["images_per_s_sum"] for name, run in runs.items() if name.endswith(by)]
        for by in ("node", "own")
    }
    ratio = round(statistics.mean(rates["node"]) / statistics.mean(rates["own"]), 4)
    keep_result(bed, {"node_over_own": ratio, "rates": rates}, "throughput", "result")
    print(f"\nnode's daemon over pack's own: {ratio} {rates}", end="")


# -- at the end ------------------------------------------------------------------------------------


def test_all_hooks_together_have_left_nothing_and_the_gpu_as_it_was(
    bed: GpuNode, before: set[str]
) -> None:
    after = wait_until_nothing_is_left(bed, before)
    gpu = bed.read_gpu_state()
    audit = read_audit(bed.sandbox)
    failed = [line for line in audit if line["exit"]]
    # Those that slurmd has run itself, which nobody traces.
    times_ms = {
        hook: [line["ms"] for line in audit if line["hook"] == hook]
        for hook in ("prolog", "epilog")
    }
    found = {**after, "gpu": gpu, "failed_hooks": failed, "times_ms": times_ms}
    keep_result(bed, found, "at_the_end")
    assert after["left"] == {}
    assert failed == []
    changed = {key for key in gpu if gpu[key] != bed.gpu_before[key]} - {"gpu_memory_used_mb"}
    assert changed == set()
