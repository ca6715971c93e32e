"""Mails: what is asked for, and what they say."""

from __future__ import annotations

import pytest

from slurm_colloc.model.job_values import (
    MailEvent,
    MailRequest,
    build_subject,
    choose_end_event,
    describe_end,
    describe_ends,
    format_mail_time,
    parse_mail_types,
)
from slurm_colloc.model.member import ExitCode, MemberState


@pytest.mark.parametrize(
    ("text", "events", "each_task"),
    [
        ("END", ("END",), False),
        ("begin,Fail", ("BEGIN", "FAIL"), False),
        ("ALL", ("BEGIN", "END", "FAIL", "REQUEUE"), False),
        ("FAIL,ARRAY_TASKS,TIME_LIMIT_80", ("FAIL", "TIME_LIMIT_80"), True),
        ("NONE", (), False),
        ("END,NONE", (), False),
        ("END,SOMETHING", ("END",), False),
        ("INVALID_DEPEND,STAGE_OUT", (), False),
    ],
)  # fmt: skip
def test_types_are_read_as_sbatch_reads_them(
    text: str, events: tuple[str, ...], each_task: bool
) -> None:
    assert parse_mail_types(text) == (events, each_task)


@pytest.mark.parametrize("text", ["", "ends", "END FAIL"])
def test_types_of_which_none_is_known_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="valid ones are NONE, ALL"):
        parse_mail_types(text)


@pytest.mark.parametrize(
    ("state", "events", "expected"),
    [
        (MemberState.COMPLETED, ("END", "FAIL"), MailEvent.END),
        (MemberState.COMPLETED, ("FAIL",), None),
        (MemberState.CANCELLED, ("END", "FAIL"), MailEvent.END),
        (MemberState.FAILED, ("END", "FAIL"), MailEvent.FAIL),
        (MemberState.TIMEOUT, ("END",), MailEvent.END),
        (MemberState.OUT_OF_MEMORY, ("BEGIN",), None),
    ],
)
def test_one_mail_at_most_tells_of_an_end(
    state: MemberState, events: tuple[str, ...], expected: MailEvent | None
) -> None:
    assert choose_end_event(state, MailRequest(events)) is expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "00:00:00"), (61.9, "00:01:01"), (90061, "1-01:01:01"), (-5, "00:00:00")],
)
def test_times_are_written_as_slurmctld_writes_them(seconds: float, text: str) -> None:
    assert format_mail_time(seconds) == text


def test_a_subject_is_slurmctlds() -> None:
    end = describe_end(MemberState.FAILED, ExitCode(3))
    subject = build_subject("Job_id=7/3", "a.sh", MailEvent.FAIL, "Run time 00:00:01", end)
    assert subject == "Slurm Job_id=7/3 Name=a.sh Failed, Run time 00:00:01, FAILED, ExitCode 3"
    assert describe_end(MemberState.CANCELLED, ExitCode(0, 15)) == "CANCELLED"


def test_a_name_cannot_end_the_subject() -> None:
    subject = build_subject("Job_id=7/3", "a\nBcc: b", MailEvent.BEGIN, "", "")
    assert subject == "Slurm Job_id=7/3 Name=a Bcc: b Began"


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        ([ExitCode(), ExitCode()], "COMPLETED, ExitCode [0-0]"),
        ([ExitCode(), ExitCode(3)], "Mixed, ExitCode [0-3]"),
        ([ExitCode(2), ExitCode(0, 9)], "Mixed, MaxSignal [9]"),
        ([], "COMPLETED, ExitCode [0-0]"),
    ],
)
def test_the_tasks_of_an_array_are_summed_up(codes: list[ExitCode], text: str) -> None:
    assert describe_ends(MemberState.COMPLETED, codes) == text
