"""`scontrol requeue` and `scancel` of the own job: requests to the runner about this member.

Also: what a member's program asks of other members: csub does it, under the name of Slurm's
command.

What the same call says of other jobs goes to csub under that name (`other_members`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.job_values import remove_member_variables
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.quantities import parse_signal
from slurm_colloc.runtime.programs.member_commands import (
    OwnMember,
    read_output,
    spawn,
)
from slurm_colloc.settings_files import STATE_VARIABLE
from slurm_colloc.slurm.real_command import find_real_command
from slurm_colloc.slurm.scontrol_records import CommandOptions, parse_scontrol
from slurm_colloc.store.pack_directory import read_spec
from slurm_colloc.store.runner_requests import Action, Request, write_request

# ----
# What a member's program asks of other members: csub does it, under the name of Slurm's command.
#
# Slurm does not know tasks of packs, and its scancel says nothing of ids that it does not know. So
# all that is not about the own job goes to csub, as if the links of docs/members.md were there;
# what is no member's csub passes on to Slurm.

_PROGRAM = "import sys; sys.argv[0] = {!r}; from slurm_colloc.__main__ import main; main()"


def build_call(
    member: OwnMember, call: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, list[str], dict[str, str]]:
    """What is to be executed for a command about other jobs: program, words and environment.

    Args:
        member: The caller.
        call: The command's name and arguments.
        environment: The environment.
    """
    name, *arguments = call
    root = member.pack.rsplit("/", 2)[0]
    words = [sys.executable, "-IBc", _PROGRAM.format(name), *arguments]
    return sys.executable, words, {**remove_member_variables(environment), STATE_VARIABLE: root}


# ---- `scontrol requeue` and `scancel` of the own job: requests to the runner about this member ---

SCANCEL = CommandOptions(
    "A:bcfHiM:n:p:Qq:R:s:t:u:vVw:",
    {
        "account": "A", "admin-comment": "admin-comment", "batch": "b", "clusters": "M",
        "cron": "c", "ctld": "ctld", "full": "f", "hurry": "H", "interactive": "i",
        "jobname": "n", "me": "me", "name": "n", "nodelist": "w", "partition": "p", "qos": "q",
        "quiet": "Q", "reservation": "R", "sibling": "sibling", "signal": "s", "state": "t",
        "user": "u", "verbose": "v", "version": "V", "wckey": "wckey",
    },
)  # fmt: skip


@dataclass(frozen=True)
class Division:
    """A command about the own job and others, divided.

    Attributes:
        request: What is asked for the member; None for nothing.
        rest: The arguments that are left for the real command; None for none.
        steps: Steps of the pack's job that it names, by number; they must be the member's.
    """

    request: Request | None
    rest: tuple[str, ...] | None
    steps: tuple[str, ...] = ()


def ask_for(member: OwnMember, call: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Do what was asked: the own part through the runner; None where it is none of the member's.

    Raises:
        UsageProblem: It cannot be done, or is wrong.
    """
    divide = divide_scontrol if call[0] == "scontrol" else divide_scancel
    division = divide(call[1:], member)
    if division is None:
        return None
    if division.steps:
        refuse_other_steps(division.steps, member, find_steps(member, environment))
    status = 0
    if division.request is not None:
        check_allowed(Path(member.pack), division.request)
    if division.rest is not None:
        program, words, outer = build_call(member, [call[0], *division.rest], environment)
        pid = spawn(program, words, outer)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if division.request is not None:
        ask_runner(member.pack, division.request)
    return status


def _divide_ids(words: Sequence[str], member: OwnMember) -> tuple[bool, list[str]]:
    """Whether the own job is among ids, and the ids of others."""
    others, is_own = [], False
    for word in words:
        key, equals, value = word.rpartition("=")
        ids = value.split(",")
        kept = [one for one in ids if one not in member.ids]
        is_own = is_own or len(kept) < len(ids)
        if kept:
            others.append(f"{key}{equals}{','.join(kept)}")
    return is_own, others


def divide_scontrol(arguments: Sequence[str], member: OwnMember) -> Division | None:
    """`scontrol requeue IDS` and the like; None where it is a question, or not about jobs."""
    call = parse_scontrol(arguments)
    if call is None or call.verb == "show":
        return None
    others = [one for one in call.ids if one not in member.ids]
    is_own = len(others) < len(call.ids)
    if is_own and call.verb == "requeuehold":
        raise UsageProblem("scontrol requeuehold cannot be done for one member of a pack")
    if not is_own:
        return Division(None, tuple(arguments))
    if call.verb == "requeue":
        request = Request(Action.REQUEUE, member.number, reason="scontrol requeue from inside")
        return Division(request, tuple(call.write_words(others)) if others else None)
    # By its own name: Slurm's id is that of the whole pack.
    return Division(None, tuple(call.write_words([*others, member.name])))


def divide_scancel(arguments: Sequence[str], member: OwnMember) -> Division | None:
    """`scancel [-s SIGNAL] [-b|-f] IDS`; None where its options are not understood.

    `JOB.batch` is the member's script, and `JOB.STEP` one of the steps that it has started.

    Raises:
        UsageProblem: It is, and what else is asked is not understood.
    """
    split = SCANCEL.split(arguments)
    if split is None:
        if _divide_ids([word for word in arguments if not word.startswith("-")], member)[0]:
            raise UsageProblem(
                "scancel: an option is not known here, and Slurm's would end the whole pack",
                hint="name the member's own job without it",
            )
        return None
    options, operands = split
    operands, steps, is_batch = _divide_steps(operands, member)
    is_own, others = _divide_ids(operands, member)
    if not (is_own or is_batch or steps):
        return Division(None, tuple(arguments))
    given = {key: value or "" for key, value, _ in options}
    if is_batch and not is_own:
        given["b"] = ""
    shown = [word for _, _, words in options for word in words]
    rest = (*shown, *others) if others else None
    if not (is_own or is_batch) or not _is_meant(given, member):
        return Division(None, rest, steps)
    number = _read_signal(given["s"]) if "s" in given else 0
    if number in (0, signal.SIGTERM, signal.SIGKILL):
        request = Request(Action.CANCEL, member.number, reason="scancel from inside")
    else:
        steps_only = not given.keys() & {"b", "f"}
        request = Request(
            Action.SIGNAL, member.number, signal=number, steps_only=steps_only, reason="scancel -s"
        )
    return Division(request, rest, steps)


def _divide_steps(
    words: Sequence[str], member: OwnMember
) -> tuple[list[str], tuple[str, ...], bool]:
    """Ids as Slurm knows them without the own script, the own job's steps, whether it is there."""
    kept, steps, is_batch = [], [], False
    for word in words:
        ids = []
        for one in word.split(","):
            job_id, _, step = one.rpartition(".")
            if job_id not in member.ids:
                ids.append(one)
            elif step == "batch":
                is_batch = True
            else:
                steps.append(step)
                ids.append(f"{member.real_id}.{step}")
        if ids:
            kept.append(",".join(ids))
    return kept, tuple(steps), is_batch


def find_steps(member: OwnMember, environment: Mapping[str, str]) -> dict[str, str]:
    """The names of the steps of the pack's job, by number; empty where Slurm does not tell."""
    real = find_real_command("squeue", environment.get("PATH"))
    if real is None:
        return {}
    words = ["squeue", "--noheader", "--steps", f"--jobs={member.real_id}", "--format=%i|%j"]
    _, text = read_output(real, words, environment)
    rows = [line.strip().partition("|") for line in text.split("\n")]
    return {step.rpartition(".")[2]: name for step, bar, name in rows if bar}


def refuse_other_steps(steps: Sequence[str], member: OwnMember, names: Mapping[str, str]) -> None:
    """Refuse steps that are not the member's: those of its neighbours run in the same job.

    Raises:
        UsageProblem: One is another's, or Slurm does not know it.
    """
    # See member_step._step_name.
    own = [step for step, name in names.items() if name.startswith(f"{member.name}:")]
    others = [step for step in steps if step not in own]
    if others:
        known = ", ".join(f"{member.job_id}.{step}" for step in own) or "none"
        raise UsageProblem(
            f"scancel: {member.job_id}.{others[0]} is no step that this job has started",
            hint=f"its steps are: {known}; others of {member.job_id} are of other jobs in its pack",
        )


def _is_meant(given: Mapping[str, str], member: OwnMember) -> bool:
    """The member is what a call's filters leave; those that csub cannot judge leave it."""
    names, state = given.get("n"), given.get("t", "RUNNING").upper()
    if names is not None and member.values.get("name") not in names.split(","):
        return False
    return state in ("R", "RUNNING")


def _read_signal(text: str) -> int:
    try:
        return parse_signal(text)
    except ValueError as error:
        raise UsageProblem(f"scancel: {error}") from error


def check_allowed(pack: Path, request: Request) -> None:
    """Refuse what the user has ruled out at submission.

    Raises:
        UsageProblem: It is a requeue of a job with --no-requeue.
    """
    if request.action is Action.REQUEUE and read_spec(pack, request.number).job.requeue is False:
        raise UsageProblem("scontrol requeue: the job was submitted with --no-requeue")


def ask_runner(pack: str, request: Request) -> None:
    """Leave a request and wake the runner, which is another process of this user on this node."""
    write_request(pack, request)
    # It looks by itself within a second.
    from slurm_colloc.store.written_ends import read_runner

    with contextlib.suppress(OSError, StateError):
        if (runner := read_runner(pack)) is not None:
            os.kill(runner.pid, signal.SIGURG)
