"""The interpreter on a node is never taken to be the login node's."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.administration.slurm_conf import Places, plan_controller
from slurm_colloc.host.hooks.node_policy import NodePolicy, parse_policy
from slurm_colloc.resources import data_path


@pytest.mark.parametrize(("release", "status"), [((3, 6), 1), ((3, 10), 1), ((3, 11), 0)])
def test_an_old_python_says_what_to_set(release: tuple[int, int], status: int) -> None:
    code = f"import sys; sys.version_info = {(*release, 0)}; import slurm_colloc.runtime"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status
    if status:
        words = f"is Python {release[0]}.{release[1]}, and packs need 3.11 or newer"
        assert words in done.stderr
        assert "set node_python" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["slurm_colloc", "slurm_colloc.runtime"])
def test_what_an_old_python_reads_first_is_in_its_own_words(module: str) -> None:
    source = Path(importlib.import_module(module).__file__ or "").read_text()
    ast.parse(source, feature_version=(3, 6))
    assert "__future__" not in source


def test_the_excerpt_of_slurm_conf_is_what_install_hooks_asks_for() -> None:
    text = data_path("site-config", "slurm.conf").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    config = dict(line.split("=", 1) for line in lines)
    config |= {"SLURM_VERSION": "22.05.8", "SlurmdUser": "root(0)"}
    plan = plan_controller(config, Places())
    assert (plan.changes, plan.problems, plan.notes) == ((), (), ())


def test_the_example_policy_has_every_value_as_built_in() -> None:
    import tomllib

    values = tomllib.loads(data_path("site-config", "node.toml").read_text())
    assert parse_policy(values, "node.toml") == NodePolicy()
    assert set(values) == set(vars(NodePolicy())) - {"ignored"}


@pytest.mark.parametrize("name", ["slurm.conf", "gres.conf", "cgroup.conf"])
def test_excerpts_are_read_by_slurm_as_settings(name: str) -> None:
    for line in data_path("site-config", name).read_text().splitlines():
        assert not line or line.startswith("#") or "=" in line.split()[0]
