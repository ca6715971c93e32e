"""`csub report --since` over very many packs: by its index, and where that has to be made."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measuring import Figures, Section, build_environment, interleave, run_timed

PACKS = 10_000
MEMBERS = 4
RUNS = 7
TARGET_MS = 3000
_STAY_S = 1800.0


def measure_sums() -> Section:
    """Wall time of the whole command, for a user of 10,000 packs of 4 members."""
    csub = str(Path(sys.executable).with_name("csub"))
    argv = [csub, "report", "--since=52w", "--by=script"]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        state = home / ".local" / "state" / "slurm_colloc"
        _write_packs(state)
        environment = {
            **build_environment(home, Path(sys.executable).parent),
            "XDG_STATE_HOME": str(state.parent),
        }
        index = state / "summaries"

        def make(*, with_index: bool) -> Callable[[], float]:
            def run() -> float:
                if not with_index:
                    index.unlink(missing_ok=True)
                return run_timed(argv, environment=environment, directory=home)[0]

            return run

        measured = interleave(
            {"without": make(with_index=False), "with": make(with_index=True)}, RUNS
        )
        size_mb = index.stat().st_size / 1e6
    figures = Figures()
    for name, what in (("with", "by the index"), ("without", "the index is made first")):
        figures.add(
            f"{PACKS:,} packs of {MEMBERS} members, {what}",
            measured[name],
            "ms",
            # The index is made once; after that it grows as packs end.
            target=TARGET_MS if name == "with" else None,
            command="csub report --since=52w --by=script",
        )
    return figures.build_section(
        "Sums over a year", [f"The index of {PACKS:,} packs has {size_mb:.1f} MB."]
    )


def _write_packs(state: Path) -> None:
    now = time.time()
    for number in range(PACKS):
        pack_id = f"20260101-{number:06d}-00000000.0"
        pack = state / "packs" / pack_id
        (pack / "report").mkdir(parents=True)
        (pack / "attempt").write_text("1\n")
        summary = _build_summary(pack_id, number, now - number * _STAY_S)
        (pack / "report" / "summary.json").write_text(json.dumps(summary))


def _build_summary(pack_id: str, number: int, end: float) -> dict[str, Any]:
    """A summary as large as a real one, and of the same shape."""
    use = {"mean": 0.61, "p50": 0.62, "p95": 0.8, "max": 0.97, "attribution": "whole_gpu"}
    part = {"value": 1e5, "attribution": "modelled"}
    change = {"at": end, "came": [1], "went": [2], "before_steps_per_s": 8.0,
              "after_steps_per_s": 7.0, "ratio": 0.9}  # fmt: skip
    stall = dict.fromkeys(
        ("data", "host", "device", "sharing", "data_alone", "overlap", "alone_s"), 0.1
    )
    members = [
        {
            "member": member, "id": f"{4000 + number}/{member}", "name": "train",
            "state": "COMPLETED", "cause": None, "script": f"train{number % 20}.sh",
            "arguments": ["--lr", f"0.{member}"], "directory": "/home/ada/sweeps", "node": "n1",
            "gpu_uuids": ["GPU-1"], "mode": "mps", "exit_code": 0, "exit_signal": 0,
            "started_at": end - _STAY_S, "ended_at": end, "stopped_s": 0.0, "starts": 1,
            "steps": 10_000, "skipped": 0, "samples": 1_280_000, "progress": "optimizer",
            "slowdown": 1.3, "cpu_s": 2000.0, "cpu_cores": 1.1, "host_memory_peak_mb": 4000.0,
            "rate": {"steps_per_s": 8.0, "samples_per_s": 1024.0, "unknown": None},
            "solo": {"steps_per_s": 10.4, "source": "profile", "n": 3, "measured_by": "alone"},
            "gpu_memory_mb": {"peak": 8000.0, "attribution": "per_process", "by": "nvml"},
            "sm_share": part, "energy_j": part, "stall": {**stall, "attribution": None},
            "interference": [change] * 4, "notes": [],
        }
        for member in range(1, MEMBERS + 1)
    ]  # fmt: skip
    rest = {"measured": 1.0, "explained": 0.9, "rest": 0.1, "members_unknown": []}
    return {
        "schema": 1, "pack_id": pack_id, "attempt": 1, "job": str(4000 + number), "name": "train",
        "node": "n1", "made_at": end, "final": True,
        "gpu": {"uuid": "GPU-1", "model": "NVIDIA H200", "memory_mb": 143771},
        "setup": {"mode": "mps", "asked": "auto", "reason": "", "by": "runner", "notes": []},
        "window": {"from": end - _STAY_S, "to": end}, "coverage": None,
        "gpu_use": dict.fromkeys(("sm_active", "dram_active", "power_w", "gpu_memory_mb"), use),
        "throttled_s": {"power": 0.0}, "energy_j": 5.4e5,
        "unexplained": {"sm_active": rest, "energy_j": rest}, "members": members,
        "pack": {
            "stp": 3.1, "stp_at_least": 3.1, "antt": 1.3, "prediction": None, "fairness": None,
            "members": MEMBERS, "members_most": MEMBERS, "overlap_s": _STAY_S,
            "serial_s": 3.1 * _STAY_S, "shared_s": _STAY_S, "gpu_hours_saved": 1.05,
            "kwh_saved": 0.2, "kwh_how": "solo_power", "idle_power_w": 100.0,
            "idle_power_from": "measured", "unknown": [],
        },
        "degree": None, "notes": [],
    }  # fmt: skip
