"""`scontrol requeue` and `scancel` of the own job: requests to the runner about this member.

Also: what a member's program asks of other members: csub does it, under the name of Slurm's
command.

What the same call says of other jobs goes to csub under that name (`other_members`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
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
    is_other_task,
    read_output,
    spawn,
    write_output,
)
from slurm_colloc.runtime.programs.own_steps import find_steps
from slurm_colloc.settings_files import STATE_VARIABLE
from slurm_colloc.slurm.options import (
    OptionWord,
    parse_command_line,
    parse_words,
    render_arguments,
)
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


# ----
# sbatch with a dependency on members: csub submits the job, and holds it until they have ended.
#
# Slurm takes ids that it does not know as satisfied, and the id of a pack for all its members.

_ALONE = "exclusive"


def submit_waiting(
    member: OwnMember, call: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    """Submit a job that waits for members, and answer as sbatch does; None where it waits for none.

    Args:
        member: The caller.
        call: The command's name and arguments.
        environment: The environment.
    """
    name, *arguments = call
    try:
        line = parse_command_line(arguments)
    except UsageProblem:
        # An option of the site's, or one that sbatch refuses: csub says so, too.
        names, script = {"wait"}, ""
        values = [word for word in arguments if word.partition("=")[2].startswith("after")]
        kept, words = [word for word in arguments if word not in values], []
        values = [word.partition("=")[2] for word in values]
    else:
        names = {given.option.canonical_name for given in line.values}
        values = [g.value or "" for g in line.values if g.option.canonical_name == "dependency"]
        kept = render_arguments(g for g in line.values if g.option.canonical_name != "dependency")
        words = list(line.words)
        script = "" if "wrap" in names else next(iter(words), "")
    text = _read_script(script, environment)
    if not values:
        variable = environment.get("SBATCH_DEPENDENCY")
        values = _list_dependencies(text) if variable is None else [variable]
    if not values or not _names_members(values[-1], member):
        return None
    options = [f"--dependency={_name_own(values[-1], member)}"]
    if not _shares_by_wish(text, environment):
        options.append(f"--share={_ALONE}")
    is_told = not names & {"parsable", "quiet", "wait"}
    options += ["--parsable"] if is_told else []
    program, call, outer = build_call(member, [name, *options, *kept, *words], environment)
    if not is_told:
        pid = spawn(program, call, outer)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status, told = read_output(program, call, outer)
    if told:
        write_output(f"Submitted batch job {told}")
    return status


def _name_own(dependency: str, member: OwnMember) -> str:
    """A dependency in which the own job goes by its name: its id may be its submission's, too."""
    own = member.ids - {member.values.get("array_id", "")}

    def replace(match: re.Match[str]) -> str:
        return member.name if match[0] in own else match[0]

    return re.sub(r"[0-9][0-9_/]*", replace, dependency)


def _read_script(script: str, environment: Mapping[str, str]) -> str:
    path = script if os.path.isfile(script) else shutil.which(script, path=environment.get("PATH"))
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape") if path else ""
    except OSError:
        return ""


def _list_dependencies(text: str) -> list[str]:
    """The dependencies in a script's #SBATCH lines; sbatch says what is wrong with them."""
    try:
        words = [
            OptionWord(word, "")
            for line in text.split("\n")
            if line.startswith("#SBATCH")
            for word in shlex.split(line.removeprefix("#SBATCH"), comments=True)
        ]
        givens = parse_words(words, own=False).values
    except (UsageProblem, ValueError):
        return []
    return [given.value or "" for given in givens if given.option.canonical_name == "dependency"]


def _names_members(dependency: str, member: OwnMember) -> bool:
    """One of its jobs is one of csub's."""
    jobs = Path(member.pack).parents[1] / "jobs"
    for word in re.split(r"[,?:]", dependency):
        target = word.partition("+")[0].strip()
        job = re.split(r"[_/]", target)[0]
        if not job.isdecimal():
            continue
        if target in member.ids or job == member.real_id or is_other_task(target, member):
            return True
        if "/" in target or any(jobs.glob(f"*.{job}.json")) or (jobs / f"{job}.json").exists():
            return True
    return False


def _shares_by_wish(text: str, environment: Mapping[str, str]) -> bool:
    """The user's settings, or lines of the script for csub, say how the job shares a GPU."""
    from slurm_colloc.settings import Settings, load_settings

    return "\n#CSUB" in text or load_settings(environment).share != Settings().share


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
        own = find_steps(member, environment)
        others = [step for step in division.steps if own.show(step) != step]
        if others:
            own.refuse("scancel", [f"{member.job_id}.{step}" for step in others])
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
            if job_id not in (*member.ids, member.real_id):
                ids.append(one)
            elif step == "batch" and job_id in member.ids:
                is_batch = True
            else:
                steps.append(step)
                ids.append(f"{member.real_id}.{step}")
        if ids:
            kept.append(",".join(ids))
    return kept, tuple(steps), is_batch


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
