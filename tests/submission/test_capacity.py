from __future__ import annotations

import pytest

from slurm_colloc.model.plan import Capacity
from slurm_colloc.slurm.slurm_commands import parse_nodes
from slurm_colloc.submission.plan.target_nodes import compute_capacity

# sinfo --exact -o "%P|%c|%m|%G|%l|%L|%h".
SINFO = """\
gpu*|64|512000|gpu:a100:4(S:0-1)|1-00:00:00|1:00:00
gpu*|32|256000|gpu:a100:4|1-00:00:00|1:00:00
cpu|128|1000000|(null)|infinite|n/a
mixed|64+|512000+|gpu:a100:2,gpu:h100:2|2:00:00|n/a
long|16|64000|gpu:1(S:0),shard:4|infinite|infinite|NO
whole|64|512000|gpu:8|infinite|n/a|EXCLUSIVE
"""


@pytest.mark.parametrize(
    ("partitions", "gpu_type", "expected"),
    [
        # The smallest node on which the pack may land.
        (None, None, Capacity(8, 64000, 80000, 86400, 3600, 4)),
        (None, "a100", Capacity(8, 64000, 80000, 86400, 3600, 4)),
        ("cpu", None, Capacity(None, None, 80000, None, None)),
        # The node's CPUs belong to all of its GPUs, whichever type is asked for.
        ("mixed", "h100", Capacity(16, 128000, 80000, 7200, None, 2)),
        ("mixed", None, Capacity(16, 128000, 80000, 7200, None, 4)),
        ("mixed", "v100", Capacity(None, None, 80000, 7200, None)),
        ("long", None, Capacity(16, 64000, 80000, None, None, 1)),
        ("whole", None, Capacity(8, 64000, 80000, None, None, 8, gives_whole_nodes=True)),
        # One of them does not give whole nodes.
        ("whole,long", None, Capacity(8, 64000, 80000, None, None, 1)),
        ("gpu,mixed,long", None, Capacity(8, 64000, 80000, 7200, 3600, 1)),
        ("none", None, Capacity(None, None, 80000, None, None)),
    ],
)
def test_the_share_of_one_gpu(
    partitions: str | None, gpu_type: str | None, expected: Capacity
) -> None:
    assert compute_capacity(parse_nodes(SINFO), partitions, gpu_type, 80000) == expected


def test_a_partition_without_the_nodes_that_were_asked_for_tells_nothing() -> None:
    # sinfo --nodes=nope
    assert parse_nodes("gpu*|0|0|(null)|7-00:00:00|n/a|NO\n") == []


def test_nothing_is_known_of_a_cluster_without_nodes() -> None:
    assert compute_capacity([], None, None, None) == Capacity()
