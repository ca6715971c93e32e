"""An NVML that is absent, hangs or lies, on demand."""

from __future__ import annotations

import pytest

from .conftest import Simulation

ONE = "h = n.nvmlDeviceGetHandleByIndex(0)\n"


def test_an_absent_library_is_absent_as_a_real_one(simulation: Simulation) -> None:
    ask = "import pynvml as n\ntry:\n    n.nvmlInit()\nexcept n.NVMLError as e:\n    print(repr(e))"
    simulation.run("faults", "absent")
    simulated = simulation.ask_raw(ask).stdout
    real = simulation.ask_raw(ask, {"LD_LIBRARY_PATH": ""}).stdout
    assert simulated == real == "NVMLError_LibraryNotFound(12)\n"


def test_a_driver_that_is_not_loaded(simulation: Simulation) -> None:
    simulation.run("faults", "no-driver")
    ended = simulation.ask_raw("import pynvml; pynvml.nvmlInit()")
    assert "NVMLError_DriverNotLoaded" in ended.stderr


def test_a_simulation_that_is_gone_is_no_driver(simulation: Simulation) -> None:
    ended = simulation.ask_raw("import pynvml; pynvml.nvmlInit()", {"SIMGPU_ROOT": "/nowhere"})
    assert "NVMLError_DriverNotLoaded" in ended.stderr


def test_a_gpu_can_be_lost_while_it_is_watched(simulation: Simulation) -> None:
    simulation.run("faults", f"lost={simulation.uuids[1]}")
    asked = """
answer = []
for i in range(n.nvmlDeviceGetCount()):
    answer.append(code(n.nvmlDeviceGetHandleByIndex, i))
"""
    assert simulation.ask(asked) == [0, 15]
    simulation.run("faults", "lost")
    assert simulation.ask(asked) == [15, 15]
    later = f"""
import os, subprocess
os.environ["PATH"] += ":/usr/bin:/bin"
{ONE}
subprocess.run(["simgpu", "faults", "lost"], check=True)
answer = code(n.nvmlDeviceGetPowerUsage, h)
subprocess.run(["simgpu", "faults"], check=True)
answer = [answer, code(n.nvmlDeviceGetPowerUsage, h)]
"""
    simulation.run("faults")
    assert simulation.ask(later) == [15, 0]


def test_a_lie_about_the_uuid(simulation: Simulation) -> None:
    simulation.run("faults", "lie=uuid")
    told = simulation.ask(f"{ONE}answer = n.nvmlDeviceGetUUID(h)")
    assert told != simulation.uuids[0]
    assert len(told) == len(simulation.uuids[0])


def test_a_lie_about_processes(simulation: Simulation) -> None:
    process = simulation.start("--seconds", "60")
    listed = f"{ONE}answer = pids(n.nvmlDeviceGetComputeRunningProcesses(h))"
    assert simulation.ask(listed) == [process.pid]
    simulation.run("faults", "lie=processes")
    assert simulation.ask(listed) == []


def test_a_call_that_hangs_comes_back_late(simulation: Simulation) -> None:
    simulation.run("faults", "hang=0.3")
    waited = simulation.ask(
        "start = time.monotonic(); n.nvmlDeviceGetCount(); answer = time.monotonic() - start"
    )
    assert waited >= 0.3


def test_a_strangers_faults_do_not_count(simulation: Simulation, stranger: int) -> None:
    ended = simulation.run("faults", "lost", uid=stranger)
    assert ended.returncode == 6
    assert "cannot be written" in ended.stderr
    faults = simulation.directory / "faults"
    faults.write_text("lost\n")
    faults.chmod(0o666)
    assert simulation.ask(f"{ONE}answer = code(n.nvmlDeviceGetPowerUsage, h)") == 0


@pytest.mark.parametrize("word", ["broken", "hang", "hang=x", "lost=1", "lie=all"])
def test_an_unknown_fault_is_refused(simulation: Simulation, word: str) -> None:
    ended = simulation.run("faults", word)
    assert ended.returncode == 2
    assert ended.stderr == f"simgpu: error: NVML knows no fault '{word}': see simgpu --help\n"
    assert not (simulation.directory / "faults").exists()
