"""Clients of MPS with namespaces of their own, and jobs with a /tmp and a /dev/shm of their own."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_colloc.host.system.node_processes import list_processes, read_environment
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

from ..cluster.hooks import read_prepared_setup
from .gpu_node import GpuNode
from .hook_rounds import open_control
from .prepared_packs import (
    build_client,
    end_clients,
    read_json,
    submit_clients,
    wait_for_clients,
    wait_for_epilogs,
)

MARK = "GPU_SUITE_CLIENT"
"""A variable by which clients are found from outside, whatever namespaces they live in."""

PATIENCE_S = 90.0
_CONTAINER = "AutoBasePath=true\nBasePath={base}\n"
# What each trial gives the client of its own.
TRIALS = {
    "nothing": ([], ""),
    "/dev/shm": (["--mount"], "mount -t tmpfs tmpfs /dev/shm && "),
    "/dev/shm and /tmp": (
        ["--mount"],
        "mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs /tmp && ",
    ),
    "pids": (["--pid", "--fork", "--kill-child", "--mount-proc"], ""),
    "ipc": (["--ipc"], ""),
}
TRIAL_S = 15.0
MEMBERS = 3
"""Of the pack with a /dev/shm of its own: 200 over 3 percent of the multiprocessors each."""


@contextlib.contextmanager
def running_client(
    bed: GpuNode, pipe_directory: str, name: str, mark: str, seconds: float = TRIAL_S
) -> Iterator[dict[str, Any]]:
    """A client with namespaces of its own, at work; how it ended is added afterwards.

    Args:
        bed: Where.
        pipe_directory: Whose client it is to be.
        name: Which of TRIALS.
        mark: The value of MARK by which it is found.
        seconds: How long it works at most.
    """
    flags, mounts = TRIALS[name]
    folder = bed.user.home / mark
    folder.mkdir()
    os.chown(folder, bed.user.uid, bed.user.gid)
    client = build_client(bed, folder / "up", folder / "end", seconds)
    become = f"setpriv --reuid={bed.user.uid} --regid={bed.user.gid} --clear-groups"
    inner = f"{mounts}exec {become} sh -c {shlex.quote(client)}"
    begin_s = time.monotonic()
    found: dict[str, Any] = {}
    with subprocess.Popen(
        ["unshare", *flags, "sh", "-c", inner] if flags else ["sh", "-c", inner],
        env={
            **bed.user.environment,
            "CUDA_MPS_PIPE_DIRECTORY": pipe_directory,
            "CUDA_VISIBLE_DEVICES": bed.gpu_before["uuid"],
            # It halves the multiprocessors that a client of MPS sees, and nobody else's.
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
            MARK: mark,
        },
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        while not (said := read_json(folder / "up")) and process.poll() is None:
            if time.monotonic() > begin_s + TRIAL_S:
                break
            time.sleep(0.05)
        found["client"] = said
        try:
            yield found
        finally:
            (folder / "end").touch()
            try:
                printed = process.communicate(timeout=TRIAL_S)[0]
            except subprocess.TimeoutExpired:
                # It may hang in the driver, below a shell.
                os.killpg(process.pid, signal.SIGKILL)
                printed = process.communicate()[0]
            found |= {"exit": process.returncode, "printed": printed[-2000:]}


def try_client(bed: GpuNode, pipe_directory: str, name: str) -> dict[str, Any]:
    """Start a client with namespaces of its own against a daemon outside; what came of it."""
    mark = f"trial-{list(TRIALS).index(name)}"
    with running_client(bed, pipe_directory, name, mark) as found:
        seen = look_from_outside(bed, pipe_directory, mark)
    return {**found, **seen}


def find_marked(mark: str) -> list[dict[str, Any]]:
    """Processes with that value of MARK: their pids from outside to inside, and their names."""
    found = []
    for process in list_processes():
        pid = process.id.pid
        if process.has_ended or read_environment(pid).get(MARK) != mark:
            continue
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            pids = re.search(r"^NSpid:\s*(.*)$", status, re.MULTILINE)
            inside = [int(word) for word in pids[1].split()] if pids else [pid]
            found.append({"pids": inside, "name": process.name})
    return found


def look_from_outside(bed: GpuNode, pipe_directory: str, mark: str) -> dict[str, Any]:
    """How daemon and NVML name a client, and who it is."""
    control = open_control(bed, pipe_directory)
    gpu = bed.read_nvml()
    servers = control.read_servers() or ()
    clients = {str(server): control.read_clients(server) for server in servers}
    marked = find_marked(mark)
    outer = {process["pids"][0] for process in marked}
    inner = {process["pids"][-1] for process in marked}
    listed = {pid for pids in clients.values() for pid in pids or ()}
    shown = {process["pid"] for process in gpu["processes"] or []}
    return {
        "processes": marked,
        "get_client_list": clients,
        "ps": control.ask("ps").stdout.splitlines(),
        "nvml_processes": gpu["processes"],
        "nvml_mps_processes": gpu["mps_processes"],
        # One that has just ended may be listed a moment longer.
        "is_listed": bool(listed & (outer | inner)),
        "daemon_names_it_by": name_side(listed, outer, inner),
        "nvml_names_it_by": name_side(shown, outer, inner),
    }


def name_side(pids: set[int], outer: set[int], inner: set[int]) -> str:
    """Whether some pids are those that a process has outside or inside its namespace; pure."""
    if pids & outer:
        return "the pid outside and inside" if pids & outer & inner else "the pid outside"
    return "the pid inside" if pids & inner else "neither"


@contextlib.contextmanager
def sandbox_with_containers(**settings: Any) -> Iterator[Sandbox]:
    """A sandbox with job_container/tmpfs, made as `running_sandbox` makes others."""
    directory = Path(tempfile.mkdtemp(prefix="cs", dir="/var/tmp"))
    directory.chmod(0o755)
    sandbox = Sandbox(directory / "c")
    for path in (sandbox.directory, sandbox.layout.etc):
        path.mkdir(mode=0o755)
    # slurmd reads it next to slurm.conf when it starts.
    containers = directory / "containers"
    containers.mkdir(mode=0o755)
    text = _CONTAINER.format(base=containers)
    (sandbox.layout.etc / "job_container.conf").write_text(text)
    lines = ("JobContainerType=job_container/tmpfs", "PrologFlags=Alloc,Contain")
    try:
        sandbox.up(SandboxSpec(sandbox.directory, **settings, extra_conf=lines))
        yield sandbox
    finally:
        sandbox.down(purge=True)
        # What slurmd has mounted there outlives it.
        for mount in reversed(list_mounts(directory)):
            subprocess.run(["umount", mount], check=False, capture_output=True)
        if not list_mounts(directory):
            shutil.rmtree(directory, ignore_errors=True)


def list_mounts(below: Path) -> list[str]:
    """Where something is mounted below a directory."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return [path for line in mounts if (path := line.split()[1]).startswith(f"{below}/")]


def run_in_container(bed: GpuNode) -> dict[str, Any]:
    """Run a pack whose members have a /dev/shm that the node's daemon does not have."""
    name = "containers"
    first = "stat -c 'shm=%d' /dev/shm"
    job_id = submit_clients(bed, name, MEMBERS, first=first)
    wait_for_clients(bed, job_id)
    ups = [bed.user.home / name / f"up.{number}" for number in range(1, MEMBERS + 1)]
    bed.wait(lambda: all(up.exists() for up in ups), f"members of {job_id} have said so")
    prepared = read_prepared_setup(bed.sandbox, job_id)
    seen: dict[str, Any] = {}
    if prepared["daemons"]:
        seen = look_from_outside(bed, prepared["daemons"][0]["pipe_directory"], name)
    shown = bed.user.csub("show", job_id).stdout
    end_clients(bed, name)
    rows = bed.finish(job_id, patience_s=PATIENCE_S)
    audit = wait_for_epilogs(bed, job_id)
    outputs = {number: bed.user.output(f"slurm-{job_id}_{number}.out") for number in rows}
    setup = bed.read_setup(job_id)
    return {
        "clients": [read_json(up) for up in ups],
        "seen": seen,
        "states": sorted({row["state"] for row in rows.values()}),
        "outputs": outputs,
        "shown": shown.splitlines(),
        "prepared": prepared,
        "setup": setup,
        "audit": audit,
        "shm_outside": Path("/dev/shm").stat().st_dev,
    }
