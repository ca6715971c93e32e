"""Packs whose jobs have a /tmp and a /dev/shm of their own (job_container/tmpfs), on a real GPU.

Next to test_gpu_hooks.py, so that two clusters are never up at the same time.
"""

from __future__ import annotations

import pytest

from .gpu_node import running_gpu_node
from .namespaces import run_in_container, sandbox_with_containers
from .prepared_packs import keep_result

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.timeout(240),
]


def test_members_with_their_own_shm_are_clients_of_the_nodes_daemon_together() -> None:
    with running_gpu_node(
        sandbox_with_containers, "kept-containers.tar.gz", hooks=True
    ) as contained:
        found = run_in_container(contained)
        keep_result(contained, found, "containers")
    setup, shown = found["setup"], "\n".join(found["shown"])
    print(f"\nclients {found['clients']}, seen {found['seen']}", end="")
    print(f"\n{shown}\nby {setup['by']}: {setup['notes']}", end="")
    assert found["states"] == ["COMPLETED"]
    assert f"shm={found['shm_outside']}\n" not in found["outputs"][1]
    assert "shm=" in found["outputs"][1]
    [daemon] = found["prepared"]["daemons"]
    for output in found["outputs"].values():
        assert f"pipe={daemon['pipe_directory']}\n" in output
    assert (setup["by"], setup["notes"]) == ("prolog", [])
    assert "the node's own daemon (prolog)" in shown
    listed = {pid for pids in found["seen"]["get_client_list"].values() for pid in pids}
    assert {said["pid"] for said in found["clients"]} == listed
