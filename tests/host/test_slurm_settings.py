"""Settings of Slurm that do not go with dividing GPUs, as they stand in its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.host.hooks.node_policy import find_mig_conflict, is_named, read_mig_conflict


@pytest.mark.parametrize(
    ("expression", "node", "is_it"),
    [
        ("gpu1", "gpu1", True),
        ("gpu1", "gpu10", False),
        ("gpu[1-4]", "gpu4", True),
        ("gpu[1-4]", "gpu5", False),
        ("gpu[01-10]", "gpu1", False),
        ("gpu[01-10]", "gpu07", True),
        ("gpu[8-12]", "gpu10", True),
        ("login,gpu[1,3,5-7]-ib", "gpu6-ib", True),
        ("login,gpu[1,3,5-7]-ib", "gpu2-ib", False),
        ("ALL", "gpu1", True),
        ("DEFAULT", "gpu1", True),
        ("gpu[1-4]", "gpu", False),
        ("r[1-2]n[01-04]", "r1n02", True),
        ("r[1-2]n[01-04]", "r3n02", False),
        ("r[1-2]n[01-04]", "r1n2", False),
        ("r[1-2][1-4]-ib", "r14-ib", True),
        ("r[1-2][1-4]-ib", "r15-ib", False),
    ],
)
def test_a_host_list_names_its_nodes(expression: str, node: str, is_it: bool) -> None:
    assert is_named(expression, node) is is_it


@pytest.mark.parametrize(
    "expression", ["gpu[1-4", "gpu[-]", "gpu[1-2-3]", "gpu1]", "gpu[]", "gpu[a-c]"]
)
def test_a_host_list_that_is_not_understood_may_be_of_this_node(expression: str) -> None:
    with pytest.raises(ValueError, match="is not understood"):
        is_named(expression, "gpu1")
    found = find_mig_conflict([f"NodeName={expression} Gres=gpu:2,shard:8"], [], "gpu1")
    assert "gres/shard" in found
    assert "or it is of other nodes: the host list 'gpu" in found
    assert find_mig_conflict([f"NodeName={expression} Gres=gpu:2"], [], "gpu1") == ""


@pytest.mark.parametrize(
    ("slurm", "gres", "reason"),
    [
        ("ClusterName=a\nNodeName=gpu1 Gres=gpu:2", "Name=gpu File=/dev/nvidia[0-1]", ""),
        ("", "AutoDetect=off", ""),
        ("", "AutoDetect=nvidia", ""),
        ("", "AutoDetect=nvml # all of them", "with AutoDetect=nvml slurmd counts"),
        ("", "autodetect = NVML", "with AutoDetect=nvml slurmd counts"),
        ("", "NodeName=gpu2 AutoDetect=nvml", ""),
        ("", "NodeName=gpu[1-9] AutoDetect=full Name=gpu", "with AutoDetect=full slurmd counts"),
        ("", "# AutoDetect=nvml", ""),
        ("", "NodeName=g[1-2]pu[1-2] AutoDetect=nvml", ""),
        ("", "NodeName=g[1-2]x,gpu[0-1][,] AutoDetect=nvml", "counts MIG instances"),
        ("NodeName=gpu1 Gres=gpu:2,shard:8", "", "this node offers gres/shard"),
        ("NodeName=gpu2 Gres=gpu:2,shard:8", "", ""),
        ("NodeName=DEFAULT Gres=gpu:2,mps:200", "", "this node offers gres/mps"),
        ("", "Name=shard Count=8", "this node offers gres/shard"),
        ("", "NodeName=gpu2 Name=shard Count=8", ""),
        ("AcctGatherEnergyType=acct_gather_energy/gpu", "", "Slurm keeps GPUs open"),
        ("AcctGatherEnergyType=acct_gather_energy/rapl,acct_gather_energy/gpu", "", "keeps GPUs"),
        ("AcctGatherEnergyType=acct_gather_energy/rapl", "", ""),
    ],
)
def test_what_does_not_go_with_dividing_gpus_is_found(slurm: str, gres: str, reason: str) -> None:
    found = find_mig_conflict(slurm.splitlines(), gres.splitlines(), "gpu1")
    assert (reason in found) if reason else not found


def test_included_files_and_continued_lines_are_read_and_missing_ones_are_told(
    tmp_path: Path,
) -> None:
    conf = tmp_path / "slurm.conf"
    assert "cannot be read (No such file" in read_mig_conflict(str(conf), "gpu1")
    conf.write_text("ClusterName=a\nInclude nodes.conf\n")
    assert "cannot be read (No such file" in read_mig_conflict(str(conf), "gpu1")
    (tmp_path / "nodes.conf").write_text("NodeName=gpu[1-2] \\\n  Gres=gpu:2,shard:8\n")
    assert "gres/shard" in read_mig_conflict(str(conf), "gpu2")
    assert read_mig_conflict(str(conf), "gpu3") == ""
    # A file that includes itself comes to an end.
    (tmp_path / "nodes.conf").write_text("Include nodes.conf\n")
    assert read_mig_conflict(str(conf), "gpu1") == ""
    (tmp_path / "gres.conf").write_text("Include none.conf\n")
    assert "gres.conf cannot be read (No such file" in read_mig_conflict(str(conf), "gpu1")
    (tmp_path / "gres.conf").write_bytes(b"#" * (5 << 20))
    assert "gres.conf cannot be read (File too large)" in read_mig_conflict(str(conf), "gpu1")
    (tmp_path / "gres.conf").unlink()
    (tmp_path / "gres.conf").mkdir()
    assert "gres.conf cannot be read" in read_mig_conflict(str(conf), "gpu1")
