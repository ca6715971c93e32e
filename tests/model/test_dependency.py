"""--dependency with members in it."""

from __future__ import annotations

import pytest

from slurm_colloc.model.job_values import (
    Condition,
    ConditionOutlook,
    Dependency,
    describe,
    judge_member,
    parse_dependency,
    reduce_dependency,
    render_for_slurm,
    replace_job,
)
from slurm_colloc.model.member import MemberState

OK, ANY = "afterok", "afterany"


@pytest.mark.parametrize(
    ("text", "conditions", "is_any"),
    [
        ("afterok:7/3", [(OK, "7/3")], False),
        ("afterok:7/3:8:9/1", [(OK, "7/3"), (OK, "8"), (OK, "9/1")], False),
        ("afterok:7/3,afterany:8", [(OK, "7/3"), (ANY, "8")], False),
        ("afterok:7/3?after:8+5", [(OK, "7/3"), ("after", "8+5")], True),
        ("singleton,afterok:7/3", [("", "singleton"), (OK, "7/3")], False),
        ("SINGLETON,AfterOK:7/3", [("", "singleton"), (OK, "7/3")], False),
    ],
)
def test_a_dependency_is_read(text: str, conditions: list[tuple[str, str]], is_any: bool) -> None:
    expected = Dependency(tuple(Condition(kind, target) for kind, target in conditions), is_any)
    assert parse_dependency(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("afterok:7/3,afterok:8?afterok:9", "not by both"),
        ("aftercorr:7/3", "cannot be used with a member"),
        ("after:7/3+10", "a delay"),
        ("afterok:7/", "not a member id"),
        ("afterok:7/3/4", "not a member id"),
        ("afterok:L7/3", "runs without Slurm"),
        ("afterok:x/3", "not a member id"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_dependency(text)


@pytest.mark.parametrize(
    ("kind", "state", "started", "expected"),
    [
        ("after", MemberState.PENDING, False, ConditionOutlook.OPEN),
        ("after", MemberState.RUNNING, True, ConditionOutlook.SATISFIED),
        ("after", MemberState.PENDING, True, ConditionOutlook.SATISFIED),
        ("after", MemberState.CANCELLED, False, ConditionOutlook.SATISFIED),
        ("afterany", MemberState.RUNNING, True, ConditionOutlook.OPEN),
        ("afterany", MemberState.FAILED, True, ConditionOutlook.SATISFIED),
        ("afterok", MemberState.COMPLETED, True, ConditionOutlook.SATISFIED),
        ("afterok", MemberState.LOST, True, ConditionOutlook.NEVER),
        ("afterok", MemberState.RUNNING, True, ConditionOutlook.OPEN),
        ("afternotok", MemberState.COMPLETED, True, ConditionOutlook.NEVER),
        ("afternotok", MemberState.TIMEOUT, True, ConditionOutlook.SATISFIED),
        ("afternotok", MemberState.CANCELLED, False, ConditionOutlook.SATISFIED),
    ],
)
def test_a_condition_is_judged_by_its_member(
    kind: str, state: MemberState, started: bool, expected: ConditionOutlook
) -> None:
    assert judge_member(kind, state, has_started=started) is expected


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        ("afterok:1/1,afterok:2/1", ConditionOutlook.OPEN, "afterok:2/1"),
        ("afterok:1/1,afterok:1/1", ConditionOutlook.SATISFIED, ""),
        ("afterok:1/1,afterok:3/1,afterok:2/1", ConditionOutlook.NEVER, ""),
        ("afterok:3/1?afterok:2/1", ConditionOutlook.OPEN, "afterok:2/1"),
        ("afterok:2/1?afterok:1/1", ConditionOutlook.SATISFIED, ""),
        ("afterok:3/1?afterok:3/1", ConditionOutlook.NEVER, ""),
    ],
)
def test_what_is_decided_is_left_out(text: str, expected: ConditionOutlook, rest: str) -> None:
    known = {
        "1/1": ConditionOutlook.SATISFIED,
        "2/1": ConditionOutlook.OPEN,
        "3/1": ConditionOutlook.NEVER,
    }
    outlook, left = reduce_dependency(parse_dependency(text), lambda c: known[c.target])
    assert outlook is expected
    pairs = [(condition.kind, condition.target) for condition in left.conditions]
    assert describe(pairs, is_any=left.is_any) == rest


def test_slurm_is_told_to_wait_for_the_packs() -> None:
    dependency = parse_dependency("afterok:7/3:7/4,after:9+2,singleton,afternotok:8/1")
    assert render_for_slurm(dependency, lambda member: f"{member.job}_0") == (
        "afterany:7_0,after:9+2,singleton,afterany:8_0"
    )
    either = parse_dependency("afterok:7/3?afterok:9")
    assert render_for_slurm(either, lambda member: member.job) == "afterany:7?afterok:9"


@pytest.mark.parametrize(
    ("current", "rest"),
    [
        ("afterany:7(unfulfilled)", ""),
        ("afterany:7(unfulfilled),afterok:9(unfulfilled)", "afterok:9"),
        ("afterany:7_1(unfulfilled)?afterany:77(failed)", "afterany:7_1?afterany:77"),
        ("(null)", ""),
        ("", ""),
    ],
)
def test_a_pack_is_taken_out_of_what_slurm_shows(current: str, rest: str) -> None:
    assert replace_job(current, "7") == rest


def test_a_job_is_put_in_the_place_of_another() -> None:
    current = "afterok:8(unfulfilled),afterany:7_3(unfulfilled),afterany:9(unfulfilled)"
    assert replace_job(current, "7_3", "11_3") == "afterok:8,afterany:11_3,afterany:9"
    assert replace_job("afterany:7(unfulfilled)?afterok:8(unfulfilled)", "7", "11") == (
        "afterany:11?afterok:8"
    )
