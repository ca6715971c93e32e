"""csub under the name scancel: tasks of a pack are its members, all else is for Slurm's scancel.

A program that has an array from csub under the name sbatch ends a task by `scancel 4711_3`. Slurm
knows no such task of a pack and refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_colloc.cli.change.cancel_members import cancel
from slurm_colloc.cli.handed_to_slurm import ask_slurm
from slurm_colloc.cli.session import Session
from slurm_colloc.errors import CollocError, NotFound
from slurm_colloc.model.member import Selection

_SILENT = frozenset({"-Q", "--quiet", "-v", "--verbose"})
"""With any other option it is Slurm that is asked for all of it."""

_TASKS = re.compile(r"\d+_(?:\d+|\[[\d,:%-]+\])", re.ASCII)
_COMMA = re.compile(r",(?![^\[]*\])")


def run_scancel(argv: Sequence[str]) -> int:
    """Do what `scancel ARGUMENTS` asks; the exit status.

    Raises:
        CollocError: A member could not be ended.
        SlurmUnreachable: There is no scancel of Slurm's in PATH, and it is needed.
    """
    options = [word for word in argv if word.startswith("-")]
    words = [one for word in argv if word not in options for one in _COMMA.split(word)]
    tasks = [word for word in words if _TASKS.fullmatch(word)]
    if not tasks or not _SILENT.issuperset(options):
        return ask_slurm("scancel", argv)
    session = Session.open_own()
    own = [word for word in tasks if _is_known(session, word)]
    rest = [word for word in words if word not in own]
    status = ask_slurm("scancel", [*options, *rest]) if rest else 0
    if not own:
        return status
    return cancel(session, [Selection.parse(word) for word in own], yes=True) or status


def _is_known(session: Session, task: str) -> bool:
    """Whether it is a member of a submission of csub's."""
    try:
        return bool(session.survey([Selection.parse(task)]))
    except NotFound:
        return False
    except CollocError:
        # What is wrong with it is told when it is cancelled.
        return True
