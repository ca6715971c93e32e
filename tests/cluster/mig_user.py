"""A node with a simulated GPU whose MIG is on, a user there, and another policy of root's hooks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, user_of
from .hooks import require_other_users, sandbox_with_hooks

OPTIONS = ("--gres=gpu:1", "-c1", "--mem=600M", "--time=5", "--no-requeue")


@contextmanager
def cluster_with_mig() -> Iterator[Sandbox]:
    """One node with one simulated GPU whose MIG mode is on, and hooks that may divide it."""
    with sandbox_with_hooks(gpus_per_node=1, mig=True, gpu_type="h100") as sandbox:
        yield sandbox


@contextmanager
def user_with_script(cluster: Sandbox, accounts: tuple[str, ...], begin: str) -> Iterator[CsubUser]:
    """A user whose train.sh begins so, then trains until there is a file `end`."""
    require_other_users(accounts[0])
    with user_of(cluster, accounts[0]) as somebody:
        somebody.script(
            "train.sh",
            f"{begin}; simgpu run --seconds 300 & pid=$!; "
            "until [ -e end ]; do kill -0 $pid || exit 1; sleep 0.1; done; kill $pid",
        )
        yield somebody


@contextmanager
def policy_of(cluster: Sandbox, text: str, instead_of: str = "") -> Iterator[None]:
    """Another policy of root's hooks.

    Args:
        cluster: Whose.
        text: What it says.
        instead_of: Where a line says otherwise, that line.
    """
    path = cluster.layout.hooks / "node.toml"
    before = path.read_text()
    assert instead_of in before
    path.write_text(before.replace(instead_of, text) if instead_of else before + text)
    try:
        yield
    finally:
        path.write_text(before)
