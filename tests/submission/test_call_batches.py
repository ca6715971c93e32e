"""The Slurm jobs of a call: which element each pack is, and how several stay one submission."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import SlurmRefused, UsageProblem
from slurm_colloc.model.job_values import add_condition, join_conditions
from slurm_colloc.model.plan import Capacity, Policy
from slurm_colloc.planning.plan_packs import plan
from slurm_colloc.submission.jobs.call_jobs import collect_call
from slurm_colloc.submission.packs.build_packs import build_options
from slurm_colloc.submission.packs.call_batches import (
    Batch,
    choose_elements,
    find_place,
    group_into_batches,
    read_array_size,
)
from slurm_colloc.submission.plan.plan_call import add_candidates


def group(root: Path, argv: Sequence[str], size: int = 1001, *, pack: bool = False) -> list[Batch]:
    (root / "a.sh").write_text("#!/bin/bash\n#SBATCH -t 10 --gres=gpu:1\n")
    (root / "cpu.sh").write_text("#!/bin/bash\n#SBATCH -n 8\n")
    call = collect_call(argv, {"PATH": "/bin"}, str(root), pack=pack)
    policy = Policy(degree=4, running_limit=call.array.limit if call.array else None)
    made = plan([c.job for c in call.candidates], {}, Capacity(cpus_per_gpu=16), policy)
    return group_into_batches(add_candidates(made.packs, call.candidates), made.packs_at_once, size)


@given(st.integers(1, 40), st.sets(st.integers(0, 60)), st.integers(1, 50))
def test_no_pack_has_an_index_of_the_users(count: int, taken: set[int], size: int) -> None:
    found = choose_elements(count, taken, size)
    assert not set(found) & taken
    assert list(found) == sorted(set(found))
    assert all(0 <= index < size for index in found)
    assert len(found) == min(count, len(set(range(size)) - taken))


def test_packs_in_their_order_have_the_last_indices_of_an_array(tmp_path: Path) -> None:
    (batch,) = group(tmp_path, ["--array=0-9", "a.sh"])
    assert batch.indices == (998, 999, 1000)
    assert [pack.candidates[0].job.number for pack in batch.packs] == [0, 4, 8]
    (batch,) = group(tmp_path, ["--array=0-5,998-1000", "a.sh"])
    assert batch.indices == (995, 996, 997)


def test_without_room_for_all_there_are_several_arrays(tmp_path: Path) -> None:
    batches = group(tmp_path, ["--array=0-28", "a.sh"], 32)
    assert [batch.indices for batch in batches] == [(29, 30, 31), (29, 30, 31), (30, 31)]
    assert all(batch.is_array for batch in batches)


def test_without_room_for_any_each_pack_is_a_job(tmp_path: Path) -> None:
    batches = group(tmp_path, ["--array=0-11", "a.sh"], 12)
    assert [(batch.indices, batch.is_array) for batch in batches] == [((0,), False)] * 3


def test_more_tasks_than_an_array_may_have_are_packed(tmp_path: Path) -> None:
    batches = group(tmp_path, ["--array=0-4999", "a.sh"], 5500)
    assert [len(batch.packs) for batch in batches] == [500, 500, 250]
    batches = group(tmp_path, ["--array=2000-2999", "a.sh"])
    assert [len(batch.packs) for batch in batches] == [250]


def test_a_limit_holds_over_several_arrays(tmp_path: Path) -> None:
    # At most two packs at the same time; each array has room for one.
    batches = group(tmp_path, ["--array=0-30%8", "a.sh"], 32)
    assert [batch.after for batch in batches] == [None, None, 0, 1, 2, 3, 4, 5]
    # Three in an array, two of them at the same time: one array after the other.
    batches = group(tmp_path, ["--array=0-28%8", "a.sh"], 32)
    assert [(batch.after, batch.packs_at_once) for batch in batches] == [(None, 2), (0, 2), (1, 2)]
    assert [batch.after for batch in group(tmp_path, ["--array=0-28", "a.sh"], 32)] == [None] * 3


def test_a_task_alone_with_an_index_that_slurm_refuses(tmp_path: Path) -> None:
    assert group(tmp_path, ["--array=1000", "cpu.sh"])[0].indices == (1000,)
    with pytest.raises(SlurmRefused, match="Invalid job array specification"):
        group(tmp_path, ["--array=3,1001", "cpu.sh"])


def test_what_can_be_read_of_the_configuration() -> None:
    assert read_array_size({"MaxArraySize": "20001"}) == 20001
    assert read_array_size({}) == read_array_size({"MaxArraySize": "(null)"}) == 1001


def test_the_first_job_of_a_call_knows_the_others_and_they_its_id(tmp_path: Path) -> None:
    batches = group(tmp_path, ["a.sh", "cpu.sh", "a.sh"], pack=True)
    names = ["x", "y"]
    first, second = (find_place(batches, names, ids) for ids in ([], ["515"]))
    assert first.parts == (("x", (0,)), ("y", (0,)))
    assert (first.shown_id, second.shown_id, second.parts) == ("", "515", ())
    (only,) = group(tmp_path, ["a.sh", "a.sh"], pack=True)
    assert not find_place([only], ["x"], []).is_one_of_several


def test_a_task_alone_in_another_job_has_the_submissions_id_in_its_files(tmp_path: Path) -> None:
    (batch,) = group(tmp_path, ["--array=3,5", "-o", "%A/%%A-%4A-%a.out", "cpu.sh"])
    words = build_options(batch, "x", "/dev/null", shown_id="515").words
    assert "--output=515/%%A-0515-%a.out" in words
    (batch,) = group(tmp_path, ["--array=3,5", "cpu.sh"])
    assert "--output=slurm-515_%a.out" in build_options(batch, "x", "y", shown_id="515").words
    assert not any(word.startswith("--output") for word in build_options(batch, "x", "y").words)


def test_jobs_of_unlike_names_share_no_pack_that_others_wait_for_by_name(tmp_path: Path) -> None:
    for name in ("one.sh", "two.sh"):
        (tmp_path / name).write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\n")
    argv = ["-d", "singleton", "one.sh", "two.sh", "one.sh"]
    batches = group(tmp_path, argv, pack=True)
    assert [(batch.name, len(batch.packs[0].candidates)) for batch in batches] == [
        ("one.sh", 2), ("two.sh", 1)
    ]  # fmt: skip
    (batch,) = group(tmp_path, argv[2:], pack=True)
    assert batch.name == "one.sh"
    for named in (["-J", "same"], []):
        words = build_options(group(tmp_path, [*named, *argv], pack=True)[0], "x", "y").words
        assert sum(word.startswith("--job-name") for word in words) == 1


def test_conditions_are_joined_as_slurm_reads_them() -> None:
    assert join_conditions(["afterok:1,after:2", "", "afterok:1"]) == "afterok:1,after:2"
    assert join_conditions(["afterok:1?afterok:2"] * 2) == "afterok:1?afterok:2"
    assert add_condition("", "afterany:3") == "afterany:3"
    assert add_condition("singleton", "afterany:3") == "singleton,afterany:3"
    with pytest.raises(UsageProblem, match="cannot be combined"):
        add_condition("afterok:1?afterok:2", "afterany:3")


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        # As `--account=$ACCOUNT` is, where that is not set.
        (["--account="], "--account="),
        (["--qos", ""], "--qos="),
        (["--chdir="], "--chdir="),
        (["--exclusive"], "--exclusive"),
        (["--nice"], "--nice"),
        (["--requeue"], "--requeue"),
    ],
)
def test_an_empty_value_takes_no_other_option_for_itself(
    tmp_path: Path, argv: list[str], word: str
) -> None:
    (batch,) = group(tmp_path, [*argv, "a.sh"])
    words = build_options(batch, "x", "y").words
    assert word in words
    assert not any(other.startswith(f"{word}=") for other in words)
