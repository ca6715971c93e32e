"""`csub admin mig export` and `assert`: mig-parted's files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.administration.mig_parted import (
    DividedGpu,
    build_export,
    choose_configuration,
    find_differences,
    render_yaml,
)
from slurm_colloc.administration.slurm_conf import BASE_VARIABLE
from slurm_colloc.errors import UsageProblem
from slurm_colloc_lab.simgpu.gpu_models import A30, H100_80
from slurm_colloc_lab.simgpu.install import make_simulation, simulation_environment

# As in mig-parted's examples/config.yaml.
EXAMPLE = """\
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}
  custom-config:
    - devices: [0,1]
      mig-enabled: false
    - devices: [2]
      mig-enabled: true
      mig-devices:
        "1g.5gb": 2
        "3g.20gb": 1
"""
OFF = DividedGpu(0, "0x20B010DE", False, {})
GPUS = st.lists(
    st.tuples(
        st.sampled_from(["0x20B010DE", "0x233010DE"]),
        st.sampled_from([None, False, True]),
        st.dictionaries(st.sampled_from(["1g.10gb", "1c.3g.40gb", "1g.10gb+me"]),
                        st.integers(1, 7), max_size=3),
    ),
    min_size=1,
    max_size=6,
).map(lambda rows: [
    DividedGpu(number, row[0], row[1], row[2] if row[1] else {}) for number, row in enumerate(rows)
])  # fmt: skip


@given(GPUS)
def test_what_is_exported_is_yaml_and_asserts_on_the_same_node_and_no_other(
    gpus: list[DividedGpu],
) -> None:
    spec = build_export(gpus, "current")
    assert yaml.safe_load(render_yaml(spec)) == spec
    wishes = choose_configuration(spec, "", "it")
    assert find_differences(wishes, gpus) == ()
    changed = [*gpus[:-1], DividedGpu(gpus[-1].index, gpus[-1].device_id, True, {"7g.80gb": 1})]
    assert len(find_differences(wishes, changed)) == 1


def test_mig_parteds_own_example_is_read() -> None:
    spec = yaml.safe_load(EXAMPLE)
    gpus = [OFF, DividedGpu(1, "", False, {}), DividedGpu(2, "", True, {"1g.5gb": 2, "3g.20gb": 1})]
    assert find_differences(choose_configuration(spec, "custom-config", "it"), gpus) == ()
    assert find_differences(choose_configuration(spec, "all-disabled", "it"), gpus) == (
        "GPU 2: MIG is on, not off",
    )
    assert find_differences(choose_configuration(spec, "all-enabled", "it"), gpus[2:]) == (
        "GPU 2: it has 2 x 1g.5gb, 1 x 3g.20gb, not no instances",
    )
    # A GPU that no entry is about never asserts, but its mode is nobody's.
    more = [*gpus, DividedGpu(3, "", False, {})]
    wishes = choose_configuration(spec, "custom-config", "it")
    assert find_differences(wishes, more) == ("GPU 3: no entry is about it",)
    assert find_differences(wishes, more, mode_only=True) == ()


@pytest.mark.parametrize(
    ("value", "label", "reason"),
    [
        ([], "", "is not a configuration of mig-parted's, version v1"),
        ({"version": "v2"}, "", "is not a configuration of mig-parted's"),
        ({"version": "v1"}, "", "has no mig-configs"),
        ({"version": "v1", "x\x1b": 1}, "", "has the unknown key x\\x1b"),
        ({"version": "v1", "mig-configs": {"a": [], "b": []}}, "", "has 2 configurations"),
        ({"version": "v1", "mig-configs": {"a": [1]}}, "b", "has no configuration b"),
        ({"version": "v1", "mig-configs": {"a": []}}, "", "without entries"),
        ({"version": "v1", "mig-configs": {"a": [1]}}, "", "an entry that is not a mapping: 1"),
        (None, "devices=some", "neither numbers nor all as devices: some"),
        (None, "mig-enabled=yes", "neither true nor false as mig-enabled: yes"),
        (None, "mig-devices=x", "no profiles with counts as mig-devices"),
        (None, "device-filter=7", "no list of texts as device-filter"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(value: Any, label: str, reason: str) -> None:
    if value is None:
        key, _, word = label.partition("=")
        bad: Any = {"mig-devices": {word: 1}, "device-filter": 7}.get(key, word)
        entry = {"devices": "all", "mig-enabled": True, "mig-devices": {}, key: bad}
        value, label = {"version": "v1", "mig-configs": {"a": [entry]}}, ""
    with pytest.raises(UsageProblem, match=re.escape(reason)) as problem:
        choose_configuration(value, label, "the file")
    assert str(problem.value).isprintable()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_a_node_is_exported_and_asserted(tmp_path: Path) -> None:
    make_simulation(tmp_path / "sim", {"n1": [H100_80, A30]}, mig=True)
    environment = {
        **os.environ,
        **simulation_environment(tmp_path / "sim"),
        "SLURMD_NODENAME": "n1",
        BASE_VARIABLE: str(tmp_path),
    }

    def call(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "slurm_colloc", "admin", "mig", *words],
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )

    exported = call("export", "-l", "now")
    assert exported.returncode == 0, exported.stderr
    spec = yaml.safe_load(exported.stdout)
    assert spec["mig-configs"]["now"] == [
        {"devices": "all", "mig-enabled": True, "mig-devices": {}}
    ]
    assert json.loads(call("export", "-o", "json").stdout)["version"] == "v1"
    told = call("assert", "-f", "-", text=exported.stdout)
    assert (told.returncode, told.stdout) == (0, "all GPUs are as the configuration says\n")
    other = exported.stdout.replace("{}", "{1g.10gb: 7}")
    told = call("assert", "-f", "-", text=other)
    assert (told.returncode, told.stdout.splitlines()[0]) == (
        1,
        "GPU 0: it has no instances, not 7 x 1g.10gb",
    )
    told = call("assert", "-f", "-", text="a: [")
    assert (told.returncode, "is neither YAML nor JSON" in told.stderr) == (2, True)
    assert call("assert", "-f", str(tmp_path / "none")).returncode == 2
