"""Time limits of the packs of one array: each its own, by a scontrol that is really called."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.job_ids import format_task_runs
from slurm_colloc.model.plan import MemberPlan, PackPlan, PackRequest, SharingMode
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.pack_directory import PackRecord
from slurm_colloc.submission.jobs.call_jobs import Candidate
from slurm_colloc.submission.packs.build_packs import COMMANDS_MAX, choose_requests, shorten
from slurm_colloc.submission.packs.call_batches import Batch, group_into_batches
from slurm_colloc.submission.plan.plan_call import PlannedPack

from ..packs import build_member, build_pack, write_packs

HOUR = 3600


def build_batch(*limits_s: int | None) -> Batch:
    packs = tuple(
        PlannedPack(
            PackPlan(
                members=(MemberPlan(0, 1, None, None),),
                degree=2,
                mode=SharingMode.MPS,
                request=PackRequest(1, None, 4 + place % 3, 1000 + place, limit_s),
                group=(),
                predicted_slowdown=None,
                reasons=(),
            ),
            candidates=(Candidate(build_member(1).spec.job, b"", {}),),
        )
        for place, limit_s in enumerate(limits_s)
    )
    (batch,) = group_into_batches(packs, None)
    return batch


def list_limits(batch: Batch) -> list[int | None]:
    return [request.time_limit_s for request in list_requests(batch) if request]


def list_requests(batch: Batch) -> list[PackRequest | None]:
    return [request for of_element in choose_requests(batch) for request in of_element]


class Slurm:
    """A scontrol that writes down how it was called, and answers as it is told."""

    def __init__(self, directory: Path, *, stderr: str = "", only: str = "") -> None:
        self._calls = directory / "calls"
        self._calls.touch()
        program = directory / "scontrol"
        (directory / "answer").write_text(stderr)
        program.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$*" >> {self._calls}\n'
            f'case "$*" in *"{only}"*) [ -s {directory}/answer ] || exit 0\n'
            f"cat {directory}/answer >&2; exit 1;; esac\n"
        )
        program.chmod(0o755)
        self.commands = SlurmAccess({"PATH": f"{directory}:/usr/bin:/bin"})

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


def submit(root: Path, batch: Batch) -> tuple[State, list[PackRecord]]:
    state = State(root / "state", "here")
    packs = [
        build_pack("20260101-000000-a", index, indices=batch.indices, request=request)
        for index, request in zip(batch.indices, list_requests(batch), strict=True)
    ]
    write_packs(state, *packs, job_id="4711")
    return state, [pack.record for pack in packs]


_TIMES_S = st.integers(1, 10 * 86400)


@given(
    st.lists(_TIMES_S, min_size=2, max_size=60)
    | st.lists(st.none() | _TIMES_S, min_size=2, max_size=60)
)
def test_no_element_gets_less_than_it_needs_or_more_than_the_array(
    wanted: list[int | None],
) -> None:
    limits = list_limits(build_batch(*wanted))
    known = [seconds for seconds in wanted if seconds is not None]
    if len(known) < len(wanted):
        assert set(limits) == {None}
        return
    longest_s = max(known)
    lowered = set()
    for needed_s, limit_s in zip(known, limits, strict=True):
        assert limit_s is not None
        assert needed_s <= limit_s <= longest_s
        if limit_s < longest_s:
            assert limit_s % 60 == 0
            lowered.add(limit_s)
        elif len({-(-s // 60) for s in known}) <= COMMANDS_MAX:
            assert -(-needed_s // 60) * 60 > 0.9 * longest_s
    assert len(lowered) <= COMMANDS_MAX


def test_cpus_and_host_memory_are_the_largest_of_all() -> None:
    requests = list_requests(build_batch(HOUR, 600, 600))
    assert [(r.cpus, r.host_memory_mb, r.time_limit_s) for r in requests if r] == [
        (6, 1002, HOUR), (6, 1002, 600), (6, 1002, 600)
    ]  # fmt: skip
    (alone,) = list_requests(build_batch(777))
    assert alone is not None
    assert alone.time_limit_s == 777


def test_elements_of_one_limit_are_lowered_by_one_call(tmp_path: Path) -> None:
    batch = build_batch(HOUR, 601, 3500, 600, 650, 655, HOUR)
    state, records = submit(tmp_path, batch)
    slurm = Slurm(tmp_path)
    assert shorten(slurm.commands, state, "4711", batch, records) == records
    assert sorted(slurm.calls) == [
        "update JobId=4711_997 TimeLimit=0:10:00",
        "update JobId=4711_[995,998-999] TimeLimit=0:11:00",
    ]
    read = [state.read_pack(record.pack_id) for record in records]
    assert [pack.request.time_limit_s for pack in read if pack and pack.request] == [
        HOUR, 660, HOUR, 600, 660, 660, HOUR
    ]  # fmt: skip


def test_very_many_limits_are_rounded_up_to_a_few(tmp_path: Path) -> None:
    batch = build_batch(*(60 * minutes for minutes in range(1, 101)))
    state, records = submit(tmp_path, batch)
    slurm = Slurm(tmp_path)
    shorten(slurm.commands, state, "4711", batch, records)
    assert 10 < len(slurm.calls) <= COMMANDS_MAX


def test_nothing_is_asked_for_one_pack_or_packs_of_one_length(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path)
    for limits in ((600,), (600, 590, 560)):
        batch = build_batch(*limits)
        state, records = submit(tmp_path / str(len(limits)), batch)
        assert shorten(slurm.commands, state, "4711", batch, records) == records
    assert slurm.calls == []


# As scontrol 22.05 answers where one element of two cannot be changed.
PARTLY = "4711_998: No error\n4711_999: Job has already finished\n"


@pytest.mark.parametrize(
    ("stderr", "refused", "words"),
    [
        (PARTLY, {2}, "Job has already finished"),
        ("slurm_update error: Access/permission denied\n", {1, 2}, "permission denied"),
        ("slurm_update error: Unable to contact slurm controller\n", {1, 2, 3}, "does not answer"),
    ],
)
def test_what_slurm_refuses_is_noted_and_breaks_nothing(
    tmp_path: Path, stderr: str, refused: set[int], words: str
) -> None:
    batch = build_batch(HOUR, 900, 900, 600)
    state, records = submit(tmp_path, batch)
    slurm = Slurm(tmp_path, stderr=stderr, only="4711_[998-999]")
    found = shorten(slurm.commands, state, "4711", batch, records)
    assert found == [state.read_pack(record.pack_id) for record in records]
    for index, record in enumerate(found):
        assert record.request is not None
        if index in refused or index == 0:
            assert record.request.time_limit_s == HOUR
        else:
            assert record.request.time_limit_s == records[index].request.time_limit_s  # type: ignore[union-attr]
        assert any(words in reason for reason in record.reasons) == (index in refused)
    asked = len(slurm.calls)
    assert asked == (1 if 3 in refused else 2), "a controller that is away is asked once"


def test_runs_of_elements_have_no_steps() -> None:
    assert format_task_runs([5, 1, 3, 3]) == "1,3,5"
    assert format_task_runs(range(4)) == "0-3"
    assert format_task_runs([]) == ""
