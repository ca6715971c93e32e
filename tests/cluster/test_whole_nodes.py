"""Nodes of eight GPUs: one job that keeps them all busy, whatever its members do."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.simgpu.install import list_nodes

from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

GPUS = 8
ASKED = ("--cpus-per-task=1", "--mem=100M", "--time=20", "--gpus-per-pack=8", "--requeue")
PATIENCE_S = 240.0
MEMBERS = int(os.environ.get("CSUB_CAMPAIGN_MEMBERS", "200"))
SEED = int(os.environ.get("CSUB_CAMPAIGN_SEED", str(random.randrange(1 << 20))))
# An illegal address also ends those that share the GPU; they are started again.
FAULTS = ("exit=3", "segfault", "sigkill-itself", "device-assert", "illegal-address")
SCRIPT = """\
label=${1:-$SLURM_ARRAY_TASK_ID.$PLAN}
read -r gpus seconds size fault <"$HOME/plans/$label"
printf '%s begin %s\\n' "$label" "$CUDA_VISIBLE_DEVICES" >>"$HOME/log"
simgpu run --gpus "$gpus" --nvlink 500 --gpu-memory "$size" --sm 20 --seconds "$seconds" $fault
status=$?
printf '%s end %s\\n' "$label" "$status" >>"$HOME/log"
exit $status
"""


@pytest.fixture(scope="module")
def eights() -> Iterator[Sandbox]:
    """Two nodes of eight GPUs."""
    with running_sandbox(
        nodes=2, gpus_per_node=GPUS, cpus_per_node=64, simgpu=True, gpu_type="h100"
    ) as sandbox:
        yield sandbox


@pytest.fixture
def ada(eights: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(eights, accounts[0]) as user:
        (user.home / "plans").mkdir()
        (user.home / "log").touch()
        os.chown(user.home / "log", user.uid, user.gid)
        yield user


@dataclass
class Watch:
    """What a thread has seen of the simulated GPUs.

    Attributes:
        over: GPUs on which more was taken than there is.
        used: GPUs on which anything ran.
    """

    directory: Path
    over: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def look(self) -> None:
        for node in list_nodes(self.directory):
            processes = node.read_processes()
            for gpu in node.read_gpus():
                here = [one for one in processes if gpu.uuid in one.gpus]
                taken_mb = sum(one.gpu_memory_mb for one in here)
                if taken_mb > gpu.gpu_memory_mb - gpu.reserved_gpu_memory_mb:
                    self.over.append(f"{taken_mb} MiB on {gpu.uuid}")
                if any(one.sm_demand for one in here):
                    self.used.add(gpu.uuid)


@contextlib.contextmanager
def watching(sandbox: Sandbox) -> Iterator[Watch]:
    """Look at the GPUs again and again, until the end."""
    watch, ended = Watch(sandbox.layout.simgpu), threading.Event()

    def follow() -> None:
        while not ended.wait(0.3):
            watch.look()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def write_plan(
    user: CsubUser, label: str, *, gpus: int = 1, seconds: float = 5, fault: str = ""
) -> None:
    words = f"--fault {fault}@{seconds / 2:.1f}" if fault else ""
    (user.home / "plans" / label).write_text(f"{gpus} {seconds:.1f} 2G {words}\n")


def write_script(user: CsubUser, gpus: int) -> str:
    name = f"g{gpus}.sh"
    user.script(name, f"PLAN=g{gpus}\n{SCRIPT}", directives=f"#SBATCH --gres=gpu:{gpus}")
    return name


@dataclass
class Run:
    """One start of a member, as it wrote it down itself."""

    label: str
    gpus: tuple[str, ...]
    place: int
    ended_at: int | None = None
    status: int | None = None


def read_log(user: CsubUser) -> list[Run]:
    """All starts, in the order in which they began; `place` and `ended_at` count lines."""
    runs: list[Run] = []
    for place, line in enumerate((user.home / "log").read_text().splitlines()):
        label, what, value = line.split()
        if what == "begin":
            runs.append(Run(label, tuple(value.split(",")), place))
        else:
            mine = [run for run in runs if run.label == label and run.status is None]
            assert mine, f"{label} has ended without a begin"
            mine[-1].ended_at, mine[-1].status = place, int(value)
    return runs


def check_none_twice(runs: Sequence[Run]) -> None:
    """No member that has ended well was started once more."""
    done: set[str] = set()
    for run in runs:
        assert run.label not in done, f"{run.label} was started again after it had ended well"
        if run.status == 0:
            done.add(run.label)


def check_none_idle(runs: Sequence[Run], gpus: Sequence[str], most: int) -> None:
    """No GPU stays without a member while many others of one GPU begin on other ones.

    Args:
        runs: All starts.
        gpus: The GPUs that members of one GPU may have.
        most: So many may begin elsewhere meanwhile.
    """
    begun = [run for run in runs if len(run.gpus) == 1]
    for uuid in gpus:
        here = [run for run in runs if uuid in run.gpus]
        # Runners begin one after the other.
        for number, run in enumerate(here[1:], start=1):
            if any(one.label == run.label for one in here[:number]):
                # After a fault the GPU's MPS server has to become well first.
                continue
            # Of one that was killed it is not known when it ended: then nothing is said.
            ends = [run.place if one.ended_at is None else one.ended_at for one in here[:number]]
            idle_from = max(ends, default=0)
            elsewhere = [
                one for one in begun if uuid not in one.gpus and idle_from < one.place < run.place
            ]
            assert len(elsewhere) <= most, f"{uuid} was idle while {len(elsewhere)} others began"


def test_one_job_keeps_a_whole_node_busy(eights: Sandbox, ada: CsubUser) -> None:
    count = 20
    script = write_script(ada, 1)
    for number in range(1, count + 1):
        write_plan(ada, f"{number}.g1", seconds=4 + number % 4)
    words = ("--partition=whole", *ASKED[:3], "--degree=2", f"--array=1-{count}", script)
    with watching(eights) as watch:
        job_id = ada.submit(*words)
        asked = ada.run(["squeue", "-h", "-o", "%i %C %b", "-u", ada.name]).stdout.splitlines()
        rows = ada.finish(job_id, patience_s=PATIENCE_S)
    assert len(asked) == 1, asked
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}, ada.describe(job_id)
    assert watch.over == []
    assert len(watch.used) == GPUS
    runs = read_log(ada)
    check_none_twice(runs)
    assert len(runs) == count
    check_none_idle(runs, sorted({run.gpus[0] for run in runs}), most=8)
    report = ada.csub("report", job_id).stdout
    assert f"{count} jobs on 8 GPUs" in report
    assert "all 8" in report


def test_a_sweep_of_forty_is_one_job_and_the_plan_shows_the_node_as_it_is_filled(
    ada: CsubUser,
) -> None:
    ada.script("train.sh", "exit 0")
    asked = ("--partition=whole", "--gres=gpu:1", "--share=timeslice", *ASKED[:3])
    swept = ("train.sh", "--lr", "0.1,0.2,0.3,0.4", "--seed", "0:10")
    shown = ada.csub("plan", "sweep", *asked, *swept).stdout
    assert "40 jobs in 1 pack with 8 GPUs" in shown
    shown = ada.csub("plan", *asked, "--array=1-10", "train.sh").stdout
    table = shown.partition("BEGINS WITH")[2].splitlines()[1:9]
    assert [line.split()[:2] for line in table] == [
        ["1", "1,9"], ["2", "2,10"], *([str(gpu), str(gpu)] for gpu in range(3, 9))
    ]  # fmt: skip
    assert "Nothing was submitted." in shown
    job_id = ada.csub("sweep", "--parsable", *asked, *swept).stdout.strip()
    assert "TresPerNode=gres:gpu:8" in ada.run(["scontrol", "show", "job", job_id]).stdout
    rows = ada.finish(job_id, patience_s=PATIENCE_S)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 40


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_members_of_one_two_and_four_gpus_with_random_ends(eights: Sandbox, ada: CsubUser) -> None:
    chance = random.Random(SEED)
    print(f"CSUB_CAMPAIGN_SEED={SEED}")
    counts = {1: MEMBERS * 6 // 10, 2: MEMBERS * 3 // 10, 4: MEMBERS // 10}
    faults: dict[str, str] = {}
    jobs: dict[int, str] = {}
    with watching(eights) as watch:
        for gpus, count in counts.items():
            script = write_script(ada, gpus)
            for number in range(1, count + 1):
                label = f"{number}.g{gpus}"
                fault = chance.choice(FAULTS) if chance.random() < 0.1 else ""
                write_plan(ada, label, gpus=gpus, seconds=chance.uniform(1.0, 12.0), fault=fault)
                faults[label] = fault
            # One Slurm job: its queue refills all of its GPU sets.
            size = -(-count * gpus // GPUS)
            words = (*ASKED, "--degree=3", f"--pack-size={size}", f"--array=1-{count}", script)
            jobs[gpus] = ada.submit(*words)
        cancelled: set[str] = set()
        rows: dict[str, dict[str, object]] = {}

        def look() -> bool:
            rows.clear()
            for gpus, job_id in jobs.items():
                found = ada.members(job_id)
                rows.update({f"{number}.g{gpus}": row for number, row in found.items()})
            open_ones = [label for label, row in rows.items() if row["state"] in OPEN]
            if open_ones and len(cancelled) < len(rows) // 20:
                label = chance.choice(open_ones)
                cancelled.add(label)
                ada.csub("cancel", "--yes", str(rows[label]["member"]), check=False)
            return not open_ones

        wait_until(look, "all have ended", patience_s=3000)
    runs = read_log(ada)
    assert watch.over == []
    check_none_twice(runs)
    for label, row in rows.items():
        state, fault = row["state"], faults[label]
        told = f"{label} ({fault or 'no fault'}): {json.dumps(row)}"
        if label in cancelled:
            assert state in ("CANCELLED", "COMPLETED", "FAILED"), told
        elif fault:
            assert state in ("FAILED", "CANCELLED"), told
        else:
            assert state == "COMPLETED", told
            assert [run.status for run in runs if run.label == label][-1:] == [0], told
    singles = sorted({uuid for run in runs if len(run.gpus) == 1 for uuid in run.gpus})
    check_none_idle(runs, singles, most=24)


OPEN = ("PENDING", "RUNNING", "HELD")
