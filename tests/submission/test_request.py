"""What sbatch is called with, against golden files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_colloc.model.plan import Capacity, Policy
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.submission.jobs.call_jobs import collect_call
from slurm_colloc.submission.packs.build_packs import build_options
from slurm_colloc.submission.packs.call_batches import Batch, group_into_batches
from slurm_colloc.submission.plan.plan_call import add_candidates

GOLDEN = Path(__file__).parent / "golden"
SCRIPTS = {
    "a.sh": "#SBATCH -J a -t 10 -c 2 --mem=2G --gres=gpu:1",
    "b.sh": "#SBATCH -J b -t 20 -c 4 --mem=1G --gres=gpu:1",
    "other.sh": "#SBATCH -J other -t 10 --gres=gpu:h100:1 -p fast",
    "cpu.sh": "#SBATCH -J cpu -n 8",
}

CALLS = {
    "single": (["-c2", "--gres=gpu:1", "--time=10", "a.sh", "--lr", "1"], False),
    "pack": (["a.sh", "b.sh", "a.sh"], True),
    "several_kinds": (["-A", "lab", "a.sh", "b.sh", "other.sh", "other.sh", "cpu.sh"], True),
    "array": (["--array=0-9%8", "--gres=gpu:1", "-J", "my train", "-t", "1:00:00", "a.sh"], False),
    "array_without_gpu": (["--array=3,5,7%2", "cpu.sh"], False),
    "queue": (["--degree=2", "--pack-size=6", "--array=1-6", "b.sh"], False),
    "passed_options": (
        ["-p", "gpu,long", "--qos=high", "-C", "a100|h100", "--begin=now+1", "-d", "afterok:1",
         "--nice", "--hold", "--mail-type=END", "--comment=for [me]", "--requeue", "--array=1-2",
         "-D", "run here", "-o", "%x-%a.log", "a.sh"],
        False,
    ),
    "empty_values": (["--exclude=", "-w", "", "--licenses=", "--nice", "-a1-2", "a.sh"], False),
    "export": (["--degree=2", "--export=HOME,A=1", "--array=1-2", "a.sh"], False),
}  # fmt: skip


def build_all(root: Path, argv: list[str], *, pack: bool) -> list[Batch]:
    for name, directives in SCRIPTS.items():
        (root / name).write_text(f"#!/bin/bash\n{directives}\n")
    call = collect_call(argv, {"PATH": "/bin"}, str(root), pack=pack)
    jobs = [candidate.job for candidate in call.candidates]
    policy = Policy(
        degree=call.degree or 4,
        pack_size=call.pack_size,
        running_limit=call.array.limit if call.array else None,
    )
    capacity = Capacity(cpus_per_gpu=16, host_memory_mb_per_gpu=32_000, time_limit_max_s=86_400)
    made = plan(jobs, {}, capacity, policy)
    packs = add_candidates(made.packs, call.candidates)
    batches = group_into_batches(packs, made.packs_at_once)
    numbers = [c.job.number for batch in batches for pack in batch.packs for c in pack.candidates]
    assert sorted(numbers) == sorted(job.number for job in jobs)
    lines = []
    for batch in batches:
        options = build_options(batch, "20260101-000000-0a0b0c0d", "/state/%a/pack.log")
        lines.append("sbatch\n" + "".join(f"  {option}\n" for option in options.words))
    root.joinpath("answer").write_text("".join(lines).replace(str(root), "/home/ada"))
    return batches


def compare_with_golden(name: str, text: str) -> None:
    """Compare with a golden file; CSUB_WRITE_GOLDEN=1 writes it anew, and no such run passes."""
    path = GOLDEN / name
    if os.environ.get("CSUB_WRITE_GOLDEN"):
        path.write_text(text)
        pytest.fail(f"the expected {path} was written; run again without CSUB_WRITE_GOLDEN")
    assert text == path.read_text(), f"{path} differs; CSUB_WRITE_GOLDEN=1 writes it anew"


@pytest.mark.parametrize("name", CALLS)
def test_the_options_of_sbatch(tmp_path: Path, name: str) -> None:
    argv, pack = CALLS[name]
    build_all(tmp_path, argv, pack=pack)
    compare_with_golden(f"options_{name}.txt", (tmp_path / "answer").read_text())


def test_packs_of_a_kind_are_one_array_and_lone_tasks_keep_their_numbers(tmp_path: Path) -> None:
    (batch,) = build_all(tmp_path, *CALLS["array"][:1], pack=False)
    assert (batch.is_array, batch.indices) == (True, (998, 999, 1000))
    (batch,) = build_all(tmp_path, *CALLS["array_without_gpu"][:1], pack=False)
    assert (batch.is_array, batch.indices) == (True, (3, 5, 7))
    (batch,) = build_all(tmp_path, ["--array=5", "cpu.sh"], pack=False)
    assert (batch.is_array, batch.indices) == (True, (5,))
