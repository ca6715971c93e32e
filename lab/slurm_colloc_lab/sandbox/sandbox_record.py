"""What a sandbox remembers between two calls, as one JSON file.

It is written before any daemon starts, so that a call that died half-way can be repaired.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc_lab.sandbox.cgroups import CgroupSupport
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

_SCHEMA = 1


@dataclass(frozen=True)
class SandboxRecord:
    """The remembered facts.

    Args:
        spec: What was asked for.
        node_names: Names of the nodes.
        controller_port: Port of slurmctld.
        node_ports: Ports of the slurmd, in the order of the names.
        cgroups: What was found on the host.
        gpus_are_real: There is an NVIDIA GPU behind them.
        gpu_reason: Where they come from.
        version_text: Slurm's own words for its version.
        wanted: Whether the cluster should run; False after `down`.
        tried: Whether a trial step has run.
        accounting_port: Port of slurmdbd; None where nothing is accounted.
    """

    spec: SandboxSpec
    node_names: tuple[str, ...]
    controller_port: int
    node_ports: tuple[int, ...]
    cgroups: CgroupSupport
    gpus_are_real: bool
    gpu_reason: str
    version_text: str
    wanted: bool
    tried: bool
    accounting_port: int | None = None


def read_record(path: Path) -> SandboxRecord | None:
    """Read the file; None where there is none.

    Raises:
        StateError: It cannot be read, or is of another schema.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise StateError(
            f"{path} is damaged ({error})",
            hint="end the sandbox's daemons and remove its directory",
        ) from error
    try:
        if content["schema"] != _SCHEMA:
            raise StateError(f"{path} was written by another version of csub")
        cgroups = content["cgroups"]
        return SandboxRecord(
            spec=SandboxSpec.from_record(content["spec"]),
            node_names=tuple(content["node_names"]),
            controller_port=int(content["controller_port"]),
            node_ports=tuple(int(port) for port in content["node_ports"]),
            cgroups=CgroupSupport(cgroups["version"], cgroups["swap"], cgroups["reason"]),
            gpus_are_real=bool(content["gpus_are_real"]),
            gpu_reason=str(content["gpu_reason"]),
            version_text=str(content["version_text"]),
            wanted=bool(content["wanted"]),
            tried=bool(content["tried"]),
            accounting_port=content.get("accounting_port"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path} is damaged ({error})",
            hint="end the sandbox's daemons and remove its directory",
        ) from error


def write_record(path: Path, record: SandboxRecord) -> None:
    """Replace the file in one step."""
    content = {
        "schema": _SCHEMA,
        "spec": record.spec.to_record(),
        "node_names": record.node_names,
        "controller_port": record.controller_port,
        "node_ports": record.node_ports,
        "cgroups": {
            "version": record.cgroups.version,
            "swap": record.cgroups.swap,
            "reason": record.cgroups.reason,
        },
        "gpus_are_real": record.gpus_are_real,
        "gpu_reason": record.gpu_reason,
        "version_text": record.version_text,
        "wanted": record.wanted,
        "tried": record.tried,
        "accounting_port": record.accounting_port,
    }
    # Another user's `csub sandbox env --dir` reads it.
    write_file(path, json.dumps(content, indent=2) + "\n", mode=0o644)


def write_file(path: Path, content: str | bytes, *, mode: int) -> None:
    """Write a whole file: a reader sees the old content or the new, never half of it.

    Raises:
        StateError: It cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError as error:
        raise StateError(f"{path} cannot be written ({error.strerror})") from error
