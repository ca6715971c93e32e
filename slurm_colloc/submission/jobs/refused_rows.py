"""Which cells of a table sbatch has refused: its own words name no file and no line; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_colloc.slurm.options import Concern, Given
from slurm_colloc.submission.jobs.table_rows import TableJob

_PASSED = (Concern.MEMBER, Concern.GROUP, Concern.SHAPE, Concern.ALONE)
_STEM = 6
_CALLED = {
    "constraint": "feature specification", "exclude": "node name", "nodelist": "node name",
}  # fmt: skip
"""Options that Slurm's errors (slurm_errno.c) call something else."""


def locate_refusal(jobs: Sequence[TableJob], argv: Sequence[str], told: str) -> str:
    """The place of the cells that sbatch's words are about: `jobs.csv:3, column nice`.

    Args:
        jobs: The rows of the call.
        argv: The call of sbatch that was refused; it is of the rows that ask for the same.
        told: What sbatch said.

    Returns:
        The first of the rows with the column that sbatch names, or else with all those that it was
        given; empty where no cell of a row has reached it.
    """
    passed = set(argv)
    best: list[Given] = []
    place = ""
    for job in jobs:
        given = [
            cell
            for cell in job.options.select(*_PASSED)
            if not cell.option.own and (cell.origin or "").startswith(f"{job.place}, column ")
        ]
        # Of what concerns one member, some is asked for in the pack's own numbers.
        asked = [cell for cell in given if _write(cell) in passed]
        of_group = [cell for cell in given if cell.option.concern is Concern.GROUP]
        # The row with most of them: that of another call lacks what this one has.
        if len(asked) > len(best) and all(cell in asked for cell in of_group):
            best, place = asked, job.place
    if not best:
        return ""
    found = ([cell for cell in best if is_it(cell, told)] for is_it in _SIGNS)
    columns = [cell.option.name for cell in next(filter(None, found), best)]
    return f"{place}, {'column' if len(columns) == 1 else 'columns'} {' and '.join(columns)}"


def _write(cell: Given) -> str:
    """As it stands on sbatch's command line."""
    return f"--{cell.option.name}={cell.value}" if cell.value else f"--{cell.option.name}"


def _is_named(cell: Given, told: str) -> bool:
    return re.search(rf"--{re.escape(cell.option.name)}(?![\w-])", told) is not None


def _is_quoted(cell: Given, told: str) -> bool:
    value = re.escape(cell.value or "")
    return bool(value) and re.search(rf"(?<![\w-]){value}(?![\w-])", told) is not None


def _is_meant(cell: Given, told: str) -> bool:
    name = cell.option.name
    return _CALLED.get(name, name.partition("-")[0][:_STEM]) in told.lower()


_SIGNS = (_is_named, _is_quoted, _is_meant)
"""What says that sbatch speaks of an option, the surest first."""
