"""sacct asked with marks between its fields, so that single ones can be replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.slurm.tables.command_words import CommandOptions

_MARK = "\x1f"
HEAD = ("Cluster", "JobIDRaw", "JobID")
"""What stands before the fields of each row."""

_DEFAULT = "jobid,jobname,partition,account,alloccpus,state,exitcode"
_BRIEF = "jobid,state,exitcode"
"""sacct(1), --format and --brief; the same from 22.05 to 26.05."""

_OPTIONS = CommandOptions(
    "aA:bBcC:DeE:f:F:g:hi:I:j:k:K:lLM:nN:o:pPq:r:R:s:S:Ttu:UvVW:x:X",
    {
        "accounts": "A", "allclusters": "L", "allocations": "X", "allusers": "a", "array": "array",
        "associations": "x", "batch-script": "B", "brief": "b", "cluster": "M", "clusters": "M",
        "completion": "c", "constraints": "C", "delimiter": "delimiter", "duplicates": "D",
        "endtime": "E", "env-vars": "env-vars", "expand-patterns": "expand-patterns",
        "federation": "federation", "fields": "o", "file": "f", "flags": "F", "format": "o",
        "gid": "g", "group": "g", "help": "h", "help-fields": "e", "helpformat": "e", "jobs": "j",
        "json": "json", "local": "local", "long": "l", "name": "name", "ncpus": "I", "nnodes": "i",
        "noconvert": "noconvert", "nodelist": "N", "noheader": "n", "parsable": "p",
        "parsable2": "P", "partition": "r", "qos": "q", "reason": "R", "starttime": "S",
        "state": "s", "timelimit-max": "K", "timelimit-min": "k", "truncate": "T", "uid": "u",
        "units": "units", "usage": "U", "use-local-uid": "use-local-uid", "user": "u",
        "verbose": "v", "version": "V", "wckeys": "W", "whole-hetjob": "whole-hetjob",
        "yaml": "yaml",
    },
    with_value=("delimiter", "name", "units"),
)  # fmt: skip
_LEFT_ALONE = frozenset(
    {"B", "c", "e", "env-vars", "f", "federation", "h", "json", "l", "U", "V", "yaml"}
)
_SHAPE = frozenset({"b", "delimiter", "n", "o", "p", "P"})


@dataclass(frozen=True)
class AccountRow:
    """One row: of a job or a step.

    Attributes:
        cluster: Its cluster.
        raw_id: The number that the job has by itself, and the step.
        job_id: `4711_2`, of a step `4711_2.batch`.
        cells: The fields.
    """

    cluster: str
    raw_id: str
    job_id: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class AccountColumn:
    """A column of a table.

    Attributes:
        width: How wide it is.
        is_left: Its cells stand at the left.
    """

    width: int
    is_left: bool

    def render(self, cell: str) -> str:
        """A cell as wide as the column; what is longer is cut, and ends with a plus sign."""
        width = self.width
        shown = cell if len(cell) <= width else f"{cell[: width - 1]}+"
        return shown.ljust(width) if self.is_left else shown.rjust(width)


class AccountQuestion:
    """What sacct is asked.

    Args:
        options: As (letter or name, value, the words as they stood).
        names: The fields, as they were asked for.
    """

    def __init__(
        self, options: Sequence[tuple[str, str | None, list[str]]], names: Sequence[str]
    ) -> None:
        self.options = options
        self._names = names
        kinds = [key for key, _, _ in options]
        self.has_header = "n" not in kinds
        self.is_table = "p" not in kinds and "P" not in kinds
        # Of both, the later one counts.
        shapes = [kind for kind in kinds if kind in ("p", "P")]
        self._ends_with_mark = shapes[-1:] == ["p"]

    def value(self, key: str) -> str | None:
        """The value of an option, the last one where it is there twice; None where it is not."""
        return next((value for name, value, _ in reversed(self.options) if name == key), None)

    def values(self, key: str) -> str | None:
        """The values of an option of which all count, with commas between; None for none."""
        found = [value for name, value, _ in self.options if name == key and value is not None]
        return ",".join(found) if found else None

    def build_words(
        self, translate: Callable[[str], str], left_out: Sequence[str] = ()
    ) -> list[str]:
        """The arguments with which sacct marks its fields.

        Args:
            translate: Makes Slurm's ids of a list of jobs' ids.
            left_out: Options that are not asked for.
        """
        names = [name.partition("%")[0] for name in self._names]
        form = ",".join([*HEAD, *names])
        return [
            *self._list_words(translate, {*_SHAPE, *left_out}),
            "--parsable",
            f"--delimiter={_MARK}",
            f"--format={form}",
        ]

    def build_header_words(self) -> list[str]:
        """The arguments for the two lines of a table's header, which tell how wide it is."""
        words = self._list_words(lambda ids: ids, {"n"})
        return [*words, "--jobs=0"]

    def _list_words(
        self, translate: Callable[[str], str], left_out: frozenset[str] | set[str]
    ) -> list[str]:
        words = []
        for key, value, shown in self.options:
            if key == "j" and value is not None:
                words.append(f"--jobs={translate(value)}")
            elif key not in left_out:
                words += shown
        return words

    def write_row(self, cells: Sequence[str], columns: Sequence[AccountColumn]) -> str:
        """A line as sacct writes it (`print_fields_str`).

        Args:
            cells: The fields.
            columns: Those of a table; none where it is none.
        """
        if not self.is_table:
            mark = self.value("delimiter") or "|"
            return mark.join(cells) + (mark if self._ends_with_mark else "")
        return "".join(
            f"{column.render(cell)} " for cell, column in zip(cells, columns, strict=True)
        )


def build_account_question(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> AccountQuestion | None:
    """The question that asks for the same, with marks.

    Args:
        arguments: sacct's arguments.
        environment: Its environment.

    Returns:
        None where the question is none that can be followed.
    """
    split = _OPTIONS.split(arguments)
    if split is None or split[1]:
        return None
    options = split[0]
    if _LEFT_ALONE.intersection(key for key, _, _ in options):
        return None
    given = [value for key, value, _ in options if key == "o" and value is not None]
    if any(key == "b" for key, _, _ in options):
        given = [*given, _BRIEF]
    names = [name for text in given for name in text.split(",") if name]
    usual = environment.get("SACCT_FORMAT") or _DEFAULT
    return AccountQuestion(options, names or [name for name in usual.split(",") if name])


def parse_rows(text: str) -> tuple[tuple[str, ...], list[AccountRow]] | None:
    """Read what sacct has answered.

    Returns:
        The titles of the fields, and the rows; None where the marks are not as
        they were asked for.
    """
    first, *lines = text.removesuffix("\n").split("\n")
    *titles, rest = first.split(_MARK)
    if rest or len(titles) <= len(HEAD):
        return None
    rows = []
    open_row = ""
    for line in lines:
        open_row += line
        *cells, rest = open_row.split(_MARK)
        if len(cells) < len(titles):
            # A name may have line breaks.
            open_row += "\n"
            continue
        if rest or len(cells) > len(titles):
            return None
        cluster, raw_id, job_id, *own = cells
        rows.append(AccountRow(cluster, raw_id, job_id, tuple(own)))
        open_row = ""
    return None if open_row else (tuple(titles[len(HEAD) :]), rows)


def parse_columns(header: str) -> list[AccountColumn]:
    """The columns of a table, by its titles and the dashes below them."""
    titles, _, dashes = header.partition("\n")
    columns, begin = [], 0
    for dash in dashes.split("\n")[0].split():
        title = titles[begin : begin + len(dash)]
        columns.append(AccountColumn(len(dash), is_left=title.endswith(" ")))
        begin += len(dash) + 1
    return columns
