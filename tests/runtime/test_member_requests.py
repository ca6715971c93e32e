"""scancel and `scontrol requeue` inside a member: the own job, and that of others."""

from __future__ import annotations

import signal

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.runtime.programs.member_commands import OwnMember
from slurm_colloc.runtime.programs.member_requests import (
    Division,
    divide_scancel,
    divide_scontrol,
)
from slurm_colloc.store.runner_requests import Action, Request

MEMBER = OwnMember(
    "/state/packs/p/members/0003",
    {
        "job_id": "4713",
        "real_id": "4713",
        "member": "4711/3",
        "task_id": "4711_3",
        "name": "train",
    },
)
REQUEUE = Request(Action.REQUEUE, 3, reason="scontrol requeue from inside")
CANCEL = Request(Action.CANCEL, 3, reason="scancel from inside")


def test_the_ids_by_which_a_script_means_itself() -> None:
    assert MEMBER.ids == {"4713", "4711_3", "4711/3"}
    values = {"job_id": "4713", "real_id": "4713", "member": "4713/1"}
    assert OwnMember("/x", values).ids == {"4713", "4713/1"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["requeue", "4713"], Division(REQUEUE, None)),
        (["requeue", "4711_3"], Division(REQUEUE, None)),
        (["-Q", "REQUEUE", "JobId=4713"], Division(REQUEUE, None)),
        (["requeue", "Incomplete", "4713"], Division(REQUEUE, None)),
        # scontrol takes any beginning of the word.
        (["req", "4713"], Division(REQUEUE, None)),
        (["Reque", "4713,99"], Division(REQUEUE, ("requeue", "99"))),
        (["re", "4713"], None),
        (["requeues", "4713"], None),
        # Others in the same call are for csub and Slurm; the own job never is.
        (["-Q", "requeue", "4713,99"], Division(REQUEUE, ("-Q", "requeue", "99"))),
        (["requeue", "98", "4713", "99"], Division(REQUEUE, ("requeue", "98", "99"))),
        (["requeue", "99"], Division(None, ("requeue", "99"))),
        (["requeue", "4711_4"], Division(None, ("requeue", "4711_4"))),
        (["requeue", "4711"], Division(None, ("requeue", "4711"))),
        (["show", "job", "4713"], None),
        # By its own name: Slurm's id is that of all members.
        (["hold", "4713"], Division(None, ("hold", "4711/3"))),
        (["-Q", "uhold", "4713,99"], Division(None, ("-Q", "hold", "99", "4711/3"))),
        (["release", "4711_3", "4711_4"], Division(None, ("release", "4711_4", "4711/3"))),
        (
            ["update", "JobId=4713", "TimeLimit=9"],
            Division(None, ("update", "JobId=4711/3", "TimeLimit=9")),
        ),
        (["update", "NodeName=n1", "State=drain"], None),
        (["show", "config"], None),
        ([], None),
    ],
)
def test_scontrol(arguments: list[str], expected: Division | None) -> None:
    assert divide_scontrol(arguments, MEMBER) == expected


@pytest.mark.parametrize("ids", ["4713", "99,4713"])
@pytest.mark.parametrize("word", ["requeuehold", "RequeueHold", "requeueholding"])
def test_a_requeue_on_hold_is_refused_for_one_member(word: str, ids: str) -> None:
    with pytest.raises(UsageProblem, match="requeuehold cannot be done for one member"):
        divide_scontrol([word, ids], MEMBER)


def signalled(number: signal.Signals, *, steps_only: bool) -> Division:
    request = Request(Action.SIGNAL, 3, number, steps_only=steps_only, reason="scancel -s")
    return Division(request, None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["4713"], Division(CANCEL, None)),
        (["4711_3"], Division(CANCEL, None)),
        (["-Q", "4713", "4711_3"], Division(CANCEL, None)),
        (["-s", "TERM", "4713"], Division(CANCEL, None)),
        (["--signal=SIGKILL", "4713"], Division(CANCEL, None)),
        (["-s", "USR1", "4713"], signalled(signal.SIGUSR1, steps_only=True)),
        (["-sUSR1", "--batch", "4713"], signalled(signal.SIGUSR1, steps_only=False)),
        (["-bs", "USR1", "4713"], signalled(signal.SIGUSR1, steps_only=False)),
        (["4713", "--signal=12", "-f"], signalled(signal.SIGUSR2, steps_only=False)),
        (["--sig", "12", "4713"], signalled(signal.SIGUSR2, steps_only=True)),
        # Others in the same call are for csub and Slurm; the own job never is.
        (["4713", "99"], Division(CANCEL, ("99",))),
        (["-v", "98,4713,99"], Division(CANCEL, ("-v", "98,99"))),
        (["--name=train", "4713"], Division(CANCEL, None)),
        (["--name=x", "4713"], Division(None, None)),
        (["-t", "PENDING", "4713", "99"], Division(None, ("-t", "PENDING", "99"))),
        (["-p", "gpu", "-u", "ada", "4713"], Division(CANCEL, None)),
        (["--hurry", "4713"], Division(CANCEL, None)),
        # A step must be the member's; its script is what it was alone.
        (["4713.1"], Division(None, ("4713.1",), ("1",))),
        (["-s", "INT", "4711_3.2,99"], Division(None, ("-s", "INT", "4713.2,99"), ("2",))),
        (["4713", "4713.1"], Division(CANCEL, ("4713.1",), ("1",))),
        (["4713.extern"], Division(None, ("4713.extern",), ("extern",))),
        (["4713.batch"], Division(CANCEL, None)),
        (["-s", "USR1", "4711_3.batch"], signalled(signal.SIGUSR1, steps_only=False)),
        (["4800.0"], Division(None, ("4800.0",))),
        (["99.batch"], Division(None, ("99.batch",))),
        (["4711"], Division(None, ("4711",))),
        (["4711_4"], Division(None, ("4711_4",))),
        (["--user=ada"], Division(None, ("--user=ada",))),
        (["--no-such-option", "99"], None),
    ],
)
def test_scancel(arguments: list[str], expected: Division | None) -> None:
    assert divide_scancel(arguments, MEMBER) == expected


def test_an_option_that_is_not_known_never_takes_the_own_job_to_slurm() -> None:
    with pytest.raises(UsageProblem, match="would end the whole pack"):
        divide_scancel(["--no-such-option", "4713"], MEMBER)


@pytest.mark.parametrize("arguments", [["-s", "NOISE", "4713"], ["4713", "-s", ""]])
def test_a_signal_that_does_not_exist_is_told(arguments: list[str]) -> None:
    with pytest.raises(UsageProblem, match="scancel: there is no signal"):
        divide_scancel(arguments, MEMBER)
