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
            target=TARGET_MS,
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
    use = {"mean": 0.61, "p50": 0.62, "p95": 0.8, "max": 0.97, "attribution": "whole_gpu"}
    members = [
        {
            "member": member, "id": f"{4000 + number}/{member}", "name": "train",
            "state": "COMPLETED", "cause": None, "script": f"train{number % 20}.sh",
            "arguments": ["--lr", f"0.{member}"], "directory": "/home/ada/sweeps", "node": "n1",
            "gpu_uuids": ["GPU-1"], "mode": "mps", "exit_code": {"code": 0, "signal": 0},
            "started_at": end - _STAY_S, "ended_at": end, "stopped_s": 0.0, "starts": 1,
            "steps": 10_000, "slowdown": 1.3, "rate": {"steps_per_s": 8.0, "unknown": None},
            "energy_j": {"value": 1e5, "attribution": "modelled"},
            "interference": [{"at": end, "came": [1], "went": [2], "ratio": 0.9}] * 4,
            "notes": [],
        }
        for member in range(1, MEMBERS + 1)
    ]  # fmt: skip
    return {
        "schema": 1, "pack_id": pack_id, "attempt": 1, "job": str(4000 + number), "name": "train",
        "final": True, "gpu": {"uuid": "GPU-1", "model": "NVIDIA H200", "memory_mb": 143771},
        "setup": {"mode": "mps"}, "window": {"from": end - _STAY_S, "to": end},
        "gpu_use": dict.fromkeys(("sm_active", "dram_active", "power_w", "gpu_memory_mb"), use),
        "energy_j": 5.4e5, "members": members,
        "pack": {"gpu_hours_saved": 1.1, "kwh_saved": 0.2, "antt": 1.3, "stp": 3.1}, "notes": [],
    }  # fmt: skip
