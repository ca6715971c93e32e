"""Words of a shell script as far as they can be known without running it; pure.

A word is a sequence of parts: text, variables, command substitutions and sums. Variables that the
script has set before stand for what they were set to.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

JOB_IDS = frozenset({"SLURM_JOB_ID", "SLURM_JOBID"})
"""What all members of a pack see alike."""

OWN_OF_A_MEMBER = frozenset(
    {
        "BASHPID",
        "EPOCHREALTIME",
        "MASTER_PORT",
        "OPTARG",
        "PET_MASTER_PORT",
        "PPID",
        "RANDOM",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_COLLOC_MEMBER",
        "SLURM_COLLOC_NAME",
        "SLURM_TASK_PID",
        "SRANDOM",
        "TMPDIR",
        "$",
        "!",
        "@",
        "*",
    }
)
"""What differs between members, or may differ because they are called with other arguments."""

TCP_ADDRESS = re.compile(r"^tcp://[^/]*:0*[1-9]\d*$")
"""Where torch.distributed meets: `tcp://127.0.0.1:23456`."""

_RANDOM_COMMAND = re.compile(
    r"\b(mktemp|uuidgen|shuf|openssl\s+rand|/dev/u?random|getrandbits|rand(int|om|range)|uuid4)\b"
)
_FINER_THAN_MINUTES = re.compile(r"%[-_0^#]*(\d*N)")
_CLOCK = re.compile(r"%[-_0^#]*[sSTMrRcX]")
_HOLE = "\0"


class Kind(enum.Enum):
    """What a part of a word is."""

    TEXT = "text"
    VARIABLE = "variable"
    COMMAND = "command"
    SUM = "sum"
    CLOCK = "clock"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class WordPart:
    """A piece of a word.

    Attributes:
        kind: What it is.
        text: The text, the variable's name, or the source of a substitution.
        line: Where it was written, not where a variable was used that holds it.
        inner: Parts that its value is made of.
    """

    kind: Kind
    text: str
    line: int
    inner: tuple[WordPart, ...] = ()


@dataclass(frozen=True)
class ShellWord:
    """A word of a command.

    Attributes:
        parts: What it is made of, variables replaced by what they hold.
        source: As it was written.
        line: Its line.
    """

    parts: tuple[WordPart, ...]
    source: str
    line: int

    @property
    def literal(self) -> str | None:
        """Its text, None where something in it is not known."""
        if all(part.kind is Kind.TEXT for part in self.parts):
            return "".join(part.text for part in self.parts)
        return None

    @property
    def pattern(self) -> str:
        """Its text with a NUL for everything that is not known."""
        return "".join(part.text if part.kind is Kind.TEXT else _HOLE for part in self.parts)

    @property
    def shown(self) -> str:
        """What it stands for, for people: `runs/$SLURM_JOB_ID`."""
        return "".join(map(render_part, self.parts))

    @property
    def holes(self) -> tuple[WordPart, ...]:
        """The parts that are not text."""
        return tuple(part for part in self.parts if part.kind is not Kind.TEXT)


def render_part(part: WordPart) -> str:
    """A part as one writes it in a shell."""
    if part.kind is Kind.VARIABLE:
        return f"${part.text}" if re.fullmatch(r"\w+|\W", part.text) else f"${{{part.text}}}"
    return part.text


def walk_parts(parts: Iterable[WordPart]) -> Iterator[WordPart]:
    """All parts, those that others are made of included."""
    for part in parts:
        yield part
        yield from walk_parts(part.inner)


def tells_members_apart(parts: Iterable[WordPart]) -> bool:
    """A word with these parts differs between members, or may."""
    return any(_differs(part) for part in walk_parts(parts))


def _differs(part: WordPart) -> bool:
    if part.kind is Kind.VARIABLE:
        return part.text in OWN_OF_A_MEMBER or part.text.isdigit()
    if part.kind in (Kind.COMMAND, Kind.SUM):
        return bool(_RANDOM_COMMAND.search(part.text) or _FINER_THAN_MINUTES.search(part.text))
    return False


def find_job_id(parts: Iterable[WordPart]) -> WordPart | None:
    """The job id that stands in a word."""
    for part in walk_parts(parts):
        if part.kind is Kind.VARIABLE and part.text in JOB_IDS:
            return part
    return None


def find_clock(parts: Iterable[WordPart]) -> WordPart | None:
    """The time of day that stands in a word."""
    for part in walk_parts(parts):
        if part.kind is Kind.CLOCK or (part.kind is Kind.COMMAND and is_clock(part.text)):
            return part
    return None


def is_clock(source: str) -> bool:
    """A command substitution that gives the time to the minute or the second."""
    words = source.strip("$`()").split(maxsplit=1)
    if not words or words[0].rpartition("/")[2] != "date" or "|" in source:
        return False
    rest = words[1] if len(words) > 1 else ""
    if re.search(r"(^|\s)(-d|-r|--date|--reference)", rest):
        return False
    return "+" not in rest or bool(_CLOCK.search(rest))


def classify_port(parts: tuple[WordPart, ...]) -> str:
    """`fixed`, `job id` (computed from it), or '' where members have different ports."""
    if tells_members_apart(parts):
        return ""
    holes = [part for part in walk_parts(parts) if part.kind is Kind.VARIABLE]
    if not holes:
        text = "".join(part.text for part in parts if part.kind in (Kind.TEXT, Kind.SUM))
        if all(part.kind is Kind.TEXT for part in parts):
            return "fixed" if text.isdigit() and int(text) else ""
        is_sum = all(part.kind in (Kind.TEXT, Kind.SUM) for part in parts)
        return "fixed" if is_sum and any(character.isdigit() for character in text) else ""
    return "job id" if all(part.text in JOB_IDS for part in holes) else ""


@dataclass(frozen=True)
class Redirect:
    """`> file` and its like."""

    operator: str
    target: ShellWord


@dataclass(frozen=True)
class Document:
    """A here-document, or a script in one word (`python -c '...'`).

    Attributes:
        text: Its text; None where the shell would change it.
        line: Its first line.
    """

    text: str | None
    line: int


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        words: The command and its arguments.
        redirects: Its redirections.
        document: Its here-document.
        before: The command whose output it reads.
        line: Where it begins.
    """

    words: tuple[ShellWord, ...]
    line: int
    redirects: tuple[Redirect, ...] = ()
    document: Document | None = None
    before: Command | None = None


@dataclass(frozen=True)
class Assignment:
    """`NAME=value`.

    Attributes:
        name: The variable.
        value: Its value.
        is_exported: Programs that are started see it.
    """

    name: str
    value: ShellWord
    is_exported: bool

    @property
    def line(self) -> int:
        """Its line."""
        return self.value.line


@dataclass
class ShellScript:
    """What a script does.

    Attributes:
        steps: Commands and assignments in the order of the text.
        not_understood: Lines that are no shell, as far as the grammar knows.
    """

    steps: list[Command | Assignment] = field(default_factory=list)
    not_understood: list[int] = field(default_factory=list)
