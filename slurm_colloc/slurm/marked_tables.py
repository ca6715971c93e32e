"""squeue asked with marks between its fields, so that single ones can be replaced.

Also: sacct asked with marks between its fields, so that single ones can be replaced.

squeue is asked for the same fields with a mark behind each, and for more fields of the caller's
before each row. Loads nothing, for the sake of the shims that start often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.slurm.scontrol_records import CommandOptions

_HEAD, _MARK = "\x1e", "\x1f"
_QUEUE_DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_DEFAULT_LONG = (
    "jobarrayid:.18 ,partition:.9 ,name:.8 ,username:.8 ,state:.8 ,timeused:.10 ,timelimit:.9 ,"
    "numnodes:.6 ,reasonlist:"
)
"""squeue(1), --format and --long; the same from 22.05 to 26.05. --long excludes --format, and goes
before SQUEUE_FORMAT."""

_DEFAULT_OF_STEPS = "%.15i %.8j %.9P %.8u %.9M %N"

_WIDTH = 20
"""Of a field of --Format that names none."""

QUEUE_OPTIONS = CommandOptions(
    "A:ahi:j::lL:n:M:O:o:p:Pq:R:rs::S:t:u:U:vVw:",
    {
        "account": "A", "accounts": "A", "all": "a", "array": "r", "cluster": "M",
        "clusters": "M", "Format": "O", "format": "o", "help": "help", "hide": "hide",
        "iterate": "i", "job": "j", "jobs": "j", "json": "json", "licenses": "L", "local": "local",
        "long": "l", "me": "me", "name": "n", "names": "n", "nodelist": "w", "nodes": "w",
        "noheader": "h", "partition": "p", "partitions": "p", "priority": "P", "qos": "q",
        "reservation": "R", "sort": "S", "start": "start", "state": "t", "states": "t",
        "step": "s", "steps": "s", "usage": "usage", "user": "u", "users": "u", "verbose": "v",
        "version": "V", "yaml": "yaml", "array-unique": "array-unique", "noconvert": "noconvert",
        "federation": "federation", "sibling": "sibling", "expand-patterns": "expand-patterns",
        "only-job-state": "only-job-state",
    },
)  # fmt: skip
_QUEUE_LEFT_ALONE = frozenset(
    {"i", "s", "M", "V", "json", "yaml", "start", "help", "usage", "federation", "sibling",
     "only-job-state"}
)  # fmt: skip

_LETTERS = {
    "A": "jobid", "l": "timelimit", "L": "timeleft", "M": "timeused", "e": "endtime",
    "S": "starttime", "j": "name", "C": "numcpus", "o": "command", "Z": "workdir",
    "i": "jobarrayid", "m": "minmemory", "F": "arrayjobid", "K": "arraytaskid",
    "t": "statecompact", "T": "state", "r": "reason", "R": "reasonlist", "N": "nodelist",
    "D": "numnodes", "c": "mincpus", "k": "comment",
}  # fmt: skip
_LETTERS_OF_STEPS = {"i": "stepid", "j": "stepname"}


class QueueField:
    """One field of a row.

    Args:
        name: Its name as in --Format, for those that can be replaced; else empty.
        width: Its width; 0 for as long as it is.
        is_right: It stands at the right.
        suffix: What follows it.
    """

    def __init__(self, name: str, width: int, is_right: bool, suffix: str) -> None:
        self.name = name
        self._width = width
        self._is_right = is_right
        self._suffix = suffix

    def render(self, value: str) -> str:
        """The field with this value (`_print_str` in squeue's print.c)."""
        if self._width:
            width = self._width
            value = (value.rjust(width) if self._is_right else value.ljust(width))[:width]
        return value + self._suffix


class QueueQuestion:
    """What squeue is asked.

    Args:
        options: As (letter or name, value, the words as they stood), without the format.
        operands: All other words.
        format_words: The format with marks.
        fields: The fields of a row.
    """

    def __init__(
        self,
        options: Sequence[tuple[str, str | None, list[str]]],
        operands: Sequence[str],
        format_words: Sequence[str],
        fields: Sequence[QueueField],
    ) -> None:
        self.options = options
        self.operands = operands
        self.fields = fields
        self._format_words = format_words

    def value(self, key: str) -> str | None:
        """The value of an option, the last one where it is there twice; None where it is not."""
        return next((value for name, value, _ in reversed(self.options) if name == key), None)

    def build_words(
        self,
        translate: Callable[[str], str],
        left_out: Sequence[str] = (),
        more: Sequence[str] = (),
    ) -> list[str]:
        """The arguments.

        Args:
            translate: Makes Slurm's ids of a list of jobs' ids.
            left_out: Options that are not asked for.
            more: Options that are, too.
        """
        words = [*more]
        for key, value, shown in self.options:
            if key in ("j", "s") and value is not None:
                words.append(f"--{'jobs' if key == 'j' else 'steps'}={translate(value)}")
            elif key not in left_out:
                words += shown
        operands = [translate(word) for word in self.operands]
        return [*words, *self._format_words, *(["--", *operands] if operands else [])]


class QueueRow:
    """One line that squeue has answered.

    Args:
        head: The caller's own fields; none where it is a line without marks.
        prefix: What stands before the first field.
        cells: The fields as squeue wrote them; the whole line where it has no marks.
    """

    def __init__(self, head: Sequence[str], prefix: str, cells: Sequence[str]) -> None:
        self.head = head
        self.prefix = prefix
        self.cells = cells

    def text(self) -> str:
        """The line without marks."""
        return self.prefix + "".join(self.cells)

    def replace(self, fields: Sequence[QueueField], values: Mapping[str, str | None]) -> str:
        """The line without marks, with other values of some fields; None leaves a cell as it is."""
        text = self.prefix
        for cell, field in zip(self.cells, fields, strict=True):
            value = values.get(field.name)
            text += cell if value is None else field.render(value)
        return text


def build_queue_question(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    head: Mapping[str, str],
    *,
    of_steps: bool = False,
) -> QueueQuestion | None:
    """The question that asks for the same, with marks.

    Args:
        arguments: squeue's arguments.
        environment: Its environment.
        head: The fields that come before each row: letters of --format, and names of --Format.
        of_steps: What is asked for are steps (--steps).

    Returns:
        None where the question is none that can be followed.
    """
    split = QUEUE_OPTIONS.split(arguments)
    if split is None:
        return None
    options, operands = split
    kinds = [key for key, _, _ in options]
    left_alone = _QUEUE_LEFT_ALONE - {"s"} | {"l"} if of_steps else _QUEUE_LEFT_ALONE
    if left_alone.intersection(kinds) or ("o" in kinds and "O" in kinds):
        return None
    formats = {key: value or "" for key, value, _ in options if key in ("o", "O")}
    if "l" in kinds:
        if "o" in kinds:
            return None
        formats = formats or {"O": _DEFAULT_LONG}
    elif not formats:
        formats = {
            key: environment[name]
            for key, name in (("o", "SQUEUE_FORMAT"), ("O", "SQUEUE_FORMAT2"))
            if name in environment
        } or {"o": _DEFAULT_OF_STEPS if of_steps else _QUEUE_DEFAULT}
    if len(formats) > 1:
        return None
    kind, text = next(iter(formats.items()))
    letters = _LETTERS_OF_STEPS if of_steps else _LETTERS
    marked = _mark_letters(text, head, letters) if kind == "o" else _mark_names(text, head)
    if marked is None:
        return None
    kept = [option for option in options if option[0] not in ("o", "O")]
    return QueueQuestion(kept, operands, [f"-{kind}", marked[0]], marked[1])


def _mark_letters(
    text: str, head: Mapping[str, str], letters: Mapping[str, str]
) -> tuple[str, list[QueueField]] | None:
    """`--format` with marks: `%[[.]width]letter[suffix]`, one after the other."""
    prefix, *parts = text.split("%")
    fields = []
    marked = f"{_MARK.join(f'%{letter}' for letter in head)}{_HEAD}{prefix}{_MARK}"
    for part in parts:
        spec = part.lstrip(".0123456789")
        if not spec:
            return None
        size = part[: len(part) - len(spec)]
        suffix = spec[1:]
        width = size.lstrip(".")
        if width and not width.isdigit():
            return None
        name = letters.get(spec[0], "")
        fields.append(QueueField(name, int(width or 0), size.startswith("."), suffix))
        marked += f"%{size}{spec[0]}{suffix}{_MARK}"
    return (marked, fields) if fields else None


def _mark_names(text: str, head: Mapping[str, str]) -> tuple[str, list[QueueField]] | None:
    """`--Format` with marks: `name[:[.][width][suffix]]`, separated by commas."""
    fields = []
    *first, last = head.values()
    marked = [*(f"{name}:{_MARK}" for name in first), f"{last}:{_HEAD}{_MARK}"]
    for part in text.split(","):
        name, colon, rest = part.partition(":")
        spec = rest if colon else str(_WIDTH)
        plain = spec.removeprefix(".")
        suffix = plain.lstrip("0123456789")
        width = plain[: len(plain) - len(suffix)]
        fields.append(QueueField(name.lower(), int(width or 0), spec.startswith("."), suffix))
        marked.append(f"{name}:{spec}{_MARK}")
    return ",".join(marked), fields


def split_rows(text: str, fields: Sequence[QueueField]) -> list[QueueRow] | None:
    """The rows that squeue has answered; None where the marks are not as they were asked."""
    rows = []
    lines = iter(text.split("\n"))
    for line in lines:
        head, mark, row = line.partition(_HEAD)
        if not mark:
            rows.append(QueueRow((), "", (line,)))
            continue
        while row.count(_MARK) <= len(fields):
            # A name may have line breaks.
            more = next(lines, None)
            if more is None or _HEAD in more:
                return None
            row += f"\n{more}"
        prefix, *cells = row.split(_MARK)
        # A name with a mark in it would shift the rest.
        if len(cells) != len(fields) + 1 or cells.pop():
            return None
        rows.append(QueueRow(head.split(_MARK), prefix, cells))
    return rows


# ---- sacct asked with marks between its fields, so that single ones can be replaced --------------

_SEPARATOR = "\x1f"
HEAD = ("Cluster", "JobIDRaw", "JobID")
"""What stands before the fields of each row."""

_ACCOUNT_DEFAULT = "jobid,jobname,partition,account,alloccpus,state,exitcode"
_BRIEF = "jobid,state,exitcode"
"""sacct(1), --format and --brief; the same from 22.05 to 26.05."""

_ACCOUNT_OPTIONS = CommandOptions(
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
_ACCOUNT_LEFT_ALONE = frozenset(
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
            f"--delimiter={_SEPARATOR}",
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
    split = _ACCOUNT_OPTIONS.split(arguments)
    if split is None or split[1]:
        return None
    options = split[0]
    if _ACCOUNT_LEFT_ALONE.intersection(key for key, _, _ in options):
        return None
    given = [value for key, value, _ in options if key == "o" and value is not None]
    if any(key == "b" for key, _, _ in options):
        given = [*given, _BRIEF]
    names = [name for text in given for name in text.split(",") if name]
    usual = environment.get("SACCT_FORMAT") or _ACCOUNT_DEFAULT
    return AccountQuestion(options, names or [name for name in usual.split(",") if name])


def parse_rows(text: str) -> tuple[tuple[str, ...], list[AccountRow]] | None:
    """Read what sacct has answered.

    Returns:
        The titles of the fields, and the rows; None where the marks are not as
        they were asked for.
    """
    first, *lines = text.removesuffix("\n").split("\n")
    *titles, rest = first.split(_SEPARATOR)
    if rest or len(titles) <= len(HEAD):
        return None
    rows = []
    open_row = ""
    for line in lines:
        open_row += line
        *cells, rest = open_row.split(_SEPARATOR)
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
