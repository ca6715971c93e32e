"""csub under the name scancel: tasks of a pack are its members, all else is for Slurm's scancel.

A program that has an array from csub under the name sbatch ends a task by `scancel 4711_3`. Slurm
knows no such task of a pack and refuses it. Of a submission that became several Slurm jobs, or of
which some run in the job of another one, it would end a part by `scancel 4711`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_colloc.cli.change.cancel_members import cancel
from slurm_colloc.cli.handed_to_slurm import ask_slurm
from slurm_colloc.cli.session import Session, note
from slurm_colloc.errors import CollocError, NotFound
from slurm_colloc.model.member import Selection
from slurm_colloc.store.pack.pack_directory import read_slurm_job_id
from slurm_colloc.store.pack_reading import StateReader

_SILENT = frozenset({"-Q", "--quiet", "-v", "--verbose"})
"""With any other option it is Slurm that is asked for all of it."""

_TASKS = re.compile(r"\d+_(?:\d+|\[[\d,:%-]+\])", re.ASCII)
_JOB = re.compile(r"\d+", re.ASCII)
_COMMA = re.compile(r",(?![^\[]*\])")


def run_scancel(argv: Sequence[str]) -> int:
    """Do what `scancel ARGUMENTS` asks; the exit status.

    Raises:
        CollocError: A member could not be ended.
        SlurmUnreachable: There is no scancel of Slurm's in PATH, and it is needed.
    """
    options = [word for word in argv if word.startswith("-")]
    words = [one for word in argv if word not in options for one in _COMMA.split(word)]
    ids = [word for word in words if _TASKS.fullmatch(word) or _JOB.fullmatch(word)]
    if not ids or not _SILENT.issuperset(options):
        return ask_slurm("scancel", argv)
    try:
        session = Session.open_own()
    except (CollocError, OSError) as error:
        note(f"{error}; only Slurm is asked")
        return ask_slurm("scancel", argv)
    own = [word for word in ids if _is_own(session, word)]
    rest = [word for word in words if word not in own]
    status = ask_slurm("scancel", [*options, *rest]) if rest else 0
    if not own:
        return status
    return cancel(session, [Selection.parse(word) for word in own], yes=True) or status


def _is_own(session: Session, name: str) -> bool:
    """Whether Slurm would not end all that an id means: a member, or a spread submission."""
    if _JOB.fullmatch(name):
        return _is_spread(session.state, name)
    return _is_known(session, name)


def _is_spread(state: StateReader, job: str) -> bool:
    """Whether members of a submission may be in other Slurm jobs than the one of its id."""
    try:
        found = [read_slurm_job_id(state.pack_path(name)) for name in state.find_packs(job)]
    except (CollocError, OSError):
        return False
    return any(name and name.partition("_")[0] != job for name in found)


def _is_known(session: Session, task: str) -> bool:
    """Whether it is a member of a submission of csub's."""
    try:
        return bool(session.survey([Selection.parse(task)]))
    except NotFound:
        return False
    except CollocError:
        # What is wrong with it is told when it is cancelled.
        return True
