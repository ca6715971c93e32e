"""What tests of root's hooks share: a sandbox that has them, and looks at what they did."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.system.control_groups import NAME, read_hierarchies
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import can_reach_checkout, running_sandbox
from ..wait_until import wait_until


@contextlib.contextmanager
def sandbox_with_hooks(**changes: Any) -> Iterator[Sandbox]:
    """Nodes on which root prepares MPS."""
    if os.geteuid() != 0:
        pytest.skip("hooks prepare MPS for other users, which needs root")
    if shutil.which("cc") is None:
        pytest.skip("the simulated NVML library needs a C compiler")
    settings = {"nodes": 1, "gpus_per_node": 2, "cpus_per_node": 32, **changes}
    # Root's hooks take a job for alive while any Slurm of this machine runs one of its number.
    extra = (*settings.pop("extra_conf", ()), f"FirstJobId={1000 + os.getpid() % 50_000 * 100}")
    with running_sandbox(simgpu=True, hooks=True, extra_conf=extra, **settings) as sandbox:
        yield sandbox


def require_other_users(name: str) -> None:
    """Skip where an ordinary user cannot run what the nodes run."""
    if not can_reach_checkout(name):
        pytest.skip("ordinary users cannot read this checkout")


def run_directory(sandbox: Sandbox, node: str | None = None) -> Path:
    """Root's directory of a node."""
    return sandbox.layout.prepared / (node or sandbox.node_names[0])


def read_audit(sandbox: Sandbox, hook: str = "", job_id: str = "") -> list[dict[str, Any]]:
    """Lines of the hooks' audit log."""
    try:
        lines = (sandbox.layout.log / "hooks.log").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = [json.loads(line) for line in lines]
    return [
        line
        for line in found
        if (not hook or line["hook"] == hook) and (not job_id or line.get("job") == job_id)
    ]


def wait_for_epilog(sandbox: Sandbox, job_id: str) -> dict[str, Any]:
    """The audit line of a job's epilog, once there is one."""
    found = wait_until(lambda: read_audit(sandbox, "epilog", job_id), f"the epilog of {job_id}")
    return dict(found[-1])


def write_policy(sandbox: Sandbox, **values: Any) -> None:
    """Change the nodes' policy."""
    lines = {"audit_log": str(sandbox.layout.log / "hooks.log"), **values}
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())
    (sandbox.layout.hooks / "node.toml").write_text(text)


@contextlib.contextmanager
def changed_policy(sandbox: Sandbox, **values: Any) -> Iterator[None]:
    """Another policy for a while."""
    write_policy(sandbox, **values)
    try:
        yield
    finally:
        write_policy(sandbox)


def list_prepared(sandbox: Sandbox) -> list[str]:
    """Everything that the hooks of a sandbox have not taken back."""
    found = []
    for node in sandbox.node_names:
        run = run_directory(sandbox, node)
        if run.is_dir():
            found += [str(e) for e in run.iterdir() if e.name not in ("jobs", "lock")]
            found += [str(e) for e in (run / "jobs").iterdir()]
        for hierarchy in read_hierarchies():
            found += [str(group) for group in Path(hierarchy.mount, NAME).glob(f"{node}-*")]
    return found


def read_prepared_setup(sandbox: Sandbox, job_id: str) -> dict[str, Any]:
    """What root told a job."""
    path = run_directory(sandbox) / job_id / "setup.json"
    return dict(json.loads(path.read_text()))
