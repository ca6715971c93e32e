"""A GPU with MIG instances as a setup.json tells of it, and an agent that changes them."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

from slurm_colloc.host.keeper.prepared_daemon import MigInstance, PreparedGpu
from slurm_colloc.model.mig_layout import place
from slurm_colloc.model.mig_profiles import MIG_TABLES, PlacedInstance, describe_profile

GPU = "GPU-11111111-2222-3333-4444-555555555555"
PROFILES = {profile.name: profile for profile in MIG_TABLES["H100-80"]}


def name_instance(number: int) -> str:
    return f"MIG-00000000-0000-0000-0000-{number:012d}"


def build_instances(names: list[str], first: int = 1) -> list[dict[str, Any]]:
    placed = place([PROFILES[name] for name in names])
    assert placed is not None
    return [describe(one, first + number) for number, one in enumerate(placed)]


def describe(one: PlacedInstance, number: int) -> dict[str, Any]:
    return {
        "uuid": name_instance(number),
        "profile": one.profile.name,
        "gpu_instance": number,
        "compute_instance": 0,
        "placement": [one.placement.start, one.placement.size],
        "sms": one.profile.sms,
        "memory_mb": one.profile.memory_mb,
    }


def build_setup(job_id: str, names: list[str], socket_path: str = "") -> dict[str, Any]:
    """The setup.json of a prolog that has cut a GPU."""
    return {
        "schema": 1,
        "job_id": job_id,
        "mode": "mig",
        "reason": "asked for",
        "by": "prolog",
        "gpus": [GPU],
        "daemons": [],
        "compute_mode": None,
        "notes": [],
        "mig": {
            "gpus": [
                {
                    "uuid": GPU,
                    "name": "NVIDIA H100 80GB HBM3",
                    "mode_switched": False,
                    "instances": build_instances(names),
                    "profiles": [describe_profile(one) for one in PROFILES.values()],
                }
            ],
            "socket": socket_path,
            "mps_inside": False,
            "layout": "+".join(names),
        },
    }


def build_gpu(*names: str) -> PreparedGpu:
    from slurm_colloc.host.keeper.prepared_daemon import parse_mig

    return parse_mig(build_setup("7", list(names))["mig"]).gpus[0]


class Agent:
    """Listens as the node's agent does, and does what it is told to.

    Args:
        path: Its socket.
        gpu: What stands.
        refusal: Why it refuses everything; empty where it does not.
    """

    def __init__(self, path: Path, gpu: PreparedGpu, refusal: str = "") -> None:
        self.requests: list[dict[str, Any]] = []
        self._standing = {one.uuid: one for one in gpu.instances}
        self._refusal = refusal
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._next = 100
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                request = json.loads(connection.makefile().readline())
                self.requests.append(request)
                connection.sendall(json.dumps(self._answer(request)).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._refusal:
            return {"ok": False, "reason": self._refusal, "instances": self._list()}
        for uuid in request["destroy"]:
            del self._standing[uuid]
        for name in request["create"]:
            staying = [
                PlacedInstance(PROFILES[one.profile], one.placement)
                for one in self._standing.values()
            ]
            placed = place([PROFILES[name]], staying)
            assert placed is not None
            self._next += 1
            one = describe(placed[0], self._next)
            self._standing[one["uuid"]] = _read(one)
        return {"ok": True, "instances": self._list()}

    def _list(self) -> list[dict[str, Any]]:
        return [
            {**vars(one), "placement": [one.placement.start, one.placement.size]}
            for one in self._standing.values()
        ]


def _read(one: dict[str, Any]) -> MigInstance:
    from slurm_colloc.host.keeper.prepared_daemon import parse_instances

    return parse_instances([one])[0]
