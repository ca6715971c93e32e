from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def client_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A slurm.conf that lets the clients start, with a controller port that refuses at once."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
        path.write_text(
            "ClusterName=test\n"
            "SlurmctldHost=localhost(127.0.0.1)\n"
            f"SlurmctldPort={port}\n"
            "ProctrackType=proctrack/linuxproc\n"
            "MessageTimeout=1\n"
            "SlurmctldTimeout=1\n"
            "NodeName=node1 CPUs=1\n"
            "PartitionName=all Nodes=ALL\n"
        )
        yield path
