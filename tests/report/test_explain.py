"""No state without its text, and Slurm's reasons in words."""

from __future__ import annotations

import re

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.member import FINAL_STATES, EndCause, MemberState
from slurm_colloc.report.state_meanings import CAUSES, HELD, MEANINGS, explain_word
from slurm_colloc.report.waiting_reasons import REASONS, describe_reason, find_reason
from slurm_colloc.report.why_line import describe_request, read_start


@pytest.mark.parametrize("state", MemberState)
def test_every_state_is_explained_with_what_comes_next_and_what_can_be_done(
    state: MemberState,
) -> None:
    lines = explain_word(state.value.lower()).splitlines()
    assert lines[0] == state.value
    assert [line.split(":")[0].strip() for line in lines[1:4]] == ["Means", "Next", "You can"]
    meaning = MEANINGS[state]
    assert meaning.meaning.endswith(".")
    assert meaning.next.endswith(".")
    assert meaning.can
    assert ("Nothing more" in meaning.next) is (state in FINAL_STATES - {MemberState.REQUEUED})


def test_the_commands_that_are_named_exist() -> None:
    from slurm_colloc.cli.subcommands import build_app

    commands = build_app().registered_commands
    known = {command.name or command.callback.__name__ for command in commands
             if command.callback is not None}  # fmt: skip
    others = ("sacct -j", "compute-sanitizer PROGRAM", "CUDA_LAUNCH_BLOCKING=1")
    for meaning in (*MEANINGS.values(), *CAUSES.values(), HELD):
        for command, what in meaning.can:
            assert what
            if not command.startswith(others):
                program, word = command.split()[:2]
                assert program == "csub"
                assert word in known or word.startswith("-"), command


@pytest.mark.parametrize("cause", EndCause)
def test_every_end_is_explained_with_what_it_is_and_what_can_be_done(cause: EndCause) -> None:
    for text in (cause.value, cause.value.lower(), cause.value.upper()):
        lines = explain_word(text).splitlines()
        # A word that is a state's as well means the same.
        assert lines[0].lower() == cause.value.lower()
        assert [line.split(":")[0].strip() for line in lines[1:4]] == ["Means", "Next", "You can"]
    meaning = CAUSES[cause]
    assert meaning.meaning.endswith(".")
    assert meaning.next.endswith(".")
    assert meaning.can


def test_a_slip_in_the_name_of_an_end_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageProblem, match=re.escape("did you mean MPS fault: victim?")):
        explain_word("mps fault:victim")


@pytest.mark.parametrize("name", REASONS)
def test_every_reason_is_a_clause(name: str) -> None:
    reason = REASONS[name]
    assert not reason.meaning.endswith(".")
    assert not reason.advice.endswith(".")
    assert find_reason(name) == reason
    assert explain_word(name).splitlines()[0] == name


def test_a_word_that_is_a_reason_too_is_the_word_in_small_letters() -> None:
    assert "How many members run on the GPU at the same time." in explain_word("degree")
    assert "as its degree allows" in explain_word("Degree")


# squeue(1), JOB REASON CODES, and src/common/job_state_reason.c.
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("QOSMaxCpuPerUserLimit", "a limit of its QoS is reached: CPUs per user at most"),
        ("QOSMaxGRESPerUser", "GPUs and other GRES per user at most"),
        ("QOSGrpGRES", "a limit of its QoS is reached: GPUs and other GRES for all its jobs"),
        ("AssocGrpCpuLimit", "a limit of its account is reached: CPUs for all its jobs together"),
        ("AssocGrpGRESMinutes", "GPUs and other GRES minutes for all its jobs together"),
        ("AssocMaxJobsLimit", "jobs at most"),
        ("QOSMaxJobsPerUserLimit", "jobs per user at most"),
        ("MaxJobsPerAccount", "a limit of its partition or QoS is reached"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "a node that it needs is down"),
        ("ReqNodeNotAvail, May be reserved for other job", "a node that it needs is down"),
        ("Priority", "jobs with a higher priority come first"),
    ],
)
def test_slurms_reasons_in_words(text: str, words: str) -> None:
    assert words in describe_reason(text)
    assert describe_reason(text).endswith(f"({text})")


def test_a_reason_of_a_later_release_is_shown_as_it_is() -> None:
    assert describe_reason("MoonPhase") == "Slurm's reason is MoonPhase"
    with pytest.raises(UsageProblem, match="'MoonPhase' is not a member, state, reason or word"):
        explain_word("MoonPhase")
    with pytest.raises(UsageProblem, match=re.escape("did you mean Resources?")):
        explain_word("resource")


# Fields of `scontrol show job -o`: the first of 22.05, the second of 26.05.
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"NumCPUs": "4", "TRES": "cpu=4,mem=16000M,node=1,billing=4",
             "TresPerNode": "gres:gpu:1", "Partition": "gpu"},
            "4 CPUs, 16000M host memory and gpu:1 on a node of partition gpu",
        ),
        (
            {"NumCPUs": "1-2", "ReqTRES": "cpu=1,mem=8G,node=1,billing=1,gres/gpu=1",
             "TresPerNode": "gres/gpu:a100:1", "Partition": "gpu"},
            "1 CPU, 8G host memory and gpu:a100:1 on a node of partition gpu",
        ),
        ({}, ""),
    ],
)  # fmt: skip
def test_what_a_job_waits_for(fields: dict[str, str], words: str) -> None:
    assert describe_request(fields) == words


@pytest.mark.parametrize("text", ["Unknown", "N/A", "(null)", ""])
def test_a_start_that_slurm_does_not_tell_is_not_invented(text: str) -> None:
    assert read_start({"StartTime": text}) == ""
    assert read_start({"StartTime": "2026-11-21T10:00:00"}) == "at 2026-11-21 10:00:00"
