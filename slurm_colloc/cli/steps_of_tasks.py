"""csub under the names sstat and sattach: members of packs are found by their numbers.

The script of a member is a step of its pack's job, as which Slurm measures it: `N` and `N.batch`
are that step, `N.0` is step 0 of the pack's job, in which steps are numbered through all members.
Slurm gets no id that it does not know; its answer names members as the caller does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from slurm_colloc.cli.sbatch_call import ask_slurm, find_command
from slurm_colloc.cli.tasks_listed import is_shared, write_rows
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.job_ids import is_own_number, parse_job_id
from slurm_colloc.model.member import Selection
from slurm_colloc.report.member_views import MemberView, PackView
from slurm_colloc.runtime.programs.member_commands import read_output
from slurm_colloc.session.session import Session, note
from slurm_colloc.session.standard_streams import has_reader
from slurm_colloc.slurm.marked_tables import parse_columns
from slurm_colloc.slurm.scontrol_records import CommandOptions, split_ids

_SCRIPT = "batch"
_SSTAT = CommandOptions(
    "aehij:no:pPvV",
    {
        "allsteps": "a", "helpformat": "e", "help": "h", "pidformat": "i", "jobs": "j",
        "noheader": "n", "noconvert": "noconvert", "format": "o", "fields": "o", "parsable": "p",
        "parsable2": "P", "usage": "usage", "verbose": "v", "version": "V",
    },
)  # fmt: skip
_SATTACH = CommandOptions(
    "hlQuvV",
    {
        "input-filter": "input-filter", "output-filter": "output-filter",
        "error-filter": "error-filter", "help": "h", "label": "l", "layout": "layout",
        "pty": "pty", "quiet": "Q", "usage": "u", "verbose": "v", "version": "V",
    },
    ("input-filter", "output-filter", "error-filter"),
)  # fmt: skip


def run_sstat(argv: Sequence[str]) -> int:
    """Do what `sstat ARGUMENTS` asks; the exit status.

    Raises:
        CollocError: A member has no step that runs.
        SlurmUnreachable: There is no sstat of Slurm's in PATH.
    """
    find_command("sstat")
    split = _SSTAT.split(argv)
    options = [] if split is None or split[1] else split[0]
    asked = [one for key, text, _ in options if key == "j" for one in split_ids(text or "")]
    steps = _find_steps(asked)
    if not steps:
        return ask_slurm("sstat", argv)
    words = [word for key, _, own in options if key not in ("j", "n") for word in own]
    ids = ",".join(steps.get(one, one) for one in asked)
    # The titles tell which column has the ids, and how wide it is.
    status, text = read_output(
        find_command("sstat"), ["sstat", *words, f"--jobs={ids}"], os.environ
    )
    shapes = [key for key, _, _ in options if key in ("p", "P")]
    names = {real: word if "." in word else f"{word}.{_SCRIPT}" for word, real in steps.items()}
    lines = text.removesuffix("\n").split("\n") if text else []
    has_header = not any(key == "n" for key, _, _ in options)
    write_rows(_rename(lines, names, is_table=not shapes, has_header=has_header))
    return status


def run_sattach(argv: Sequence[str]) -> int:
    """Do what `sattach ARGUMENTS` asks; the exit status.

    Raises:
        CollocError: A member has no step that runs.
        SlurmUnreachable: There is no sattach of Slurm's in PATH.
    """
    find_command("sattach")
    split = _SATTACH.split(argv)
    asked = [] if split is None else split[1][:1]
    steps = _find_steps(asked)
    if split is None or not steps:
        return ask_slurm("sattach", argv)
    words = [word for _, _, own in split[0] for word in own]
    return ask_slurm("sattach", [*words, *(steps.get(word, word) for word in split[1])])


def _find_steps(asked: Sequence[str]) -> dict[str, str]:
    """Slurm's steps, by the words that mean members of packs.

    Raises:
        CollocError: A member has none that runs.
    """
    found: dict[str, str] = {}
    if not asked:
        return found
    try:
        session = Session.open()
        session.tells_upkeep = has_reader()
        for word in asked:
            job, _, step = word.partition(".")
            for view, members in _find_members(session, job):
                if len(members) == 1 and (is_shared(view) or is_own_number(job)):
                    found[word] = _name_step(word, step, view, members[0])
    except UsageProblem:
        raise
    except (CollocError, OSError) as error:
        note(f"{error}; only Slurm is asked")
    return found


def _find_members(session: Session, word: str) -> list[tuple[PackView, list[MemberView]]]:
    """The members that an id means where that is none of Slurm's."""
    with contextlib.suppress(ValueError):
        named = parse_job_id(word)
        if named and (is_own_number(named[0]) or named[1] is not None):
            return session.survey([Selection(*named)])
    return []


def _name_step(word: str, step: str, view: PackView, member: MemberView) -> str:
    own = "" if member.record is None or member.is_final else member.record.step or ""
    if step not in ("", _SCRIPT):
        return f"{view.job_id}.{step}"
    if not is_shared(view):
        return f"{view.job_id}.{step}" if step else view.job_id
    if not own:
        raise UsageProblem(
            f"{word} is {member.state.value}: it has no step that runs",
            hint=f"csub why {member.member}",
        )
    return own


def _rename(
    lines: Sequence[str], names: Mapping[str, str], *, is_table: bool, has_header: bool
) -> list[str]:
    """The rows of sstat with members' names in the column of ids."""
    told = list(lines if has_header else lines[2 if is_table else 1 :])
    head = lines[0] if lines else ""
    titles = head.split() if is_table else head.split("|")
    columns = parse_columns("\n".join(lines[:2])) if is_table else []
    if "JobID" not in titles or (is_table and len(columns) != len(titles)):
        return told
    place = titles.index("JobID")
    for number, line in enumerate(told):
        if is_table:
            begin = sum(column.width + 1 for column in columns[:place])
            end = begin + columns[place].width
            cell = line[begin:end]
            if new := names.get(cell.strip()):
                told[number] = line[:begin] + columns[place].render(new) + line[end:]
        else:
            cells = line.split("|")
            cells[place] = names.get(cells[place], cells[place])
            told[number] = "|".join(cells)
    return told
