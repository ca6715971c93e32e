"""Lists of nodes as Slurm writes them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_colloc.slurm.slurm_commands import expand_node_list

LISTS = ("n1", "n[1-3]", "n[08-10],gpu3", "a-[1-2,5],c", "r[1-2]n[01-02]")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[08-10],gpu3", ["n08", "n09", "n10", "gpu3"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("", []),
        ("(null)", ["(null)"]),
        ("n[x", ["n", "x"]),
    ],
)
def test_every_node_is_named(text: str, names: list[str]) -> None:
    assert expand_node_list(text) == names


@pytest.mark.parametrize("text", LISTS)
def test_they_are_those_that_scontrol_names(tmp_path: Path, text: str) -> None:
    if shutil.which("scontrol") is None:
        pytest.skip("scontrol is not installed")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=h\nNodeName=n\nPartitionName=p Nodes=n\n")
    said = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "SLURM_CONF": str(conf)},
    )
    assert expand_node_list(text) == said.stdout.split()
