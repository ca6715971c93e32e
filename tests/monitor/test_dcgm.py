"""Activity by DCGM: what dcgmi prints, and a monitor that runs it. No real dcgmi was tried."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.monitor.dcgm_activity import ActivityTable, DcgmActivity, parse_discovery
from slurm_colloc.monitor.gpu_reading import Capabilities

from ..simgpu.conftest import Simulation
from ..wait_until import wait_until
from .watched_pack import Row, WatchedPack, environment_of

# As dcgmi prints it: columns of their width, the unit's line below the head.
DMON = """\
#Entity   GRACT        SMACT        TENSO        DRAMA
ID
GPU 0     0.931        0.512        0.204        N/A
GPU 3     1.001        0.000        0.000        0.101
"""
# As an older one prints it.
OLDER = """\
# Entity  SMACT  DRAMA
      Id
    GPU 0  0.250  0.125
"""
DISCOVERY = """\
2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA A100-SXM4-40GB                                          |
|        | PCI Bus ID: 00000000:07:00.0                                         |
|        | Device UUID: GPU-1d82f4df-3cf9-150d-088b-52f18f8654e1                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA A100-SXM4-40GB                                          |
|        | PCI Bus ID: 00000000:0F:00.0                                         |
|        | Device UUID: {uuid}                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
+-----------+
| Switch ID |
+-----------+
+-----------+
"""
UUID = "GPU-94116b5e-0000-0000-0000-000000000001"


def read_lines(text: str) -> list[tuple[int, dict[str, float | None]]]:
    table = ActivityTable()
    found = (table.read(line) for line in text.splitlines())
    return [row for row in found if row is not None]


def test_a_line_is_of_one_gpu_and_what_is_not_available_is_no_number() -> None:
    assert read_lines(DMON) == [
        (0, {"engine_active": 0.931, "sm_active": 0.512, "tensor_active": 0.204,
             "dram_active": None}),
        # Two clocks of the hardware make a little more than all.
        (3, {"engine_active": 1.0, "sm_active": 0.0, "tensor_active": 0.0, "dram_active": 0.101}),
    ]  # fmt: skip


def test_columns_go_by_the_head_that_was_printed_last() -> None:
    assert read_lines(OLDER) == [(0, {"sm_active": 0.25, "dram_active": 0.125})]
    swapped = "#Entity   DRAMA        SMACT        POWER\nID        W\nGPU 0  0.1  0.2  300.1\n"
    assert read_lines(DMON + swapped)[-1] == (0, {"dram_active": 0.1, "sm_active": 0.2})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ID",
        "GPU 0     0.931        0.512        0.204",
        "GPU 0",
        "GPU-I 0   0.9  0.5  0.2  0.1",
        "GPU x     0.9  0.5  0.2  0.1",
        "dmon was stopped do to receiving a signal",
        "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.",
    ],
)
def test_other_lines_are_passed_over(line: str) -> None:
    table = ActivityTable()
    assert table.read("GPU 0     0.1 0.1 0.1 0.1") is None, "there was no head yet"
    table.read("#Entity   GRACT        SMACT        TENSO        DRAMA")
    assert table.read(line) is None


@pytest.mark.parametrize("value", ["nan", "-0.1", "7.5", "0.1.2", "inf", "N/A"])
def test_what_is_no_share_is_unknown(value: str) -> None:
    assert read_lines(f"#Entity   SMACT\nGPU 0  {value}\n") == [(0, {"sm_active": None})]


def test_gpus_have_numbers_of_dcgm_s_own() -> None:
    assert parse_discovery(DISCOVERY.format(uuid=UUID)) == {
        "GPU-1d82f4df-3cf9-150d-088b-52f18f8654e1": 0,
        UUID: 1,
    }
    assert parse_discovery("Error: unable to establish a connection to the specified host") == {}


def write_dcgmi(directory: Path, *, uuid: str = UUID, dmon: str = "") -> Path:
    """A stand-in for dcgmi: knows GPU `uuid` as number 1, and goes on as `dmon` says."""
    program = directory / "dcgmi"
    discovery = directory / "discovery"
    discovery.write_text(DISCOVERY.format(uuid=uuid))
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {directory}/asked\n'
        f'[ "$1" = discovery ] && exec cat {discovery}\n'
        f"echo $$ > {directory}/pid\n"
        f"{dmon}\n"
    )
    program.chmod(0o755)
    return program


ROWS = (
    "echo '#Entity   GRACT        SMACT        TENSO        DRAMA'; echo ID\n"
    "while echo 'GPU 1     0.900        0.620        0.310        0.150'; do sleep 0.2; done\n"
)


@pytest.fixture
def running_a100(bed: WatchedPack, simulation: Simulation) -> tuple[str, dict[str, str]]:
    """A pack's GPU without GPM, and the environment in which a dcgmi of the test's is found."""
    _, a100 = simulation.uuids
    environ = environment_of(simulation)
    bed.write_setup(a100)
    return a100, {**environ, "PATH": f"{bed.directory}:{environ['PATH']}"}


def rows_of(bed: WatchedPack, uuid: str) -> list[Row]:
    return [row for row in bed.rows("gpu") if row["uuid"] == uuid]


def start_monitor(bed: WatchedPack, environ: dict[str, str]) -> subprocess.Popen[str]:
    return bed.start_monitor(environ, activity="dcgm")


def read_pid(directory: Path) -> int:
    """The stand-in's, 0 before it has written it."""
    path = directory / "pid"
    return int(path.read_text() or 0) if path.exists() else 0


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_gpu_without_gpm_has_activity_where_the_site_runs_dcgm(
    bed: WatchedPack, running_a100: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    a100, environ = running_a100
    write_dcgmi(bed.directory, uuid=a100, dmon=ROWS)
    monitor = start_monitor(bed, environ)

    def is_active(now: dict[str, Any]) -> bool:
        return bool(now["gpus"].get(a100, {}).get("sm_active") == pytest.approx(0.62))

    bed.wait_for(is_active, "DCGM has told its activity")
    pid = read_pid(tmp_path)
    told = bed.end_monitor(monitor)
    wait_until(lambda: not is_running(pid), "dcgmi has ended with the monitor")
    last = rows_of(bed, a100)[-1]
    found = [last[name] for name in ("engine_active", "sm_active", "tensor_active", "dram_active")]
    assert found == pytest.approx([0.9, 0.62, 0.31, 0.15])
    assert last["sm_occupancy"] is None
    assert told["capabilities"]["sm_active"] == {"source": "dcgm:1002", "state": "ok", "detail": ""}
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["discovery -l", "dmon -e 1001,1002,1004,1005 -d 1000 -i 1"]


@pytest.mark.parametrize(
    ("dmon", "is_known", "reason"),
    [
        (None, True, "No such file or directory"),
        ("echo 'Error setting watches. Result: -33: not supported'; exit 1", True, "Error setting"),
        ("exit 3", True, "it ended with status 3"),
        ("exit 0", False, "it does not know the pack's GPU"),
    ],
    ids=["missing", "refuses", "ends", "stranger"],
)
def test_where_dcgm_fails_it_is_said_once_and_the_rest_is_measured(
    bed: WatchedPack,
    running_a100: tuple[str, dict[str, str]],
    dmon: str | None,
    is_known: bool,
    reason: str,
) -> None:
    a100, environ = running_a100
    if dmon is not None:
        write_dcgmi(bed.directory, uuid=a100 if is_known else UUID, dmon=dmon)
    monitor = start_monitor(bed, environ)
    assert monitor.stderr is not None
    # It blocks until the line is there.
    line = monitor.stderr.readline()
    assert line.startswith("csub monitor: no activity by DCGM: ")
    assert reason in line
    before = (bed.latest or {})["at"]
    bed.wait_for(lambda now: now["at"] > before, "it goes on")
    # end_monitor would raise if it had been said again.
    told = bed.end_monitor(monitor)
    capability = told["capabilities"]["sm_active"]
    assert capability["state"] == "error"
    assert reason in capability["detail"]
    last = rows_of(bed, a100)[-1]
    assert last["sm_active"] is None
    assert last["power_w"] is not None


def test_old_lines_are_not_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_dcgmi(
        tmp_path, dmon="echo '#Entity   SMACT'; echo 'GPU 1     0.500'; exec sleep 100"
    )
    known = Capabilities()
    activity = DcgmActivity(known, str(program))
    activity.follow([UUID])
    wait_until(lambda: activity.read(UUID) == {"sm_active": 0.5}, "a line was read")
    monkeypatch.setattr("slurm_colloc.monitor.dcgm_activity.STALE_S", -1.0)
    assert activity.read(UUID) == {}
    activity.close()
    wait_until(lambda: not is_running(read_pid(tmp_path)), "it has ended")
    assert activity.take_problem() == "", "it was ended, it did not fail"


def test_a_dcgmi_that_outlives_its_monitor_ends_at_its_next_line(
    bed: WatchedPack, running_a100: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    a100, environ = running_a100
    write_dcgmi(bed.directory, uuid=a100, dmon=ROWS)
    monitor = start_monitor(bed, environ)
    pid = wait_until(lambda: read_pid(tmp_path), "dcgmi runs")
    os.kill(monitor.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), "it has no one to print to")
