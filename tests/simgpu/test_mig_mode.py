"""MIG mode of simulated GPUs, their reboot, what goes wrong on demand, and profile names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_colloc_lab.simgpu.gpu_models import A100_40, A100_80, H100_80
from slurm_colloc_lab.simgpu.install import make_simulation
from slurm_colloc_lab.simgpu.nvml.mig_instances import read_instances

from ..wait_until import wait_until
from .conftest import Simulation, running_simulation
from .test_mig_instances import HELPERS

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = 3, 4, 15
RESET_REQUIRED, IN_USE, INSUFFICIENT_RESOURCES = 16, 19, 23

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes MIG")


@pytest.fixture
def plain() -> Iterator[Simulation]:
    """A node with an H100 and an A100, both with MIG off."""
    with running_simulation("sgo", {"n1": [H100_80, A100_40]}) as made:
        yield made


def ask(simulation: Simulation, code: str, **options: Any) -> Any:
    return simulation.ask(f"{HELPERS}\na = n.nvmlDeviceGetHandleByIndex(1)\n{code}", **options)


# Mode


@needs_root
def test_from_hopper_on_the_mode_is_switched_at_once(plain: Simulation) -> None:
    answer = ask(
        plain,
        """
answer = [n.nvmlDeviceSetMigMode(h, 1), n.nvmlDeviceGetMigMode(h), code(make, 9, 4, 4),
          code(n.nvmlDeviceSetMigMode, h, 2)]
""",
    )
    assert answer == [0, [1, 1], 0, 2]


@needs_root
def test_before_hopper_it_stays_pending_until_the_node_is_rebooted(plain: Simulation) -> None:
    answer = ask(
        plain,
        """
answer = [n.nvmlDeviceSetMigMode(a, 1), n.nvmlDeviceGetMigMode(a),
          code(make, 9, 4, 4, a)]
""",
    )
    assert answer == [RESET_REQUIRED, [0, 1], NOT_SUPPORTED]
    assert plain.run("reboot").returncode == 0
    answer = ask(plain, "answer = [n.nvmlDeviceGetMigMode(a), code(make, 9, 4, 4, a)]")
    assert answer == [[1, 1], 0]


@needs_root
def test_what_is_pending_can_be_taken_back(plain: Simulation) -> None:
    answer = ask(
        plain,
        "n.nvmlDeviceSetMigMode(a, 1);"
        "answer = [n.nvmlDeviceSetMigMode(a, 0), n.nvmlDeviceGetMigMode(a)]",
    )
    assert answer == [0, [0, 0]]


@needs_root
def test_a_gpu_that_is_in_use_keeps_its_mode(plain: Simulation) -> None:
    plain.start("--seconds", "60")
    answer = ask(plain, "answer = [n.nvmlDeviceSetMigMode(h, 1), n.nvmlDeviceGetMigMode(h)]")
    assert answer == [IN_USE, [0, 1]]


@needs_root
def test_instances_keep_the_mode_on(plain: Simulation) -> None:
    answer = ask(
        plain,
        """
n.nvmlDeviceSetMigMode(h, 1)
one = make(9, 4, 4)
answer = [n.nvmlDeviceSetMigMode(h, 0), n.nvmlDeviceGetMigMode(h)]
n.nvmlGpuInstanceDestroy(one)
answer += [n.nvmlDeviceSetMigMode(h, 0), n.nvmlDeviceGetMigMode(h)]
""",
    )
    assert answer == [IN_USE, [1, 0], 0, [0, 0]]


@needs_root
def test_a_reboot_takes_instances_and_from_hopper_on_the_mode(plain: Simulation) -> None:
    assert plain.run("mig", "on").returncode == 0
    ask(
        plain,
        "fill(make(9, 4, 4)); fill(make(9, 0, 4, a)); n.nvmlDeviceSetComputeMode(h, 3); answer = 0",
    )
    assert plain.run("reboot", "n1").returncode == 0
    hopper, ampere = plain.node.read_gpus()
    assert [hopper.mig_mode, hopper.mig_pending, hopper.compute_mode] == [0, 0, 0]
    assert [ampere.mig_mode, ampere.mig_pending] == [1, 1]
    assert [read_instances(plain.node, gpu) for gpu in (hopper, ampere)] == [((), ())] * 2


def test_nothing_is_rebooted_under_a_process(plain: Simulation) -> None:
    process = plain.start("--seconds", "60")
    for words in (("reboot",), ("mig", "on")):
        ended = plain.run(*words)
        assert ended.returncode != 0
        assert f"process {process.pid} is still on GPU 0 of node n1" in ended.stderr


@pytest.mark.parametrize(
    "words",
    [("mig",), ("mig", "up"), ("mig", "on", "GPU-0"), ("mig", "names", "x"), ("reboot", "n9")],
)
def test_words_that_mean_nothing_change_nothing(plain: Simulation, words: tuple[str, ...]) -> None:
    before = plain.snapshot()
    ended = plain.run(*words)
    assert ended.returncode == 2
    assert ended.stderr.startswith("simgpu: error: ")
    assert plain.snapshot() == before


def test_gpus_are_made_with_mig_on_and_keep_their_state_when_they_are_made_again() -> None:
    with running_simulation("sgk", {"n1": [H100_80, A100_40]}, mig=True) as simulation:
        assert [gpu.mig_mode for gpu in simulation.node.read_gpus()] == [1, 1]
        simulation.run("mig", "off", simulation.uuids[0])
        make_simulation(simulation.directory, {"n1": [H100_80, A100_40]}, mig=True)
        assert [gpu.mig_mode for gpu in simulation.node.read_gpus()] == [0, 1]


@needs_root
def test_the_snapshot_tells_layouts_apart_and_not_uuids(plain: Simulation) -> None:
    plain.run("mig", "on")
    empty = plain.snapshot()
    assert empty["n1"][plain.uuids[0]]["mig"] == {"mode": [1, 1], "instances": []}
    ask(plain, "fill(make(9, 4, 4)); answer = 0")
    made = plain.snapshot()
    assert made["n1"][plain.uuids[0]]["mig"]["instances"] == [
        {"profile_id": 9, "placement": [4, 4], "compute_instances": [[0, 3]]}
    ]
    again = """
one = n.nvmlDeviceGetGpuInstanceById(h, 1)
n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(one, 0))
n.nvmlGpuInstanceDestroy(one)
answer = n.nvmlDeviceGetUUID(device_of(fill(make(9, 4, 4))))
"""
    assert ask(plain, again).startswith("MIG-")
    assert plain.snapshot() == made


# Names


def test_names_come_with_the_driver_s_rounding_and_without() -> None:
    look = """
h = n.nvmlDeviceGetHandleByIndex(0)
answer = [n.nvmlDeviceGetGpuInstanceProfileInfo(h, k).name for k in (0, 7, 9, 1, 2, 3, 4)]
"""
    with running_simulation("sgn", {"n1": [A100_80]}) as simulation:
        board = [f"MIG {name}" for name in ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb")]
        assert simulation.ask(look) == [*board, "MIG 3g.40gb", "MIG 4g.40gb", "MIG 7g.80gb"]
        assert simulation.run("mig", "names", "memory").returncode == 0
        assert simulation.ask(look) == [*board, "MIG 3g.39gb", "MIG 4g.39gb", "MIG 7g.79gb"]
        assert simulation.run("mig", "names", "board").returncode == 0
        assert simulation.ask(look)[4] == "MIG 3g.40gb"


# Faults of single calls

CASES = [
    ("fail=nvmlDeviceCreateGpuInstanceWithPlacement:23", [23, 23, 23]),
    ("fail=nvmlDeviceCreateGpuInstanceWithPlacement#2:23", [0, 23, 0]),
    ("lost-in=nvmlDeviceCreateGpuInstanceWithPlacement#2", [0, 15, 15]),
    ("fail=nvmlDeviceCreateGpuInstance:23", [0, 0, 0]),
    ("vgpu", [0, 0, 0]),
]


@needs_root
@pytest.mark.parametrize(("word", "codes"), CASES)
def test_a_single_call_fails_as_asked(plain: Simulation, word: str, codes: list[int]) -> None:
    plain.run("mig", "on")
    assert plain.run("faults", word).returncode == 0
    assert ask(plain, "answer = [code(make, 19, k, 1) for k in range(3)]") == codes


@needs_root
def test_a_gpu_that_was_lost_in_a_call_is_lost_for_all(plain: Simulation) -> None:
    plain.run("mig", "on")
    ask(plain, "fill(make(9, 4, 4)); answer = 0")
    plain.run("faults", "lost-in=nvmlGpuInstanceDestroy")
    look = """
one = n.nvmlDeviceGetGpuInstanceById(h, 1)
answer = code(n.nvmlGpuInstanceDestroy, one)
"""
    assert ask(plain, look) == GPU_IS_LOST
    later = "answer = [code(n.nvmlDeviceGetHandleByIndex, k) for k in (0, 1)]"
    assert plain.ask(later) == [GPU_IS_LOST, 0]


@needs_root
@pytest.mark.parametrize("which", ["gpu", "device"])
def test_a_service_that_holds_an_instance_keeps_it(plain: Simulation, which: str) -> None:
    plain.run("mig", "on")
    uuid = ask(plain, "answer = n.nvmlDeviceGetUUID(device_of(fill(make(9, 4, 4))))")
    plain.run("faults", f"held={uuid if which == 'device' else plain.uuids[0]}")
    answer = ask(
        plain,
        """
one = n.nvmlDeviceGetGpuInstanceById(h, 1)
part = n.nvmlGpuInstanceGetComputeInstanceById(one, 0)
answer = [code(n.nvmlComputeInstanceDestroy, part), code(n.nvmlGpuInstanceDestroy, one)]
""",
    )
    # Held as a whole GPU, the half-made state is left: the compute instance has gone.
    assert answer == ([IN_USE, IN_USE] if which == "device" else [0, IN_USE])


@needs_root
def test_a_call_that_hangs_does_not_come_back(plain: Simulation) -> None:
    plain.run("mig", "on")
    plain.run("faults", "hang=nvmlDeviceCreateGpuInstanceWithPlacement#2")
    code = f"import pynvml as n\nn.nvmlInit()\n{HELPERS}\nmake(19, 0, 1); make(19, 1, 1)"
    program = subprocess.Popen([sys.executable, "-c", code], env=plain.environment())
    gpu = plain.node.read_gpus()[0]
    try:
        wait_until(lambda: len(read_instances(plain.node, gpu)[0]) == 1, "the first is made")
        time.sleep(0.3)
        assert program.poll() is None
        assert len(read_instances(plain.node, gpu)[0]) == 1
    finally:
        program.kill()
        program.wait()


@needs_root
def test_calls_take_longer_where_that_is_asked_for(plain: Simulation) -> None:
    plain.run("mig", "on")
    look = """
one = make(19, 0, 1)
begin = time.monotonic()
n.nvmlGpuInstanceDestroy(one)
answer = time.monotonic() - begin
"""
    quick_s = ask(plain, look)
    plain.run("faults", "real-latency")
    assert ask(plain, look) > max(0.9, quick_s)
    plain.run("faults", "slow=nvmlGpuInstanceDestroy:0.4")
    assert ask(plain, look) > 0.35


def test_vgpus_say_so(plain: Simulation) -> None:
    look = "answer = n.nvmlDeviceGetVirtualizationMode(n.nvmlDeviceGetHandleByIndex(0))"
    assert plain.ask(look) == 0
    plain.run("faults", "vgpu")
    assert plain.ask(look) == 2


@pytest.mark.parametrize(
    "word", ["fail=nvmlX", "fail=nvmlX:y", "slow=nvmlX", "hang=x", "held=x", "lost-in=", "fail=X:3"]
)
def test_faults_that_mean_nothing_are_refused(plain: Simulation, word: str) -> None:
    ended = plain.run("faults", word)
    assert ended.returncode == 2
    assert f"NVML knows no fault '{word}'" in ended.stderr


@needs_root
def test_the_status_shows_modes_and_devices(plain: Simulation) -> None:
    plain.run("mig", "on", plain.uuids[0])
    ask(
        plain,
        "n.nvmlDeviceSetMigMode(a, 1); fill(make(9, 4, 4)); fill(make(0, 0, 8, a)) if 0 else 0;"
        "fill(make(5, 0, 4), 1); answer = 0",
    )
    text = plain.run("status").stdout.splitlines()
    assert text[0].endswith("MiB  MIG")
    assert [line.split(None, 1)[1] for line in text[1:3]] == [
        "3g.40gb  instance 1/0  memory slices 4:4",
        "2c.4g.40gb  instance 2/0  memory slices 0:4",
    ]
    assert text[3].endswith("MiB  MIG pending")
    rows = json.loads(plain.run("status", "--json").stdout)
    assert [row["mig_mode"] for row in rows] == [[1, 1], [0, 1]]
    assert [len(row["mig_devices"]) for row in rows] == [2, 0]
