"""What a shell script does, step by step: commands and assignments, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_colloc.check.shell_words import Word


@dataclass(frozen=True)
class Redirect:
    """`> file` and its like."""

    operator: str
    target: Word


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

    words: tuple[Word, ...]
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
    value: Word
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
