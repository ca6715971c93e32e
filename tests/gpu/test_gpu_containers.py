"""Packs whose jobs have a /tmp and a /dev/shm of their own (job_container/tmpfs), on a real GPU.

Beside test_gpu_hooks.py, so that two clusters are never up at the same time.
"""

from __future__ import annotations

import pytest

from .bed import running_bed
from .hook_bed import keep_result
from .namespaces import run_in_container, sandbox_with_containers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.timeout(240),
]


def test_a_pack_with_its_own_shm_finishes_and_says_whose_daemon_it_had() -> None:
    with running_bed(sandbox_with_containers, "kept-containers.tar.gz", hooks=True) as contained:
        found = run_in_container(contained)
        keep_result(contained, found, "containers")
    setup, shown = found["setup"], "\n".join(found["shown"])
    print(f"\nprobe {found['probe']}, seen {found['seen']}", end="")
    print(f"\n{shown}\nby {setup['by']}: {setup['notes']}", end="")
    assert found["states"] == ["COMPLETED"]
    pipes = [daemon["pipe_directory"] for daemon in found["prepared"]["daemons"]]
    is_nodes_own = any(f"pipe={pipe}\n" in found["outputs"][1] for pipe in pipes)
    assert ("the node's own daemon (prolog)" in shown) == is_nodes_own
    assert ("a daemon of this pack's own" in shown) == (not is_nodes_own)
