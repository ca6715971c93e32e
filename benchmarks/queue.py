"""How long `csub queue` takes with thousands of members that wait or run."""

from __future__ import annotations

import time

from benchmarks.bed import Bed
from benchmarks.finished import make_finished_packs
from benchmarks.measuring import Figures, Section, interleave
from slurm_colloc.model.member import MemberState
from slurm_colloc.store.member_states import StateRecord, begin_attempt, write_state

MEMBERS = 5000
TARGET_MS = 1000
RUNS = 10
TASKS_OF_A_CALL = 1000
FINISHED_PACKS = 1000


def measure_queue(bed: Bed) -> Section:
    """The same members in few packs and in many, waiting and running."""
    with bed.paused():
        wide = _submit(bed.with_state("wide"), 100)
        started = _submit(bed.with_state("started"), 100)
        _write_states(started)
        narrow = _submit(bed.with_state("narrow"), 4)
        used = _submit(bed.with_state("used"), 100)
        make_finished_packs(used.state, FINISHED_PACKS, str(bed.home))
        calls = {
            "queue": (f"{MEMBERS // 100} packs of 100, waiting", wide, ["queue"]),
            "started": (f"{MEMBERS // 100} packs of 100, running", started, ["queue"]),
            "narrow": (f"{MEMBERS // 4} packs of 4, waiting", narrow, ["queue"]),
            "used": (
                f"{MEMBERS // 100} packs of 100, waiting, {FINISHED_PACKS} finished packs",
                used,
                ["queue"],
            ),
            "all": (
                f"the same with the {4 * FINISHED_PACKS} finished members",
                used,
                ["queue", "--all"],
            ),
            "one": (
                f"one member of {MEMBERS} in {MEMBERS // 4} packs",
                narrow,
                ["queue", "last/7"],
            ),
            "json": (f"{MEMBERS // 4} packs of 4, waiting", narrow, ["queue", "--json"]),
        }
        measured = interleave(
            {
                name: lambda where=where, words=words: where.time_ms([where.csub, *words])  # type: ignore[misc]
                for name, (_, where, words) in calls.items()
            },
            RUNS,
        )
    figures = Figures()
    for name, (what, _, words) in calls.items():
        figures.add(
            f"queue, {what}", measured[name], "ms", target=None if name == "all" else TARGET_MS,
            command=f"csub {' '.join(words)}",
        )  # fmt: skip
    return figures.build_section(
        f"Queue with {MEMBERS} members",
        [
            f"Slurm shows {3 * MEMBERS // 100 + MEMBERS // 4} pending jobs of the user meanwhile.",
            "Running: every member has a state file, as its runner writes it at the start.",
        ],
    )


def _submit(bed: Bed, degree: int) -> Bed:
    for first in range(0, MEMBERS, TASKS_OF_A_CALL):
        tasks = f"--array={first % TASKS_OF_A_CALL}-{TASKS_OF_A_CALL - 1}"
        bed.run([bed.csub, tasks, f"--degree={degree}", "--cpus-per-task=1", "--mem=1M",
                 "--gres=gpu:1", "x.sh"])  # fmt: skip
    return bed


def _write_states(bed: Bed) -> None:
    for pack_id in bed.state.list_all():
        path = bed.state.pack_path(pack_id)
        attempt = begin_attempt(path, 1)
        record = bed.state.read_pack(pack_id)
        for number in record.members if record else ():
            state = StateRecord(
                MemberState.RUNNING,
                attempt,
                starts=1,
                started_at=time.time(),
                node="node1",
                gpus=("0",),
                cpus=(number % 64,),
                wall_limit_s=5400,
            )
            write_state(path, number, state)
