"""What dividing a GPU by MIG costs a prolog and an epilog, with a driver's latencies simulated."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Figures, Section, Series
from slurm_colloc.model.mig_layout import place
from slurm_colloc.model.mig_profiles import MIG_TABLES, InstanceProfile
from slurm_colloc_lab.simgpu.gpu_models import H100_80
from slurm_colloc_lab.simgpu.install import make_simulation
from tests.host.hook_node import NODE, HookNode

RUNS = 5
PLACING_TARGET_MS = 10
PROLOG_TARGET_MS = 10_000
LAYOUTS = ("3g+2g+1g+1g", "1g+1g+1g+1g+1g+1g+1g")


def measure_dividing() -> Section:
    """Wall time of hooks, started as slurmd's script starts them; needs root."""
    figures = Figures()
    figures.add(
        "the slowest placing, of all wishes", _time_placing(), "ms", target=PLACING_TARGET_MS
    )
    if os.geteuid() != 0:
        return figures.build_section("MIG", ["Hooks were left out: they need root."])
    home = Path(tempfile.mkdtemp(prefix="hb", dir="/var/tmp"))
    home.chmod(0o755)
    try:
        make_simulation(home / "sim", {NODE: [H100_80]}, mig=True)
        bed = HookNode(home, home / "sim")
        bed.slurm_conf.write_text(f"NodeName={NODE} Gres=gpu:1\n")
        bed.write_policy(mig="where-on", deadline_s=40.0)
        bed.fail_nvml("real-latency")
        for layout in LAYOUTS:
            rounds = [_time_hooks(bed, layout) for _ in range(RUNS)]
            for number, name in enumerate(("prolog", "epilog")):
                series = Series(tuple(pair[number] for pair in rounds))
                figures.add(f"{name}, {layout}", series, "ms", target=PROLOG_TARGET_MS)
        bed.end_all()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return figures.build_section(
        "MIG",
        ["On a simulated H100: destroying an instance takes 1 s, every other change 0.1 s."],
    )


def _time_placing() -> Series:
    """The slowest of all wishes of up to seven instances on an H100, each the best of three."""
    worst = 0.0
    for count in range(1, 8):
        for wish in itertools.combinations_with_replacement(MIG_TABLES["H100-80"], count):
            worst = max(worst, min(_time_one(wish) for _ in range(3)))
    return Series((worst,))


def _time_one(wish: tuple[InstanceProfile, ...]) -> float:
    started = time.perf_counter()
    place(wish)
    return (time.perf_counter() - started) * 1000


def _time_hooks(bed: HookNode, layout: str) -> tuple[float, float]:
    started = time.monotonic()
    told = bed.prolog("12", SLURM_JOB_COMMENT=f"[csub/1 mig={layout}]")
    between = time.monotonic()
    assert told.audit["mode"] == "mig", told.audit
    ended = bed.epilog("12")
    assert ended.status == 0, ended.audit
    return (between - started) * 1000, (time.monotonic() - between) * 1000
