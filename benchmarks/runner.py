"""What the runner costs on the node: starting members, and waiting for them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.bed import Bed, wait_until
from benchmarks.measuring import Figures, Section, Series

MEMBERS = 32
PACKS = 3
WATCHED_S = 20.0
START_TARGET_S = 3.0
HOST_MEMORY_TARGET_MB = 40.0
CPU_TARGET_PERCENT = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WORDS = (
    f"--array=0-{MEMBERS - 1}",
    f"--degree={MEMBERS}",
    "--gres=gpu:1",
    "--cpus-per-task=1",
    "--mem=100M",
    "--time=10",
)


def measure_runner(bed: Bed) -> Section:
    """Start packs of 32 members; the last one is watched while it waits."""
    starts, real_starts, figures = [], [], Figures()
    for number in range(PACKS):
        job_id = bed.run([bed.csub, "--parsable", *WORDS, "--wrap", "exec sleep 600"]).strip()
        pack = bed.state.pack_path(bed.state.find_packs(job_id)[0])
        wait_until(
            lambda pack=pack: len(select_events(pack, "start")) == MEMBERS,  # type: ignore[misc]
            f"{MEMBERS} members run",
        )
        last = max(event["at"] for event in select_events(pack, "start"))
        starts.append(last - select_events(pack, "attempt")[0]["at"])
        guard = read_parent(json.loads((pack / "runner.json").read_text())["pid"])
        real_starts.append(last - read_start_time(guard))
        if number == PACKS - 1:
            _watch(pack, figures, Series(tuple(starts)), Series(tuple(real_starts)))
        bed.run([bed.csub, "cancel", job_id])
        bed.cancel_all()
    notes = [
        f"`csub {' '.join(WORDS)} --wrap 'exec sleep 600'`, {PACKS} packs one after the other.",
        f"CPU time is counted over {WATCHED_S:g} s with all members asleep; 100 % is one core.",
        "Host memory from /proc/PID/smaps_rollup: RSS counts shared pages whole, PSS by share.",
        (
            "A member has two processes of srun and one slurmstepd, as any job step, and "
            "one wrapper, which is csub's."
        ),
    ]
    return figures.build_section(f"The runner of a pack of {MEMBERS} members", notes)


def _watch(pack: Path, figures: Figures, starts: Series, real_starts: Series) -> None:
    runner = json.loads((pack / "runner.json").read_text())["pid"]
    started = [
        json.loads(path.read_text()) for path in sorted(pack.glob("members/*/run.*.started"))
    ]
    wrappers = [int(record["wrapper_pid"]) for record in started]
    stepds = sorted({read_parent(pid) for pid in wrappers})
    sruns = list_below(runner)
    groups = {"runner": [runner], "guard": [read_parent(runner)], "srun": sruns,
              "wrapper": wrappers, "slurmstepd": stepds}  # fmt: skip
    before = {name: sum(map(read_cpu_s, pids)) for name, pids in groups.items()}
    begun = time.monotonic()
    time.sleep(WATCHED_S)
    elapsed_s = time.monotonic() - begun
    used = {
        name: 100 * (sum(map(read_cpu_s, pids)) - before[name]) / elapsed_s
        for name, pids in groups.items()
    }
    figures.add(
        f"first event of the runner to the start of member {MEMBERS}",
        starts,
        "s",
        target=START_TARGET_S,
    )
    figures.add(f"start of the batch script to the start of member {MEMBERS}", real_starts, "s")
    memory = {name: [read_host_memory_mb(pid) for pid in pids] for name, pids in groups.items()}
    for kind in ("RSS", "PSS"):
        figures.add(
            f"host memory of the runner, {kind}",
            Series(tuple(entry[kind] for entry in memory["runner"])),
            "MB",
            target=HOST_MEMORY_TARGET_MB,
        )
    figures.add(
        "host memory of the runner, RSS at its highest",
        Series((read_peak_mb(runner),)),
        "MB",
        target=HOST_MEMORY_TARGET_MB,
    )
    figures.add("CPU time of the runner", Series((used["runner"],)), "%", target=CPU_TARGET_PERCENT)
    for name, text in (
        ("guard", "its guard"),
        ("srun", f"all {len(sruns)} processes of srun"),
        ("wrapper", f"all {len(wrappers)} wrappers"),
        ("slurmstepd", f"all {len(stepds)} slurmstepd"),
    ):
        figures.add(f"CPU time of {text}", Series((used[name],)), "%")
    for name in ("guard", "wrapper", "srun", "slurmstepd"):
        for kind in ("RSS", "PSS"):
            values = tuple(entry[kind] for entry in memory[name])
            text = "its guard" if name == "guard" else f"one {name}"
            figures.add(f"host memory of {text}, {kind}", Series(values), "MB")
    total = sum(entry["PSS"] for entries in memory.values() for entry in entries)
    figures.add("host memory of all of these, PSS, per member", Series((total / MEMBERS,)), "MB")


def select_events(pack: Path, name: str) -> list[dict[str, Any]]:
    """Events of one kind from a pack's log; none while there is no log."""
    try:
        lines = (pack / "events.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [event for event in map(json.loads, lines) if event["event"] == name]


def read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def read_parent(pid: int) -> int:
    """The parent's process id."""
    return int(read_stat(pid)[1])


def read_cpu_s(pid: int) -> float:
    """CPU time of a process, in seconds."""
    fields = read_stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def read_start_time(pid: int) -> float:
    """When a process began, in seconds since the epoch, to a hundredth."""
    since_boot_s = int(read_stat(pid)[19]) / TICKS_PER_S
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot_s)


def read_host_memory_mb(pid: int) -> dict[str, float]:
    """RSS and PSS of a process in MB (2**20 bytes)."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Rss", "Pss"):
            found[name.upper()] = int(rest.split()[0]) / 1024
    return found


def read_peak_mb(pid: int) -> float:
    """The highest RSS that a process ever had, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has ended")


def list_below(pid: int) -> list[int]:
    """Children and their children."""
    found, left = [], [pid]
    while left:
        for task in Path(f"/proc/{left.pop()}/task").iterdir():
            children = [int(word) for word in (task / "children").read_text().split()]
            found += children
            left += children
    return found
