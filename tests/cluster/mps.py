"""What tests of packs under MPS share: submitting, looking, and that nothing is left."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.system.directories import BASES, PREFIX
from slurm_colloc.host.system.node_processes import ProcessId, identify
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.simgpu.install import list_nodes, snapshot
from slurm_colloc_lab.simgpu.nvml.gpu_state import Node

from ..bed import CsubUser
from ..signalling import send_signal
from ..wait_until import wait_until

OPTIONS = ("--requeue", "--gres=gpu:1", "-c1", "--mem=100M", "--time=10")

HELLO = 'echo "start restart=${SLURM_RESTART_COUNT:-0} pipe=$CUDA_MPS_PIPE_DIRECTORY"'
UNTIL_END = "until [ -e end ]; do kill -0 $pid || exit 1; sleep 0.1; done"
TRAIN = f"{HELLO}; simgpu run --seconds 300 & pid=$!; {UNTIL_END}; kill $pid"

TELL = 'echo "pipe=$CUDA_MPS_PIPE_DIRECTORY gpus=$CUDA_VISIBLE_DEVICES"'

_LAUNCHER = """\
#!{python}
# The runner, less patient than a real one. Called as `python -I -m slurm_colloc.runtime PACK`.
import functools, sys
from slurm_colloc.runtime import __main__ as entry, wiring
from slurm_colloc.runtime.settled_mode import GpuPatience
wiring.GpuMode = functools.partial(wiring.GpuMode, patience=GpuPatience(**{waits!r}))
sys.exit(entry.main(sys.argv[4:]))
"""


def submit_pack(user: CsubUser, *words: str, options: tuple[str, ...] = OPTIONS) -> str:
    """Submit a pack with the common options; the job id."""
    return user.submit("pack", *options, *words)


def submit_each(user: CsubUser, *shares: str, degree: int = 2) -> dict[str, str]:
    """Submit a pack for each value of --share; job ids by value."""
    user.script("tell.sh", TELL)
    return {share: submit_pack(user, f"--share={share}", *["tell.sh"] * degree) for share in shares}


def shorten_waits(user: CsubUser, **waits: object) -> None:
    """Let this user's runners be less patient, see GpuPatience."""
    launcher = user.home / "runner.py"
    launcher.write_text(_LAUNCHER.format(python=sys.executable, waits=waits))
    launcher.chmod(0o755)
    write_settings(user, node_python=str(launcher))


def write_settings(user: CsubUser, **settings: object) -> None:
    """Write the user's settings.toml."""
    path = user.home / ".config" / "slurm_colloc" / "settings.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))


def pack_directory(user: CsubUser, job_id: str) -> Path:
    """The directory of a submission's only pack."""
    index = json.loads(user.index(job_id).read_text())
    return user.state / "packs" / f"{index['submission']}.{index['indices'][0]}"


def journal(user: CsubUser, job_id: str, *events: str) -> list[dict[str, Any]]:
    """What a pack's log for people says, or only these events of it."""
    path = pack_directory(user, job_id) / "events.jsonl"
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    found = [json.loads(line) for line in lines]
    return [event for event in found if not events or event["event"] in events]


def read_setup(user: CsubUser, job_id: str) -> dict[str, Any]:
    """A pack's setup.json; empty while there is none."""
    try:
        return dict(json.loads((pack_directory(user, job_id) / "setup.json").read_text()))
    except FileNotFoundError:
        return {}


def runner_pid(user: CsubUser, job_id: str) -> int:
    """The runner of a pack; its command line proves that it is the one."""
    pack = pack_directory(user, job_id)
    pid = int(json.loads((pack / "runner.json").read_text())["pid"])
    assert os.fsencode(pack) in Path(f"/proc/{pid}/cmdline").read_bytes()
    return pid


def daemon_pid(user: CsubUser, job_id: str) -> int:
    """The daemon of a pack that runs under MPS now."""
    pid = int(journal(user, job_id, "mps_daemon")[-1]["pid"])
    assert "nvidia-cuda-mps" in Path(f"/proc/{pid}/comm").read_text()
    return pid


def server_pid(user: CsubUser, job_id: str) -> int:
    """The server of a pack that runs under MPS now."""
    pid = int(journal(user, job_id, "mps_server")[-1]["server"])
    assert "nvidia-cuda-mps" in Path(f"/proc/{pid}/comm").read_text()
    return pid


def keeper_pid(user: CsubUser, job_id: str) -> int:
    """The keeper of a pack's daemon: the daemon's parent, and a child of the runner."""
    pid = read_parent(daemon_pid(user, job_id))
    assert read_parent(pid) == runner_pid(user, job_id)
    return pid


def require_cgroups(user: CsubUser) -> None:
    """Skip where Slurm cannot end all processes of a step: it tracks them by process group."""
    if user.sandbox.status().cgroup_version == 0:
        pytest.skip("without cgroups Slurm does not reach all processes of a step")


def read_parent(pid: int) -> int:
    """A process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for_clients(user: CsubUser, job_id: str, *numbers: int) -> dict[int, dict[str, Any]]:
    """Wait until members are clients of the pack's MPS server; all rows."""

    def reached(rows: dict[int, dict[str, Any]]) -> bool:
        wanted = numbers or tuple(rows)
        return all(rows[n]["is_mps_client"] and rows[n]["state"] == "RUNNING" for n in wanted)

    return user.wait_for_rows(job_id, reached, f"members {numbers or 'all'} as clients of MPS")


def list_starts(user: CsubUser, job_id: str, number: int) -> list[str]:
    """The lines with which the starts of a member begin."""
    text = user.output(f"slurm-{job_id}_{number}.out")
    return [line for line in text.splitlines() if line.startswith("start ")]


def wait_for_starts(
    user: CsubUser, job_id: str, count: int, *numbers: int
) -> dict[int, dict[str, Any]]:
    """Wait until members (or all) have started so often and are clients; all rows."""

    def reached(rows: dict[int, dict[str, Any]]) -> bool:
        return all(rows[number]["starts"] == count for number in numbers or rows)

    user.wait_for_rows(job_id, reached, f"members {numbers or 'all'} started {count} times")
    return wait_for_clients(user, job_id, *numbers)


@contextlib.contextmanager
def explained(user: CsubUser, job_id: str) -> Iterator[None]:
    """Tell all that is known of a submission where a test fails inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(user.describe(job_id))
        # What root's hooks have done, where there are any.
        with contextlib.suppress(OSError):
            lines = (user.sandbox.layout.log / "hooks.log").read_text().splitlines()
            error.add_note("\n".join(lines[-12:]))
        raise


def simulation_of(sandbox: Sandbox) -> Path:
    """The simulation of a sandbox."""
    return sandbox.layout.simgpu


def only_node(sandbox: Sandbox) -> Node:
    """Its only node as the simulation sees it."""
    (node,) = list_nodes(simulation_of(sandbox))
    return node


@contextlib.contextmanager
def changed_gpus(cluster: Sandbox, **changes: Any) -> Iterator[None]:
    """Other GPUs for a while."""
    node = only_node(cluster)
    before = node.read_gpus()
    for gpu in before:
        node.write_gpu(dataclasses.replace(gpu, **changes))
    try:
        yield
    finally:
        for gpu in before:
            node.write_gpu(gpu)


def list_directories(user: CsubUser) -> list[str]:
    """Private directories of MPS daemons of this user in this sandbox."""
    found = []
    for base in BASES:
        for path in Path(base).glob(f"{PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_uid == user.uid and _is_of_sandbox(path, user):
                    found.append(str(path))
    return found


def _is_of_sandbox(path: Path, user: CsubUser) -> bool:
    """Tests that run along with this one may have the same user; a half-made one may be ours."""
    try:
        program = str(json.loads((path / "state.json").read_text())["control"])
    except (OSError, ValueError, KeyError):
        return True
    return program.startswith((str(simulation_of(user.sandbox)), str(user.home)))


def list_processes(user: CsubUser) -> dict[int, str]:
    """This user's processes that have something to do with the simulation of the sandbox."""
    mark = b"SIMGPU_ROOT=" + os.fsencode(simulation_of(user.sandbox))
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if entry.stat().st_uid != user.uid:
                continue
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = words.decode(errors="replace").strip()
    return found


class Untouched:
    """Remembers what was there before a test, and finds that nothing else is left.

    Args:
        users: Whose processes and directories are looked at.
    """

    def __init__(self, *users: CsubUser) -> None:
        self._users = users
        self._simulation = simulation_of(users[0].sandbox)
        self._gpus = snapshot(self._simulation)
        self._directories = {path for user in users for path in list_directories(user)}
        assert not any(gpu["processes"] for node in self._gpus.values() for gpu in node.values())

    def check(self) -> None:
        """Wait until GPUs, process table and directories are as before."""
        last: dict[str, object] = {}

        def clean() -> bool:
            last["gpus"] = snapshot(self._simulation)
            last["processes"] = {u.name: list_processes(u) for u in self._users}
            directories = {path for user in self._users for path in list_directories(user)}
            last["directories"] = directories - self._directories
            return (
                last["gpus"] == self._gpus
                and not any(processes for processes in last["processes"].values())  # type: ignore[attr-defined]
                and not last["directories"]
            )

        try:
            wait_until(clean, "everything is as it was before")
        except BaseException as error:
            error.add_note(repr(last))
            raise


def kill(pid: int, number: int = signal.SIGKILL) -> ProcessId:
    """Signal a process that was just proven to be the one; which one it was."""
    identity = identify(pid)
    assert identity is not None
    assert send_signal(identity, number)
    return identity
