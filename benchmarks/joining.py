"""How long csub takes to find the pack that a job joins, with many packs in the queue."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from benchmarks.bed import Bed
from benchmarks.measuring import Figures, Section, format_ratio, interleave
from benchmarks.submission import time_csub

RUNS = 20
OPEN_PACKS = 50
MEMBERS = 20
DECISION_TARGET_MS = 200

ONE = ("--gres=gpu:1", "--join", "--degree=4", "x.sh")
ALONE = ("--gres=gpu:1", "--degree=4", "x.sh")
# Everything but the start of the interpreter, and nothing is changed.
_DECIDE = (
    "import os, sys, time\n"
    "import slurm_colloc.submission.join.join_pack\n"
    "from slurm_colloc.session.place_call import find_room\n"
    "from slurm_colloc.session.session import Session\n"
    "from slurm_colloc.settings import read_given_environment\n"
    "from slurm_colloc.submission.jobs.call_jobs import collect_call\n"
    "call = collect_call(sys.argv[1:], read_given_environment(), os.getcwd(), pack=False)\n"
    "session = Session.open()\n"
    "begun = time.perf_counter()\n"
    "joined, _ = find_room(call, session, only_plan=True)\n"
    "print((time.perf_counter() - begun) * 1000, joined is not None)\n"
)


def measure_joining(bed: Bed) -> Iterator[Section]:
    """The decision and the whole call, where the last pack has room, and where none has."""
    with bed.paused():
        full, roomy = bed.with_state("full"), bed.with_state("roomy")
        for number in range(OPEN_PACKS):
            _submit_pack(full, MEMBERS)
            _submit_pack(roomy, MEMBERS if number < OPEN_PACKS - 1 else 2 * MEMBERS)
        measured = interleave(
            {
                "fresh": lambda: time_csub(bed, ALONE),
                "never": lambda: time_csub(full, ALONE),
                "roomy": lambda: _time_join(roomy),
                "full": lambda: time_csub(full, ONE),
                "decision, roomy": lambda: _time_decision(roomy, joins=True),
                "decision, full": lambda: _time_decision(full, joins=False),
                "squeue": lambda: bed.time_ms(["squeue", "--me"]),
                "sbatch": lambda: bed.time_ms(["sbatch", "--gres=gpu:1", "x.sh"]),
            },
            RUNS,
        )
    figures = Figures()
    packs = f"{OPEN_PACKS} packs of {MEMBERS}"
    for where, what in (("roomy", "the last has room"), ("full", "none has room")):
        figures.add(
            f"the decision, {packs}, {what}",
            measured[f"decision, {where}"],
            "ms",
            target=DECISION_TARGET_MS,
            ratio=format_ratio(measured[f"decision, {where}"], measured["squeue"], "squeue"),
        )
    for name, what, words in (
        ("roomy", f"joining, {packs}, the last has room", ONE),
        ("full", f"a new pack, {packs}, none has room", ONE),
        ("never", f"a new pack without looking, {packs}", ALONE),
        ("fresh", "a new pack, no open pack", ALONE),
    ):
        ratios = [format_ratio(measured[name], measured["sbatch"], "sbatch")]
        if name != "fresh":
            ratios.append(format_ratio(measured[name], measured["fresh"], "no open pack"))
        figures.add(
            what,
            measured[name],
            "ms",
            ratio="; ".join(ratios),
            command=f"csub {' '.join(words)}",
        )
    figures.add("squeue of these jobs", measured["squeue"], "ms", command="squeue --me")
    yield figures.build_section(
        "Joining a pack that waits",
        [
            (
                "The decision: one look at Slurm's queue and nodes, and the plans of all packs "
                "with the job in them, up to the first that has room; without the interpreter's "
                "start."
            ),
        ],
    )


def _submit_pack(bed: Bed, size: int) -> None:
    """A pack of 20 members with room for `size`."""
    words = ["--degree=4", f"--pack-size={size}", "--gres=gpu:1"]
    bed.run([bed.csub, "pack", *words, *["x.sh"] * MEMBERS])


def _time_join(bed: Bed) -> float:
    """Join, and take the member out of the state again; wall time in milliseconds."""
    last = max(bed.state.packs.iterdir(), key=lambda path: int((path / "slurm_job_id").read_text()))
    kept = bed.home / "kept"
    shutil.copytree(last, kept)
    try:
        wall_ms = bed.time_ms([bed.csub, *ONE])
        if len(list((last / "members").iterdir())) != MEMBERS + 1:
            raise RuntimeError("it did not join the last pack")
    finally:
        shutil.rmtree(last)
        kept.rename(last)
    return wall_ms


def _time_decision(bed: Bed, *, joins: bool) -> float:
    said = bed.run([sys.executable, "-c", _DECIDE, *ONE]).split()
    if said[1] != str(joins):
        raise RuntimeError(f"joined: {said[1]}, expected {joins}")
    return float(said[0])
