"""Calls of Slurm's commands inside a member, with Slurm's ids in the place of the member's; pure.

Of each command only the words are read that hold ids: the same number elsewhere is a file's name, a
job's name, a time.
"""

from __future__ import annotations

from slurm_colloc.slurm.scontrol_records import CommandOptions, split_scontrol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slurm_colloc.runtime.programs.member_commands import OwnMember

IDS = ("SLURM_JOB_ID", "SLURM_JOBID")
"""srun and sbcast go by the former, and slurmstepd sets both anew in each task."""

SBCAST = CommandOptions(
    "CfF:j:ps:t:vV",
    {
        "compress": "C", "exclude": "exclude", "fanout": "F", "force": "f", "help": "help",
        "jobid": "j", "preserve": "p", "send-libs": "send-libs", "size": "s", "timeout": "t",
        "treewidth": "treewidth", "usage": "usage", "verbose": "v", "version": "V",
    },
    with_value=("exclude", "treewidth"),
)  # fmt: skip
SATTACH = CommandOptions(
    "e:hi:lo:QuvV",
    {
        "error-filter": "e", "help": "h", "input-filter": "i", "label": "l", "layout": "layout",
        "output-filter": "o", "pty": "pty", "quiet": "Q", "usage": "u", "verbose": "v",
        "version": "V",
    },
)  # fmt: skip
SSTAT = CommandOptions(
    "aehij:no:pPvV",
    {
        "allsteps": "a", "fields": "o", "format": "o", "help": "h", "helpformat": "e", "jobs": "j",
        "json": "json", "noconvert": "noconvert", "noheader": "n", "parsable": "p",
        "parsable2": "P", "pidformat": "i", "usage": "usage", "verbose": "v", "version": "V",
        "yaml": "yaml",
    },
)  # fmt: skip
"""The same from 22.05 to 26.05, but for a few names that are newer."""

_OF_A_JOB = ("listpids", "wait_job")
"""Questions of scontrol that the whole Slurm job answers for a member."""


def translate_call(
    member: OwnMember, call: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """A call that is Slurm's to answer, and the environment for it.

    Args:
        member: The caller.
        call: The command's name and arguments.
        environment: The environment.
    """
    name, *arguments = call
    translated = dict(environment)
    if name == "sbcast":
        translated |= {key: member.real_id for key in IDS if key in environment}
    words = translate_words(name, arguments, member, member.translate)
    return [name, *(arguments if words is None else words)], translated


def translate_words(
    name: str, arguments: Sequence[str], member: OwnMember, change: Callable[[str], str]
) -> list[str] | None:
    """The arguments of a command with other ids.

    Args:
        name: The command.
        arguments: Its arguments.
        member: The caller.
        change: Makes ids of ids, with commas between them.

    Returns:
        None where the command's options are not understood, or it has no ids.
    """
    if name == "scontrol":
        return _translate_scontrol(arguments, member, change)
    known = _load_options(name, member)
    return None if known is None else known[0].rewrite(arguments, known[1], change)


def _load_options(name: str, member: OwnMember) -> tuple[CommandOptions, tuple[str, ...]] | None:
    """The options of a command, and which of them hold ids; the empty one is for operands."""
    if name == "squeue":
        from slurm_colloc.slurm.marked_tables import QUEUE_OPTIONS

        return QUEUE_OPTIONS, ("j", "s", "")
    if name == "scancel" and member.is_alone:
        from slurm_colloc.runtime.programs.member_requests import SCANCEL

        return SCANCEL, ("",)
    return {"sattach": (SATTACH, ("",)), "sbcast": (SBCAST, ("j",)), "sstat": (SSTAT, ("j",))}.get(
        name
    )


def _translate_scontrol(
    arguments: Sequence[str], member: OwnMember, change: Callable[[str], str]
) -> list[str] | None:
    """Scontrol takes any beginning of its words; `JobId=4711` is the same as `4711`."""
    split = split_scontrol(arguments)
    if split is None or not split[1]:
        return None
    options, (verb, *words) = split
    folded = verb.lower()
    if folded.startswith("sh"):
        # What else is shown goes by names of its own: nodes, partitions.
        is_of_jobs = bool(words) and words[0].lower().startswith(("job", "step"))
    else:
        is_of_jobs = member.is_alone or folded in _OF_A_JOB
    if not is_of_jobs:
        return None
    changed = []
    for word in words:
        key, equals, value = word.partition("=")
        is_id = key.lower() in ("job", "jobid", "step", "stepid")
        if equals:
            changed.append(f"{key}={change(value) if is_id else value}")
        else:
            changed.append(change(word))
    return [*options, verb, *changed]
