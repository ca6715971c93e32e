"""The monitor as a process: real members, files that are read back, and what it survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import cast

import pytest

from slurm_colloc.instrument import layout
from slurm_colloc.runtime import pack_monitor
from slurm_colloc.runtime.step_command import StartedProcess
from slurm_colloc.store.report_files import GPU_COLUMNS, MEMBER_COLUMNS

from ..wait_until import wait_until
from .watched_pack import WatchedPack

BURN = "python3 -c 'sum(i * i for i in range({count}))'"
UUID = "GPU-11111111-2222-3333-4444-555555555555"


def test_a_member_with_children_is_read_with_all_of_them(bed: WatchedPack) -> None:
    bed.start_member(3, "sleep 60 & (sleep 60 & sleep 60) & wait")
    monitor = bed.start_monitor()
    bed.wait_for(lambda now: "3" in now["members"], "the member is seen")
    wait_until(
        lambda: any(row["processes"] == 5 for row in bed.ask_for_rows(monitor, 3)), "all five"
    )
    told = bed.end_monitor(monitor)
    rows = bed.member_rows(3)
    assert list(rows[0]) == [name for name, _ in MEMBER_COLUMNS]
    assert rows[-1]["processes"] == 5
    assert rows[-1]["threads"] == 5
    assert rows[-1]["host_memory_mb"] > 1
    assert (rows[-1]["attempt"], rows[-1]["start"]) == (1, 1)
    # It has never reported, which is not the same as no step.
    assert (rows[-1]["steps"], rows[-1]["progress"]) == (None, None)
    assert sorted(path.name for path in (bed.pack / "report").iterdir()) == [
        "members.parquet",
        "monitor.json",
    ]
    assert told["ended_at"] >= told["started_at"]
    assert told["own_memory_mb"] < told["rss_peak_mb"]
    assert told["own_memory_mb"] < 40
    assert told["ticks_taken"] <= told["ticks_due"]


def test_cpu_time_of_children_that_have_ended_stays(bed: WatchedPack) -> None:
    script = f"for i in 1 2 3; do {BURN.format(count=3_000_000)}; done; sleep 60"
    bed.start_member(1, script)
    monitor = bed.start_monitor()
    wait_until(lambda: "sleep" in _names(bed), "the children have ended")
    time.sleep(1)
    bed.end_monitor(monitor)
    seen = [row["cpu_s"] for row in bed.member_rows(1)]
    assert seen == sorted(seen)
    assert seen[-1] > 0.2


def test_a_member_that_was_over_between_two_looks_leaves_its_counters(bed: WatchedPack) -> None:
    member = bed.start_member(1, BURN.format(count=2_000_000))
    assert member.wait(60) == 0
    monitor = bed.start_monitor()
    bed.end_monitor(monitor)
    (row,) = bed.member_rows(1)
    assert row["processes"] == 0
    assert row["cpu_s"] > 0.05
    assert row["host_memory_mb"] is None


def test_the_last_row_of_a_member_is_of_its_end(bed: WatchedPack) -> None:
    member = bed.start_member(1, f"{BURN.format(count=2_000_000)}; sleep 1; exit 3")
    crashed = bed.start_member(2, "kill -SEGV $$")
    monitor = bed.start_monitor()
    assert member.wait(60) == 3
    assert crashed.wait(60) == 128 + signal.SIGSEGV
    wait_until(lambda: bed.latest == {**(bed.latest or {}), "members": {}}, "both are gone")
    bed.end_monitor(monitor)
    rows = bed.member_rows(1)
    assert rows[-1]["processes"] == 0
    assert rows[-1]["cpu_s"] == max(row["cpu_s"] for row in rows)
    assert bed.member_rows(2)[-1]["processes"] == 0


def test_a_member_that_starts_again_is_told_apart(bed: WatchedPack) -> None:
    monitor = bed.start_monitor()
    assert bed.start_member(1, "sleep 0.5").wait(60) == 0
    assert bed.start_member(1, "sleep 0.5", start=2).wait(60) == 0
    wait_until(lambda: not (bed.latest or {"members": 1})["members"], "both have ended")
    bed.end_monitor(monitor)
    assert {row["start"] for row in bed.member_rows(1)} == {1, 2}


def test_a_process_outside_the_tree_is_found_by_its_environment(bed: WatchedPack) -> None:
    bed.start_member(7, "sleep 60 & wait")
    # What an srun inside the script starts is no child of the script.
    bed.start_member(
        8, "sleep 60 & wait", extra={"SLURM_COLLOC_START": f"{bed.pack}/members/0007/run.1.1"}
    )
    (bed.progress / "0008.1").rmdir()
    monitor = bed.start_monitor()
    wait_until(
        lambda: any(row["processes"] == 4 for row in bed.ask_for_rows(monitor, 7)), "all of it"
    )
    bed.end_monitor(monitor)
    assert bed.member_rows(8) == []


def test_what_a_member_counts_is_in_its_rows(bed: WatchedPack) -> None:
    bed.start_member(5, "sleep 120")
    now = time.monotonic_ns()
    first, last = now - 20_000_000_000, now - 1_000_000_000
    content = layout.RECORD.pack(
        *(layout.MAGIC, layout.VERSION, layout.SIZE, 0, 77, 2, 400, 3, 51200, 410),
        *(2_500_000_000, 0, first, last, now, -1, 0, layout.SOURCE_OPTIMIZER, 1, 0, 0, 0, 0),
    )
    counters = bed.progress / "0005.1" / layout.build_name(77, 1234)
    counters.write_bytes(content.ljust(layout.SIZE, b"\0"))
    monitor = bed.start_monitor()
    bed.wait_for(lambda now: now["members"].get("5", {}).get("steps") == 400, "it is read")
    # Where they are gone the last counts stay.
    counters.unlink()
    time.sleep(0.5)
    bed.end_monitor(monitor)
    row = bed.member_rows(5)[-1]
    names = ("steps", "skipped", "samples", "batches", "wait_s", "trainers", "progress")
    assert [row[name] for name in names] == [400, 3, 51200, 410, 2.5, 1, "optimizer"]
    assert row["last_step_at"] - row["first_step_at"] == pytest.approx(19, abs=0.01)
    offset_s = time.time() - time.monotonic()
    assert row["last_step_at"] == pytest.approx(last / 1e9 + offset_s, abs=0.5)


def test_without_shared_memory_members_are_found_by_their_records(bed: WatchedPack) -> None:
    bed.start_member(4, "sleep 60")
    monitor = bed.start_monitor(progress=Path("/nonexistent"))
    bed.wait_for(lambda now: "4" in now["members"], "the member is seen")
    bed.end_monitor(monitor)


@pytest.mark.long
def test_sixty_four_members(bed: WatchedPack) -> None:
    monitor = bed.start_monitor(interval_s=1.0)
    for number in range(1, 65):
        bed.start_member(number, "sleep 120 & sleep 120 & wait")
    bed.wait_for(lambda now: len(now["members"]) == 64, "all are seen")
    told = bed.end_monitor(monitor)
    assert len({row["member"] for row in bed.rows("members")}) == 64
    assert told["own_memory_mb"] < 40


def test_a_killed_monitor_loses_ten_seconds_at_most(bed: WatchedPack) -> None:
    bed.start_member(1, "sleep 120")
    monitor = bed.start_monitor(interval_s=0.5)
    wait_until(lambda: len(bed.rows("members")) > 10, "a piece is written")
    monitor.kill()
    killed_at = time.time()
    monitor.wait()
    before = bed.rows("members")
    assert before[-1]["at"] > killed_at - 10.5 - 2
    # As if it had been killed while it wrote.
    (bed.pack / "report" / f"monitor.json.tmp{monitor.pid}-node-0123abcd").write_text("{")
    # The next goes on behind it, and makes one file of all.
    again = bed.start_monitor(interval_s=0.5)
    told = bed.end_monitor(again)
    rows = bed.rows("members")
    assert rows[: len(before)] == before
    assert len(rows) > len(before)
    assert len(told["earlier"]) == 1
    assert (bed.pack / "report" / "members.parquet").exists()
    left = {path.name for path in (bed.pack / "report").iterdir()}
    assert left == {"members.parquet", "monitor.json"}


def test_a_later_attempt_appends(bed: WatchedPack) -> None:
    bed.start_member(1, "sleep 120")
    bed.end_monitor(bed.start_monitor())
    first = bed.rows("members")
    (bed.pack / "attempt").write_text("2\n")
    bed.end_monitor(bed.start_monitor(attempt=2, progress=Path("/nonexistent")))
    assert bed.rows("members")[: len(first)] == first
    assert bed.monitor["attempt"] == 2
    assert [one["attempt"] for one in bed.monitor["earlier"]] == [1]


def test_an_older_attempt_ends_by_itself(bed: WatchedPack) -> None:
    monitor = bed.start_monitor()
    (bed.pack / "attempt").write_text("2\n")
    assert monitor.wait(60) == 0


def test_it_ends_with_its_parent(bed: WatchedPack, tmp_path: Path) -> None:
    bed.start_member(1, "sleep 120")
    pid_file = tmp_path / "pid"
    runner = bed.start_runner(pid_file)
    wait_until(lambda: bed.latest is not None and pid_file.exists(), "a sample")
    pid = int(pid_file.read_text())
    runner.kill()
    runner.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), "it has ended")
    assert bed.rows("members")
    assert bed.monitor["ended_at"] is not None


def test_a_signal_of_somebody_else_only_makes_it_write(bed: WatchedPack) -> None:
    bed.start_member(1, "sleep 120")
    monitor = bed.start_monitor(interval_s=1.0)
    assert bed.rows("members") == []
    pid = os.fork()
    if pid == 0:
        os.kill(monitor.pid, signal.SIGTERM)
        os._exit(0)
    os.waitpid(pid, 0)
    wait_until(lambda: bed.rows("members"), "it writes what it has")
    assert monitor.poll() is None
    bed.end_monitor(monitor)


def test_a_stopped_monitor_tells_of_its_gap(bed: WatchedPack) -> None:
    bed.start_member(1, "sleep 120")
    monitor = bed.start_monitor()
    monitor.send_signal(signal.SIGSTOP)
    time.sleep(2)
    continued_at = time.time()
    monitor.send_signal(signal.SIGCONT)
    bed.wait_for(lambda now: now["at"] > continued_at, "a sample after it")
    told = bed.end_monitor(monitor)
    # Where it was in the middle of reading something, it says that this took so long.
    gaps = [gap for gap in told["gaps"] if gap[2].startswith("monitor: ")]
    assert max(gap[1] - gap[0] for gap in gaps) >= 1.9
    assert told["ticks_due"] - told["ticks_taken"] >= 9


def test_a_node_without_nvml_has_members_all_the_same(bed: WatchedPack) -> None:
    bed.write_setup(UUID)
    bed.start_member(1, "sleep 120")
    monitor = bed.start_monitor()
    bed.wait_for(lambda now: "1" in now["members"], "the member is seen")
    told = bed.end_monitor(monitor)
    rows = bed.rows("gpu")
    assert list(rows[0]) == [name for name, _ in GPU_COLUMNS]
    assert {row["uuid"] for row in rows} == {UUID}
    assert all(row[name] is None for row in rows for name, _ in GPU_COLUMNS[3:])
    assert any(
        "NVML cannot be used: NVML Shared Library Not Found" in gap[2] for gap in told["gaps"]
    )
    assert all(row["gpu_memory_mb"] is None for row in bed.member_rows(1))


def test_it_keeps_off_the_cpus_of_members(bed: WatchedPack) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    bed.start_member(1, "sleep 120", cpus=(allowed[0],))
    monitor = bed.start_monitor()
    others = set(allowed[1:]) or {allowed[0]}
    wait_until(lambda: os.sched_getaffinity(monitor.pid) == others, "it has moved")
    assert os.getpriority(os.PRIO_PROCESS, monitor.pid) >= 10
    bed.end_monitor(monitor)


def _names(bed: WatchedPack) -> set[str]:
    """The programs that run as children of members' scripts."""
    found = set()
    for member in (bed.pack / "members").glob("*/run.*.started"):
        pid = json.loads(member.read_text())["pid"]
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found.add(Path(f"/proc/{child}/comm").read_text().strip())
    return found


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_runners_term_is_heard_although_one_of_slurms_waits(
    bed: WatchedPack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that wait are one, and the first sender's: the runner's own is lost in it."""
    monkeypatch.setattr(pack_monitor, "STOP_WAIT_S", 20.0)
    monitor = bed.start_monitor()
    # Stopped, it hears nothing until half a second after the runner's first TERM.
    script = f"kill -STOP {monitor.pid}; kill -TERM {monitor.pid}; echo; sleep 0.5"
    sender = subprocess.Popen(
        ["sh", "-c", f"{script}; kill -CONT {monitor.pid}"], stdout=subprocess.PIPE, text=True
    )
    assert sender.stdout is not None
    sender.stdout.readline()
    assert pack_monitor._end(cast(StartedProcess, monitor))
    assert monitor.returncode == 0
    sender.communicate()
