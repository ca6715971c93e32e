"""What a dead job's hostile daemon costs the next user's prolog, and what a clean node does."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.measuring import Figures, Section, Series, format_ratio, interleave
from slurm_colloc_lab.simgpu.gpu_models import H200
from slurm_colloc_lab.simgpu.install import make_simulation
from tests.host.false_daemon import false_daemon
from tests.host.hook_node import NODE, OTHER, HookNode

RUNS = 10
TARGET_MS = 1000
_NUMBERS = "\n".join(str(number) for number in range(4_000_000, 4_000_040))
_BEHAVIOURS: dict[str, Mapping[str, object] | None] = {
    "no leftovers": None,
    "lists 40 pids, 1.9 s for each answer": {"text": _NUMBERS, "delay_s": 1.9},
    "never says hello": {"greets": False},
    "answers 4 MB": {"text": "x" * 4000, "repeat": 1000},
    "breaks off": {"ends": True},
}


def measure_leftovers() -> Section:
    """Wall time of a prolog, started as slurmd's script starts it; needs root."""
    if os.geteuid() != 0:
        return Section("Leftovers of a hostile job", (), (), ("left out: it needs root",))
    home = Path(tempfile.mkdtemp(prefix="hb", dir="/var/tmp"))
    home.chmod(0o755)
    try:
        make_simulation(home / "sim", {NODE: [H200, H200]})
        bed = HookNode(home, home / "sim")
        bed.write_policy()
        actions = {name: _make(bed, behaviour) for name, behaviour in _BEHAVIOURS.items()}
        measured = interleave(actions, RUNS, warm_ups=1)
        bed.end_all()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    figures = Figures()
    clean = measured["no leftovers"]
    for name, series in measured.items():
        ratio = "" if series is clean else format_ratio(series, clean, "none")
        figures.add(name, Series(series.values), "ms", target=TARGET_MS, ratio=ratio)
    return figures.build_section(
        "The next user's prolog, where a dead job's daemon is hostile",
        ["On the simulated GPU. The dead job holds the GPU that the next one gets."],
    )


def _make(bed: HookNode, behaviour: Mapping[str, object] | None) -> Callable[[], float]:
    def run() -> float:
        if behaviour is None:
            return _time_prolog(bed)
        bed.prolog("11")
        bed.change_checkpoint("11", seen=True)
        with false_daemon(bed, behaviour):
            ms = _time_prolog(bed)
        bed.epilog("11")
        return ms

    return run


def _time_prolog(bed: HookNode) -> float:
    started = time.monotonic()
    told = bed.prolog("12", SLURM_JOB_UID=str(OTHER), SLURM_JOB_GID=str(OTHER))
    ms = (time.monotonic() - started) * 1000
    assert told.audit["action"] == "prepared", told.audit
    bed.epilog("12")
    return ms
