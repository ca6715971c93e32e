"""Packs on a node whose hooks prepare MPS: what they are made of, and what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_colloc.host.mps.mps_control import read_peer
from slurm_colloc.host.system.node_processes import (
    list_processes,
)

from ..cluster.hooks import list_prepared, read_audit, run_directory
from ..cluster.mps import kill
from ..sessions import list_session
from .gpu_node import GONE_WITHIN_S, HERE, GpuNode

OPTIONS = ("--gres=gpu:1", "--cpus-per-task=1", "--mem=2G", "--time=5")
SHARE = ("--share=mps!", "--requeue")
# Where daemons, hooks and drivers leave things; other programs write there too.
_PLACES = ("/run", "/tmp", "/dev/shm", "/var/tmp")
_OURS = re.compile(r"csub|colloc|mps|nvidia|cuda", re.IGNORECASE)
_CLIENT_S = 240.0


# -- programs of members ---------------------------------------------------------------------------


def build_client(bed: GpuNode, up: Path, until: Path, seconds: float = _CLIENT_S) -> str:
    """A command that uses the GPU, says so in `up`, and ends once `until` is there."""
    if not bed.is_simulated:
        argv = [sys.executable, str(HERE / "cuda_client.py"), f"--seconds={seconds}"]
        return shlex.join([*argv, "--up", str(up), "--until", str(until)])
    told = f'echo "{{\\"pid\\": $pid, \\"simulated\\": true}}" >{up}.draft && mv {up}.draft {up}'
    return (
        f"simgpu run --seconds {seconds:g} & pid=$!; (sleep 2; {told}) & "
        f"until [ -e {until} ]; do kill -0 $pid || exit 1; sleep 0.1; done; kill $pid; true"
    )


def submit_clients(bed: GpuNode, name: str, count: int = 2, first: str = "") -> str:
    """Submit a pack of clients, which end once `end_clients` says so; the job id.

    Args:
        bed: Where.
        name: What the pack is called in the results.
        count: How many members it has.
        first: What the first member runs before.
    """
    folder = bed.user.home / name
    folder.mkdir()
    os.chown(folder, bed.user.uid, bed.user.gid)
    scripts = []
    for number in range(1, count + 1):
        client = build_client(bed, folder / f"up.{number}", folder / "end")
        lines = ['echo "pipe=$CUDA_MPS_PIPE_DIRECTORY"', first if number == 1 else "", client]
        scripts.append(bed.user.script(f"{name}.{number}.sh", "\n".join(lines)))
    return bed.submit(name, "pack", *SHARE, f"--degree={count}", *OPTIONS, *map(str, scripts))


def end_clients(bed: GpuNode, name: str) -> None:
    """Let the clients of a pack come to their end."""
    (bed.user.home / name / "end").touch()


def wait_for_clients(bed: GpuNode, job_id: str, starts: int = 1) -> dict[int, dict[str, Any]]:
    """Wait until all members work as clients, at their so manieth start; their rows."""
    rows: dict[int, dict[str, Any]] = {}

    def look() -> bool:
        rows.update(bed.user.members(job_id))
        return all(
            row["state"] == "RUNNING" and row["is_mps_client"] and row["starts"] == starts
            for row in rows.values()
        )

    try:
        bed.wait(look, f"members of {job_id} are clients at start {starts}", 90.0)
    except BaseException as error:
        error.add_note(bed.user.describe(job_id))
        raise
    return rows


# -- processes -------------------------------------------------------------------------------------


def find_daemon(bed: GpuNode, job_id: str) -> int:
    """The daemon that the prolog has started for a job."""
    peer = read_peer(str(run_directory(bed.sandbox) / job_id / "0" / "p"))
    assert peer is not None
    assert peer.uid == bed.user.uid
    return peer.pid


def find_server(bed: GpuNode, job_id: str) -> int:
    """The server of that daemon: it lives in the daemon's session."""
    daemon = find_daemon(bed, job_id)
    found: list[int] = bed.wait(
        lambda: [p.id.pid for p in list_session(daemon) if p.id.pid != daemon],
        f"the daemon of {job_id} has a server",
    )
    return found[0]


def find_runner(bed: GpuNode, job_id: str) -> int:
    """The runner of a pack; its command line proves that it is the one."""
    pack = bed.find_pack(job_id)
    pid = int(json.loads((pack / "runner.json").read_text())["pid"])
    assert os.fsencode(pack) in Path(f"/proc/{pid}/cmdline").read_bytes()
    return pid


# -- what happens to packs ------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What happens to a pack of two clients under the node's daemon.

    Args:
        name: What.
        state: How its members end.
        starts: How often they start.
        by: Whose daemon serves them at last.
    """

    name: str
    state: str = "COMPLETED"
    starts: int = 1
    by: str = "prolog"


CASES = (
    Case("normal-end"),
    Case("scancel", state="CANCELLED"),
    # Slurm requeues the pack: another prolog, another daemon.
    Case("runner-killed", starts=2),
    Case("daemon-killed", starts=2, by="runner"),
    Case("server-killed", starts=2),
    Case("slurmd-restarted"),
)


def disturb(bed: GpuNode, name: str, job_id: str) -> None:
    """Let it happen."""
    if name == "scancel":
        bed.user.run(["scancel", job_id])
    elif name == "slurmd-restarted":
        node = bed.sandbox.node_names[0]
        bed.sandbox.kill_node(node)
        bed.sandbox.start_node(node)
    elif name != "normal-end":
        find = {
            "runner-killed": find_runner,
            "daemon-killed": find_daemon,
            "server-killed": find_server,
        }[name]
        kill(find(bed, job_id))


# -- what is left ----------------------------------------------------------------------------------


def list_entries() -> set[str]:
    """Entries of shared directories that could be of a daemon or a hook."""
    return {
        str(entry)
        for place in _PLACES
        for entry in Path(place).iterdir()
        if _OURS.search(entry.name)
    }


def find_everything_left(bed: GpuNode, before: set[str]) -> dict[str, Any]:
    """What packs and hooks have left: of the user, of root, and new in shared directories."""
    found = bed.find_leftovers()
    if prepared := list_prepared(bed.sandbox):
        found["prepared"] = prepared
    daemons = [
        f"{process.id.pid} {process.name}"
        for process in list_processes()
        if process.name.startswith("nvidia-cuda-mps") and not process.has_ended
    ]
    # On the sandbox other tests may run along with this one.
    if daemons and not bed.is_simulated:
        found["daemons"] = daemons
    if not bed.is_simulated and (entries := list_entries() - before):
        found["entries"] = sorted(entries)
    state = read_node_state(bed)
    if state != "idle none":
        found["node"] = state
    return found


def read_node_state(bed: GpuNode) -> str:
    """Slurm's state of the node, and why so."""
    ended = bed.user.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T %E"], check=False)
    return ended.stdout.strip()


def wait_until_nothing_is_left(bed: GpuNode, before: set[str]) -> dict[str, Any]:
    """Give the end of a job some time; what is left then, and how long it took."""
    begin_s = time.monotonic()
    while True:
        left = find_everything_left(bed, before)
        waited_s = time.monotonic() - begin_s
        if not left or waited_s > GONE_WITHIN_S:
            return {"left": left, "gone_after_s": round(waited_s, 2)}
        time.sleep(0.2)


def wait_for_epilogs(bed: GpuNode, job_id: str) -> list[dict[str, Any]]:
    """The audit lines of a job, once each of its prologs has its epilog."""

    def look() -> list[dict[str, Any]]:
        lines = read_audit(bed.sandbox, job_id=job_id)
        hooks = [line["hook"] for line in lines]
        is_done = hooks and hooks.count("prolog") <= hooks.count("epilog")
        return lines if is_done else []

    found: list[dict[str, Any]] = bed.wait(look, f"the epilog of {job_id}")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """What a client has said; empty while it has not."""
    with contextlib.suppress(FileNotFoundError):
        value: dict[str, Any] = json.loads(path.read_text())
        return value
    return {}


def keep_result(bed: GpuNode, value: Any, *path: str) -> None:
    """Write a result into hooks.json under names from outside to inside, before it is judged."""
    results = read_json(bed.out / "hooks.json")
    place = results
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    bed.write("hooks.json", results)
