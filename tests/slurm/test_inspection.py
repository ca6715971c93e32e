"""Nodes one by one, as sinfo shows them."""

from __future__ import annotations

import pytest

from slurm_colloc.slurm.slurm_commands import NodeState, parse_node_states

# As printed by 22.05.8; the last line of a cluster with GPU types and sockets.
TEXT = """\
n03fb-1|gpu*|idle|gpu:2|22.05.8|none
n03fb-1|preempt|idle|gpu:2|22.05.8|none
n03fb-2|gpu*|down*|gpu:2||Not responding
c1|cpu|drained|(null)|22.05.8|disk | full
g1|gpu*|mixed|gpu:h200:4(S:0-1),gpu:a100:2|(null)|(null)
no node
"""


def test_every_node_of_every_partition_is_read() -> None:
    nodes = parse_node_states(TEXT)
    assert nodes[0] == NodeState(
        "n03fb-1", "gpu", is_default=True, state="idle", gpus=2, version="22.05.8", reason=""
    )
    assert [node.is_default for node in nodes] == [True, False, True, False, True]
    assert [node.gpus for node in nodes] == [2, 2, 2, 0, 6]
    assert [node.reason for node in nodes] == ["", "", "Not responding", "disk | full", ""]
    assert [node.version for node in nodes] == ["22.05.8", "22.05.8", "", "22.05.8", ""]


@pytest.mark.parametrize(
    ("state", "is_usable"),
    [
        ("idle", True), ("mixed", True), ("allocated", True), ("completing", True),
        ("idle~", True), ("mixed#", True), ("planned", True), ("mixed-", True),
        ("idle*", False), ("down", False), ("down*", False), ("drained", False),
        ("draining", False), ("fail", False), ("maint", False), ("reserved", True),
        ("unknown", False), ("inval", False),
    ],
)  # fmt: skip
def test_which_nodes_take_jobs(state: str, is_usable: bool) -> None:
    (node,) = parse_node_states(f"n1|gpu*|{state}|gpu:1|22.05.8|none")
    assert node.is_usable is is_usable
