"""What the running link of a chain asks of Slurm."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_colloc.errors import SlurmNoAnswer, SlurmRefused
from slurm_colloc.model.chain import ChainRecord, Link
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.model.quantities import format_moment
from slurm_colloc.runtime.chain_links import TRIES, ChainLinks, await_turn, name_mark
from slurm_colloc.runtime.collect_ends import SlurmDecision
from slurm_colloc.runtime.verdict import PackVerdict
from slurm_colloc.slurm.slurm_commands import SlurmAccess, SlurmJob
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.pack_directory import (
    read_chain,
    read_pack,
    read_slurm_job_id,
    write_chain,
)

from ..packs import build_pack
from .pack_contexts import build_context


class OneUser(SlurmAccess):
    """The jobs of a user, by id; what is submitted gets the numbers from 4720 on."""

    def __init__(self, left_s: float) -> None:
        super().__init__()
        self.jobs = {"4711": {"JobState": "RUNNING", "TimeLimit": "01:00:00"}}
        self.jobs["4711"]["EndTime"] = format_moment(time.time() + left_s)
        self.submitted: list[Sequence[str]] = []
        self.cancelled: list[str] = []
        self.requeued: list[str] = []
        self.refusal = ""
        self.is_silent = False
        self.answers_submit = True
        self.comment = "[csub-pack=s]"

    def submit(self, script: str, options: Sequence[str], **_: Any) -> str:  # noqa: ARG002
        if self.refusal:
            raise SlurmRefused(self.refusal)
        self.submitted.append(options)
        job_id = str(4719 + len(self.submitted))
        self.jobs[job_id] = {"JobState": "PENDING"}
        if not self.answers_submit:
            raise SlurmNoAnswer("sbatch gave no answer")
        return job_id

    def list_jobs(self) -> dict[str, SlurmJob]:
        if self.is_silent:
            raise SlurmNoAnswer("not now")
        return {
            job_id: SlurmJob(
                job_id, SlurmJobState.parse(job["JobState"]), "", "", "", "", self.comment
            )
            for job_id, job in self.jobs.items()
        }

    def check(self, script: str, options: Sequence[str], **_: Any) -> str:  # noqa: ARG002
        return "nothing that is understood"

    def read_job(self, job_id: str) -> dict[str, str] | None:
        if self.is_silent:
            raise SlurmNoAnswer("not now")
        return self.jobs.get(job_id)

    def cancel(self, *job_ids: str) -> None:
        self.cancelled += job_ids

    def requeue_running(self, job_id: str) -> None:
        self.requeued.append(job_id)


class FirstLink:
    """The first link of a chain, with a clock that is set by hand."""

    def __init__(self, tmp_path: Path, left_s: float) -> None:
        words = ("--job-name=x", "--time=1:00:00", "--dependency=afterok:1", "--output=/a/b")
        record = replace(build_pack("s").record, chain=3, slurm_options=words)
        self.path = tmp_path / "packs" / record.pack_id
        self.path.mkdir(parents=True)
        (tmp_path / "jobs").mkdir()
        (self.path / "slurm_job_id").write_text("4711\n")
        write_chain(self.path, ChainRecord((Link("4711", 1.0, up_at=2.0, began_at=2.0),)))
        self.slurm, self.now = OneUser(left_s), 0.0
        pack = build_context(self.path, record=record, slurm=self.slurm, clock=lambda: self.now)
        self.decision = cast("SlurmDecision", SimpleNamespace(ending=None))
        self.chain = ChainLinks(pack=pack, control=cast("Any", None), decision=self.decision)

    def work(self, *, after_s: float = 61.0) -> None:
        self.now += after_s
        self.chain.work()

    def conclude(self) -> None:
        self.chain.conclude(cast("Any", SimpleNamespace(undecided={})))


@pytest.fixture(autouse=True)
def _no_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "slurm_colloc.runtime.chain_links.read_history", lambda *_, **__: ([], "no accounts")
    )


def test_the_successor_is_submitted_once_its_lead_has_come(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=1000)
    bed.work()
    assert bed.slurm.submitted == []
    bed.slurm.jobs["4711"]["EndTime"] = format_moment(time.time() + 300)
    bed.work()
    bed.work()
    (words,) = bed.slurm.submitted
    assert "--time=1:00:00" in words
    assert "--open-mode=append" in words
    assert not [word for word in words if word.startswith("--dependency")]
    assert "--output=/a/b" not in words
    link = read_chain(bed.path).find_successor("4711")
    assert link is not None
    assert (link.job_id, link.lead_s) == ("4720", 360.0)
    assert link.why == "how long such jobs wait is not known: 10 % of the time limit"


def test_the_pack_is_passed_on_once_its_members_have_ended(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=300)
    bed.work()
    name_mark(bed.path, "4720").touch()
    bed.work()
    assert bed.chain.is_saving
    assert read_slurm_job_id(bed.path) == "4711"
    bed.conclude()
    assert bed.decision.ending is not None
    assert bed.decision.ending.state is None
    bed.chain.finish(is_over=False)
    assert read_slurm_job_id(bed.path) == "4720"
    record = read_pack(bed.path)
    assert record is None or record.shown_id == "4711"
    assert read_chain(bed.path).links[0].ended_at is not None


def test_a_chain_that_is_over_cancels_its_successor(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=300)
    bed.work()
    bed.chain.finish(is_over=True)
    assert bed.slurm.cancelled == ["4720"]
    assert read_slurm_job_id(bed.path) == "4711"


def test_a_refused_successor_is_tried_again_and_then_the_job_is_requeued(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=300)
    bed.slurm.refusal = "Job violates accounting/QOS policy"
    bed.work()
    assert "Job violates" in read_chain(bed.path).problem
    bed.work()
    bed.slurm.jobs["4711"]["EndTime"] = format_moment(time.time() + 5)
    bed.work()
    bed.conclude()
    bed.chain.finish(is_over=False)
    assert bed.slurm.requeued == ["4711"]
    chain = read_chain(bed.path)
    assert [link.job_id for link in chain.links] == ["4711", "4711"]
    assert "this job was requeued" in chain.links[1].why


def test_a_successor_of_which_sbatch_told_nothing_is_found_at_once(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=300)
    bed.slurm.answers_submit = False
    bed.work()
    assert len(bed.slurm.submitted) == 1
    link = read_chain(bed.path).find_successor("4711")
    assert (link and link.job_id, link and link.submitted_at) == ("4720", None)
    assert read_chain(bed.path).problem == ""


def test_one_that_shows_later_is_found_before_another_is_submitted(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=300)
    bed.slurm.answers_submit, bed.slurm.comment = False, ""
    bed.work()
    assert "sbatch gave no answer" in read_chain(bed.path).problem
    bed.slurm.jobs["4719"] = {"JobState": "COMPLETED"}
    bed.slurm.jobs["4721"] = {"JobState": "PENDING"}
    bed.slurm.comment = "[csub-pack=s]"
    bed.work()
    assert len(bed.slurm.submitted) == 1
    link = read_chain(bed.path).find_successor("4711")
    assert link is not None
    assert link.job_id == "4720"
    # There is one successor.
    assert bed.slurm.cancelled == ["4721"]


def test_without_squeues_answer_none_is_submitted(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=3000)
    bed.work()
    bed.slurm.jobs["4711"]["EndTime"] = format_moment(time.time() + 5)
    bed.work()
    bed.slurm.is_silent = True
    bed.conclude()
    bed.chain.finish(is_over=False)
    assert bed.slurm.submitted == []
    assert bed.slurm.requeued == ["4711"]


def test_a_chain_that_is_over_cancels_what_nothing_has_recorded(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=3000)
    bed.slurm.jobs["4715"] = {"JobState": "PENDING"}
    bed.chain.finish(is_over=True)
    assert bed.slurm.cancelled == ["4715"]


def test_a_successor_that_a_user_cancels_ends_the_chain(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=300)
    bed.work()
    bed.slurm.jobs["4720"]["JobState"] = "CANCELLED"
    bed.work()
    assert read_chain(bed.path).ended == "its successor 4720 was cancelled"
    assert not bed.chain.goes_on
    bed.work()
    assert len(bed.slurm.submitted) == 1


def test_a_successor_that_still_ends_is_judged_once_it_has_ended(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=300)
    bed.work()
    mark = name_mark(bed.path, "4720")
    mark.touch()
    bed.slurm.jobs["4720"]["JobState"] = "COMPLETING"
    bed.work()
    assert not mark.exists()
    assert not bed.chain.is_saving
    assert read_chain(bed.path).find_successor("4711") is not None
    bed.slurm.jobs["4720"]["JobState"] = "CANCELLED"
    bed.work()
    assert read_chain(bed.path).ended == "its successor 4720 was cancelled"
    assert len(bed.slurm.submitted) == 1


def test_a_slurm_that_answers_again_is_no_problem_any_more(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=3000)
    bed.slurm.is_silent = True
    bed.work()
    assert read_chain(bed.path).problem == "Slurm did not answer: not now"
    bed.slurm.is_silent = False
    bed.work()
    assert read_chain(bed.path).problem == ""


def test_a_successor_that_is_lost_is_replaced_some_times(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=300)
    for number in range(TRIES + 2):
        bed.work()
        bed.slurm.jobs[str(4720 + number)] = {"JobState": "NODE_FAIL"}
        bed.work()
    assert len(bed.slurm.submitted) == TRIES
    assert not bed.chain.goes_on


def test_slurms_own_time_limit_hands_over_too(tmp_path: Path) -> None:
    bed = FirstLink(tmp_path, left_s=300)
    bed.work()
    bed.decision.ending = PackVerdict(False, MemberState.TIMEOUT, "its time limit was reached")
    bed.chain.finish(is_over=False)
    assert read_slurm_job_id(bed.path) == "4720"


def test_successors_that_an_earlier_link_lost_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(tmp_path, "here")
    state.prepare()
    new = build_pack("s")
    new = replace(new, record=replace(new.record, chain=3))
    with state.writing([new]):
        pass
    state.record_job([new.record], "4711")
    path = state.pack_path(new.record.pack_id)
    links = Link("4711", 1.0, up_at=2.0, began_at=2.0), Link("4712", 3.0)
    write_chain(path, ChainRecord(links, tries=TRIES - 1))
    slurm = OneUser(0.0)
    slurm.jobs["4711"]["JobState"] = "TIMEOUT"
    slurm.jobs["4712"] = {"JobState": "RUNNING"}
    slurm.jobs["4719"] = {"JobState": "PENDING"}
    monkeypatch.setattr("slurm_colloc.runtime.chain_links.SlurmAccess", lambda: slurm)
    monkeypatch.setenv("SLURM_JOB_ID", "4712")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    environment = dict(os.environ)
    try:
        assert await_turn(str(path))
    finally:
        os.environ.clear()
        os.environ.update(environment)
    assert read_slurm_job_id(path) == "4712"
    chain = read_chain(path)
    assert chain.links[1].began_at is not None
    assert chain.tries == 0
    # That one would hold an allocation for nothing.
    assert slurm.cancelled == ["4719"]
