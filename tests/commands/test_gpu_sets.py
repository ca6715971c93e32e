"""Packs of several GPUs as csub submits them, on a fake Slurm with two GPUs a node."""

from __future__ import annotations

import pytest

from slurm_colloc.store.all_packs import State
from slurm_colloc.store.pack_directory import PackRecord

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import list_jobs, list_state

EACH = ("--gres=gpu:1", "--time=5", "--share=timeslice", "--mem=100M", "-c1")
TWO = ("--gpus-per-pack=2", *EACH)


def read_records(user: CsubUser) -> list[PackRecord]:
    state = State(user.state, "fake")
    found = [state.read_pack(pack_id) for pack_id in state.list_all()]
    return [record for record in found if record is not None]


def test_one_slurm_job_has_a_pack_for_each_of_its_gpus(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    job_id = user.csub("sweep", "--parsable", *TWO, "train.sh", "--seed", "0:9").stdout.strip()
    first, second = read_records(user)
    assert (first.gpu_set, second.gpu_set) == (0, 1)
    assert (first.submission, first.index) == (second.submission, second.index)
    assert second.pack_id == f"{first.submission}~1.0"
    assert (
        first.parts == second.parts == ((first.submission, (0,)), (f"{first.submission}~1", (0,)))
    )
    assert first.gpu_sets == second.gpu_sets == (1, 1)
    assert (first.members, second.members) == ((1, 3, 5, 7, 9), (2, 4, 6, 8))
    assert first.request is not None
    assert second.request is not None
    assert "--gres=gpu:2" in first.slurm_options
    assert f"--cpus-per-task={first.request.cpus + second.request.cpus}" in first.slurm_options
    assert f"--mem={2 * (first.request.host_memory_mb or 0)}M" in first.slurm_options
    # One of five waits for a place, and both end with their Slurm job.
    assert first.request.time_limit_s == second.request.time_limit_s == 2 * 450 + 60
    rows = user.csub("queue", job_id).stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [f"{job_id}/{number}" for number in range(1, 10)]
    user.csub("cancel", job_id)
    assert len(user.csub("queue").stdout.splitlines()) == 1


def test_a_slurm_job_goes_on_while_one_of_its_gpu_sets_has_members(
    user: CsubUser, slurm: FakeSlurm
) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    job_id = user.csub("sweep", "--parsable", *TWO, "train.sh", "--seed", "0:4").stdout.strip()
    first, second = read_records(user)
    user.csub("cancel", *(f"{job_id}/{number}" for number in first.members))
    assert list_jobs(user) == [job_id]
    rows = user.csub("queue", job_id).stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [f"{job_id}/{n}" for n in second.members]
    before = len(slurm.list_all_calls())
    other = user.csub("sweep", "--parsable", *TWO, "train.sh", "--seed", "0:4").stdout.strip()
    user.csub("cancel", other)
    calls = [call for call in slurm.list_all_calls()[before:] if call[0] == "scancel"]
    assert calls == [["scancel", other]]
    assert list_jobs(user) == [job_id]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--gpus-per-pack=0",), "a number from 1 to 64, node or auto is needed"),
        (("--gpus-per-pack=some",), "a number from 1 to 64, node or auto is needed"),
        (("--gpus-per-pack=\x1b[31m",), "--gpus-per-pack=\\x1b[31m"),
        (("--gpus-per-pack=2", "--share=mig"), "with --share=mig a pack has one GPU"),
        (("--gpus-per-pack=2", "--local"), "without Slurm (--local) a pack has one GPU"),
        (
            ("--gpus-per-pack=3",),
            "--gpus-per-pack=3, and a node of partition gpu has 2 GPUs at most",
        ),
        (
            ("--nodes-per-pack=2",),
            "--nodes-per-pack was removed: an array of packs on one node each does it",
        ),
        (("--gpus-per-pack=1", "--gres=gpu:2"), "it asks for 2 GPUs, and a pack is to have 1"),
    ],
)
def test_what_no_pack_can_have_is_refused_in_a_sentence(
    user: CsubUser, words: tuple[str, ...], told: str
) -> None:
    user.script("train.sh", "exit 0")
    before, jobs = list_state(user), list_jobs(user)
    ended = user.csub(*EACH, *words, "--array=1-3", "train.sh", check=False)
    assert ended.returncode in (2, 3)
    assert ended.stderr.startswith("csub: error: ")
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert (list_state(user), list_jobs(user)) == (before, jobs)


def test_an_option_that_was_removed_is_refused_with_what_does_it_instead(user: CsubUser) -> None:
    user.script("a.sh", "exit 0", directives="#CSUB --nodes-per-pack=2")
    ended = user.csub(*EACH, "a.sh", check=False)
    assert ended.returncode == 2
    assert ended.stderr == (
        "csub: error: a.sh:2: --nodes-per-pack was removed: an array of packs on one node "
        "each does it: --array, csub pack, csub batch\n"
    )


def use_settings(user: CsubUser, text: str) -> None:
    path = user.home / "settings.toml"
    path.write_text(text)
    user.extra["SLURM_COLLOC_SETTINGS"] = str(path)


def test_what_failed_is_tried_again_on_both_gpus(user: CsubUser) -> None:
    use_settings(user, 'gpus_per_pack = "2"\nmonitor = false\n')
    user.script("train.sh", "test -e mended")
    job_id = user.submit(*EACH, "--array=1-4", "train.sh")
    assert {row["state"] for row in user.finish(job_id).values()} == {"FAILED"}
    (user.home / "mended").touch()
    user.csub("retry", job_id)
    rows = user.finish(job_id)
    # Each again under its own name, in one more Slurm job with both GPUs.
    assert len(rows) >= 4
    records = read_records(user)
    assert [record.gpu_sets for record in records] == [(1, 1)] * 4
    assert len({record.submission for record in records}) == 2
    assert [record.gpu_set for record in records] == [0, 1, 0, 1]
    later = records[2:]
    names = tuple((f"{later[0].submission}{end}", (0,)) for end in ("", "~1"))
    assert {record.parts for record in later} == {names}
    assert {record.shown_id for record in later} == {job_id}
    state = State(user.state, "fake")
    assert sorted(state.find_packs(job_id)) == sorted(record.pack_id for record in records)


def test_single_jobs_of_two_gpus_do_not_join_each_other(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    words = ("--gres=gpu:2", *EACH[1:], "--join", "--open=never", "train.sh")
    first, second = user.submit(*words), user.submit(*words)
    assert first != second
    assert "only jobs of one GPU join each other" in user.csub("why", f"{first}/1").stdout


def test_no_later_job_joins_a_pack_of_several_gpus(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    first = user.submit(*TWO, "--array=1-4", "train.sh")
    second = user.submit(*EACH, "--join", "--open=never", "train.sh")
    assert second != first
    assert "no job may join" not in user.csub("why", first).stdout, "who is in it does not mind"
