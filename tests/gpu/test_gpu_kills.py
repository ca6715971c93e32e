"""How long an MPS daemon takes to end after KILL, with as many clients as the GPU takes.

Figures are written to kills.json and not judged: the bound that the epilog has for it,
`signals.LOOK_S`, stands on them. CSUB_GPU_CLIENTS and CSUB_GPU_ROUNDS say how many.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.system.node_processes import list_processes
from slurm_colloc.store.atomic_files import write_atomic

from .gpu_node import HERE, read_number

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

CLIENTS = int(read_number("CSUB_GPU_CLIENTS", 48))
ROUNDS = int(read_number("CSUB_GPU_ROUNDS", 10))
PATIENCE_S = 60.0
RUN_S = 1.0


def has_ended(pid: int) -> bool:
    """It is gone, or a zombie of ours."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def find_servers(daemon: int) -> list[int]:
    """The servers of this daemon; other daemons' are left alone."""
    return [
        process.id.pid
        for process in list_processes()
        if process.name.startswith("nvidia-cuda-mps") and process.parent_pid == daemon
    ]


def run_round(*, kills_clients: bool) -> dict[str, Any]:
    """Start all, kill the daemon and its servers; the seconds that each took to end."""
    with tempfile.TemporaryDirectory(prefix="kills") as name:
        place = Path(name)
        environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": name,
            "CUDA_MPS_LOG_DIRECTORY": name,
        }
        daemon = subprocess.Popen(["nvidia-cuda-mps-control", "-f"], env=environment)
        time.sleep(RUN_S)
        clients = []
        for number in range(CLIENTS):
            words = [str(HERE / "cuda_client.py"), "--up", str(place / f"{number}.json")]
            words += ["--until", str(place / "end")]
            clients.append(subprocess.Popen([sys.executable, *words], env=environment))
        deadline = time.monotonic() + PATIENCE_S
        while len(list(place.glob("*.json"))) < CLIENTS and time.monotonic() < deadline:
            time.sleep(0.05)
        told = [json.loads(path.read_text()) for path in sorted(place.glob("*.json"))]
        time.sleep(RUN_S)
        servers = find_servers(daemon.pid)
        killed = {"daemon": [daemon.pid], "servers": servers}
        if kills_clients:
            killed["clients"] = [client.pid for client in clients]
        begin, ended = time.monotonic(), dict[int, float]()
        pids = [pid for each in killed.values() for pid in each]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        while len(ended) < len(pids) and time.monotonic() < begin + PATIENCE_S:
            for pid in pids:
                if pid not in ended and has_ended(pid):
                    ended[pid] = time.monotonic() - begin
            time.sleep(0.005)
        for client in clients:
            client.kill()
        for process in (*clients, daemon):
            process.wait()
    seconds = {
        kind: max((ended[pid] for pid in each if pid in ended), default=None)
        for kind, each in killed.items()
    }
    left = len(pids) - len(ended)
    up = sum("problem" not in each for each in told)
    return {"clients_up": up, "servers": len(servers), "left": left, "ended_s": seconds}


def test_the_end_of_a_daemon_with_all_clients() -> None:
    if not Path("/dev/nvidia0").exists():
        pytest.skip("needs an NVIDIA GPU")
    out = Path(os.environ.get("GPU_SUITE_OUT", "/tmp"))
    rounds = []
    for number in range(ROUNDS):
        rounds.append(run_round(kills_clients=number % 2 == 1))
        print(json.dumps(rounds[-1]), flush=True)
        write_atomic(out / "kills.json", f"{json.dumps(rounds, indent=1)}\n".encode())
    assert all(each["clients_up"] == CLIENTS and each["servers"] for each in rounds)
