"""Reads a shell script into its commands, in the order in which they are written; runs nothing.

Also: words of a shell script as far as they can be known without running it; the words of a shell
script, with what is known of variables and arguments put in.

tree-sitter does the grammar (docs/decisions/0013-tree-sitter-for-check.md). It goes on behind what
it does not understand, and those lines are told. Everything here is pure.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from slurm_colloc.check.shell_branches import (
    Branch,
    Joint,
    divide,
    find_end,
    find_joint,
    is_told_chain,
    text_of,
)
from slurm_colloc.model.late_definitions import dataclass, field, late_pattern, replace

if TYPE_CHECKING:
    from tree_sitter import Node


# ---- Words of a shell script as far as they can be known without running it; pure ----------------
#
# A word is a sequence of parts: text, variables, command substitutions and sums. Variables that the
# script has set before stand for what they were set to.

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

TCP_ADDRESS = late_pattern(r"^tcp://[^/]*:0*[1-9]\d*$")
"""Where torch.distributed meets: `tcp://127.0.0.1:23456`."""

_RANDOM_COMMAND = late_pattern(
    r"\b(mktemp|uuidgen|shuf|openssl\s+rand|/dev/u?random|getrandbits|rand(int|om|range)|uuid4)\b"
)
_FINER_THAN_MINUTES = late_pattern(r"%[-_0^#]*(\d*N)")
_CLOCK = late_pattern(r"%[-_0^#]*[sSTMrRcX]")
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
        return literal_of(self.parts)

    @property
    def head(self) -> str:
        """The text that it begins with; empty where its beginning is not known."""
        return self.parts[0].text if self.parts and self.parts[0].kind is Kind.TEXT else ""

    def divide(self) -> tuple[str, ShellWord] | None:
        """The name and the value of `NAME=value`; None for another word."""
        name, equals, rest = self.head.partition("=")
        if not equals:
            return None
        first = (WordPart(Kind.TEXT, rest, self.parts[0].line),) if rest else ()
        return name, ShellWord((*first, *self.parts[1:]), self.source, self.line)

    @property
    def pattern(self) -> str:
        """Its text with a NUL for everything that is not known."""
        return pattern_of(self.parts)

    @property
    def shown(self) -> str:
        """What it stands for, for people: `runs/$SLURM_JOB_ID`."""
        return "".join(map(render_part, self.parts))

    @property
    def holes(self) -> tuple[WordPart, ...]:
        """The parts that are not text."""
        return tuple(part for part in self.parts if part.kind is not Kind.TEXT)


def literal_of(parts: Sequence[WordPart]) -> str | None:
    """The text of some parts, None where something in them is not known."""
    if any(part.kind is not Kind.TEXT for part in parts):
        return None
    return "".join(part.text for part in parts)


def pattern_of(parts: Iterable[WordPart]) -> str:
    """The text of some parts with a NUL for everything that is not known."""
    return "".join(part.text if part.kind is Kind.TEXT else _HOLE for part in parts)


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
    return find_variable(parts, JOB_IDS)


def find_variable(parts: Iterable[WordPart], names: Collection[str]) -> WordPart | None:
    """One of these variables that stands in a word."""
    for part in walk_parts(parts):
        if part.kind is Kind.VARIABLE and part.text in names:
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
    """`> file` and its like; `descriptor` is `9` in `9> file`."""

    operator: str
    target: ShellWord
    descriptor: str = ""


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
        branches: What depends on a test, the inner ones first.
        not_understood: Lines that are no shell, as far as the grammar knows.
    """

    steps: list[Command | Assignment] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    not_understood: list[int] = field(default_factory=list)


# ---- The words of a shell script, with what is known of variables and arguments put in -----------
#
# tree-sitter has done the grammar, see check.shell_reading. Everything here is pure.

_GIVEN_BY_CSUB = frozenset({"MASTER_PORT", "PET_MASTER_PORT", "TMPDIR", "OMP_NUM_THREADS"})
# Sites set it, or do not; csub does not.
_NOT_BY_SLURM = frozenset({"SLURM_TMPDIR"})
_WITH_DEFAULT = frozenset({":-", "-", ":=", "="})


class WordReader:
    """Knows what variables hold.

    Args:
        arguments: What the script is called with; without any, `$1` and its like stay unknown.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.values: dict[str, tuple[WordPart, ...]] = {}
        self.arguments = tuple(arguments)
        self.first_line = 1

    def line(self, node: Node) -> int:
        """The line of a node, in the file that is read."""
        return node.start_point[0] + self.first_line

    def words_of(self, node: Node) -> list[ShellWord]:
        """One word; several where the script's arguments are put in."""
        if text_of(node) in ('"$@"', "$@", "$*") and self.arguments:
            line = self.line(node)
            return [
                ShellWord((WordPart(Kind.TEXT, text, line),), text, line) for text in self.arguments
            ]
        return [self.word_of(node)]

    def word_of(self, node: Node) -> ShellWord:
        """A node as one word."""
        return ShellWord(self.parts_of(node), text_of(node), self.line(node))

    def parts_of(self, node: Node) -> tuple[WordPart, ...]:  # noqa: PLR0911 - a table
        """What a node is made of."""
        line = self.line(node)
        kind = node.type
        if kind in ("word", "number", "string_content", "heredoc_content", "variable_name"):
            return (WordPart(Kind.TEXT, _unescape(text_of(node)), line),)
        if kind == "raw_string":
            return (WordPart(Kind.TEXT, text_of(node)[1:-1], line),)
        if kind == "ansi_c_string":
            return (WordPart(Kind.TEXT, text_of(node)[2:-1], line),)
        if kind == "simple_expansion":
            return self.expand(text_of(node)[1:], line)
        if kind == "expansion":
            return self.expand_braces(node, line)
        if kind == "command_substitution":
            return (WordPart(Kind.COMMAND, text_of(node), line, self.inner_of(node)),)
        if kind == "arithmetic_expansion":
            return (WordPart(Kind.SUM, text_of(node), line, self.inner_of(node)),)
        if kind in ("command_name", "concatenation", "string", "translated_string"):
            return self.join(node)
        return (WordPart(Kind.UNKNOWN, text_of(node), line, self.inner_of(node)),)

    def join(self, node: Node) -> tuple[WordPart, ...]:
        """Children one after the other; the grammar leaves blanks in strings out."""
        parts: list[WordPart] = []
        source = node.text or b""
        position = node.start_byte + (1 if node.type == "string" else 0)
        for child in node.named_children:
            gap = source[position - node.start_byte : child.start_byte - node.start_byte]
            parts += _read_gap(gap, self.line(child))
            parts += self.parts_of(child)
            position = child.end_byte
        rest = source[position - node.start_byte :]
        if rest != b'"':
            parts += _read_gap(rest.removesuffix(b'"'), self.line(node))
        return tuple(parts)

    def inner_of(self, node: Node) -> tuple[WordPart, ...]:
        """What variables stand anywhere below a node; their values are not put in again."""
        parts: list[WordPart] = []
        for child in node.named_children:
            if child.type == "variable_name":
                parts += self.expand(text_of(child), self.line(child))
            elif child.type in ("simple_expansion", "expansion"):
                parts += self.parts_of(child)
            elif child.type != "raw_string":
                parts += self.inner_of(child)
        return tuple(part for part in parts if part.kind is not Kind.TEXT)

    def expand(self, name: str, line: int) -> tuple[WordPart, ...]:
        """What `$name` is made of."""
        if name.isdigit() and 0 < int(name) <= len(self.arguments):
            return (WordPart(Kind.TEXT, self.arguments[int(name) - 1], line),)
        return self.values.get(name, (WordPart(Kind.VARIABLE, name, line),))

    def expand_braces(self, node: Node, line: int) -> tuple[WordPart, ...]:
        """What `${...}` is made of."""
        names = [child for child in node.named_children if child.type == "variable_name"]
        marks = [text_of(child) for child in node.children if not child.is_named]
        if not names:
            # An array's element, or a special parameter.
            inner = self.inner_of(node)
            text = text_of(node)[2:-1]
            return (WordPart(Kind.VARIABLE, text, line, inner),)
        name = text_of(names[0])
        operators = [mark for mark in marks if mark not in ("${", "}")]
        if not operators:
            return self.expand(name, line)
        if operators[0] in _WITH_DEFAULT:
            if name in self.values:
                return self.values[name]
            is_given = name in _GIVEN_BY_CSUB or (
                name.startswith("SLURM_") and name not in _NOT_BY_SLURM
            )
            if is_given or name in ("USER", "HOME", "PWD"):
                return self.expand(name, line)
            parts: list[WordPart] = []
            for child in node.named_children:
                if child.start_byte > names[0].start_byte:
                    parts += self.parts_of(child)
            return tuple(parts)
        if operators[0] == "#" and marks[:2] == ["${", "#"]:
            return (WordPart(Kind.UNKNOWN, text_of(node), line),)
        # Cut or changed: what it is made of is known, its text is not.
        inner = self.expand(name, line)
        if all(part.kind is Kind.TEXT for part in inner):
            return (WordPart(Kind.UNKNOWN, text_of(node), line),)
        return (WordPart(Kind.UNKNOWN, text_of(node), line, inner),)


def _read_gap(gap: bytes, line: int) -> list[WordPart]:
    """What the grammar left out between two parts: blanks, or `$$` at the end of a word."""
    parts = []
    for position, text in enumerate(gap.decode("utf-8", "replace").split("$$")):
        if position:
            parts.append(WordPart(Kind.VARIABLE, "$", line))
        if text.strip('"$'):
            parts.append(WordPart(Kind.TEXT, text, line))
    return parts


def _unescape(text: str) -> str:
    """Backslashes and line continuations as the shell takes them away outside quotes."""
    if "\\" not in text:
        return text
    result, characters = [], iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            result.append("" if following == "\n" else following)
        else:
            result.append(character)
    return "".join(result)


# ----
# Reads a shell script into its commands, in the order in which they are written; runs nothing.

_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_DEEPEST = 5
_WITH_TEST = frozenset({"list", "if_statement", "while_statement", "for_statement"})


def parse_shell(text: str, arguments: Sequence[str] = ()) -> ShellScript:
    """Read a script.

    Args:
        text: The script.
        arguments: What it is called with; without any, `$1` and its like stay unknown.
    """
    reader = _Reader(arguments)
    reader.read(text, first_line=1, depth=0)
    return reader.script


class _Reader(WordReader):
    """Walks the syntax tree and remembers what variables hold."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(arguments)
        self.script = ShellScript()
        self.exported: set[str] = set()
        self.depth = 0
        self.loops = 0

    def read(self, text: str, *, first_line: int, depth: int) -> None:
        import tree_sitter
        import tree_sitter_bash

        before = (self.first_line, self.depth)
        self.first_line, self.depth = first_line, depth
        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
        self.visit(parser.parse(text.encode("utf-8", "replace")).root_node)
        self.first_line, self.depth = before

    def visit(self, node: Node) -> list[Command]:
        """Read a node; the commands directly in it, for pipes."""
        if node.is_error or node.is_missing:
            self.script.not_understood.append(self.line(node))
        if node.type == "command":
            return self.visit_command(node, (), None)
        if node.type == "redirected_statement":
            return self.visit_redirected(node)
        if node.type in ("variable_assignment", "declaration_command"):
            self.visit_assignments(node)
            return []
        if node.type == "pipeline":
            return self.visit_pipeline(node.named_children, None)
        if node.type in _WITH_TEST:
            return self.visit_branches(node)
        if node.type == "function_definition":
            return self.visit_function(node)
        found = []
        for child in node.named_children:
            found += self.visit(child)
        return found

    def visit_branches(self, node: Node) -> list[Command]:
        """Steps that depend on a test."""
        if node.type == "for_statement":
            name = node.child_by_field_name("variable")
            if name is not None:
                self.values.pop(text_of(name), None)
        tests, inside, other = divide(node)
        joint = find_joint(node)
        first = tests[0] if tests else node
        while joint is Joint.AND and is_told_chain(first):
            first = first.named_children[0]
        text = " ".join(map(text_of, tests)) if joint is Joint.FOR else self.show(first)
        is_loop = joint in (Joint.FOR, Joint.WHILE, Joint.UNTIL)
        steps, found, limits = self.script.steps, list[Command](), [len(self.script.steps)]
        for nodes in (tests, inside, other):
            self.loops += is_loop
            for child in nodes:
                found += self.visit(child)
            self.loops -= is_loop
            limits.append(len(steps))
        asks, then, rest = (tuple(steps[a:b]) for a, b in itertools.pairwise(limits))
        for kind, nodes, done in ((joint, inside, then), (Joint.ELSE, other, rest)):
            if nodes:
                self.script.branches.append(
                    Branch(
                        kind, text, self.line(node), asks, done, find_end(nodes), bool(other),
                        self.loops > 0,
                    )
                )  # fmt: skip
        return found

    def show(self, node: Node) -> str:
        """A test with what is known of variables put in; in `((...))` they have no `$`."""
        text = text_of(node)
        mark = r"\$?\{?" if text.startswith("((") else r"\$\{?"

        def put_in(match: re.Match[str]) -> str:
            return "".join(map(render_part, self.values.get(match[1], ()))) or match[0]

        return re.sub(mark + r"\b([A-Za-z_]\w*)\b\}?", put_in, text)

    def visit_function(self, node: Node) -> list[Command]:
        # Inside, $1 and its like are the function's.
        arguments, self.arguments = self.arguments, ()
        found = []
        for child in node.named_children:
            found += self.visit(child)
        self.arguments = arguments
        return found

    def visit_pipeline(self, nodes: Sequence[Node], before: Command | None) -> list[Command]:
        found: list[Command] = []
        for node in nodes:
            start = len(self.script.steps)
            self.visit(node)
            for position in range(start, len(self.script.steps)):
                step = self.script.steps[position]
                if before is not None and isinstance(step, Command) and step.before is None:
                    step = Command(step.words, step.line, step.redirects, step.document, before)
                    self.script.steps[position] = step
            commands = [s for s in self.script.steps[start:] if isinstance(s, Command)]
            found += commands
            before = commands[-1] if commands else before
        return found

    def visit_assignments(self, node: Node) -> None:
        first = text_of(node.children[0]) if node.type == "declaration_command" else ""
        flags = [text_of(child) for child in node.named_children if child.type == "word"]
        is_exported = first == "export" or (
            first in ("declare", "typeset")
            and any(flag.startswith("-") and "x" in flag for flag in flags)
        )
        nodes = [node] if node.type == "variable_assignment" else node.named_children
        for child in nodes:
            if child.type == "variable_assignment":
                self.assign(child, is_exported=is_exported)
            elif child.type == "variable_name" and is_exported:
                self.export(text_of(child))

    def export(self, name: str) -> None:
        """`export NAME` of what was set before."""
        self.exported.add(name)
        if name in self.values:
            parts = self.values[name]
            line = parts[0].line if parts else 0
            self.script.steps.append(Assignment(name, ShellWord(parts, "", line), True))

    def assign(self, node: Node, *, is_exported: bool) -> None:
        name_node = node.child_by_field_name("name")
        value_node = node.child_by_field_name("value")
        if name_node is None:
            return
        name = text_of(name_node)
        parts = self.parts_of(value_node) if value_node is not None else ()
        if any(child.type == "+=" for child in node.children):
            parts = (*self.values.get(name, ()), *parts)
        source = text_of(value_node) if value_node is not None else ""
        if name_node.type != "variable_name":
            return
        self.values[name] = parts
        is_exported = is_exported or name in self.exported
        if is_exported:
            self.exported.add(name)
        self.script.steps.append(
            Assignment(name, ShellWord(parts, source, self.line(node)), is_exported)
        )

    def visit_redirected(self, node: Node) -> list[Command]:
        redirects: list[Redirect] = []
        document = None
        rest: list[Node] = []
        for child in node.named_children:
            if child.type == "file_redirect":
                redirects += self.redirects_of(child)
            elif child.type == "heredoc_redirect":
                document = self.document_of(child)
                for inner in child.named_children:
                    if inner.type == "file_redirect":
                        target = inner.child_by_field_name("destination")
                        if target is not None:
                            redirects.append(Redirect(">", self.word_of(target)))
                    elif inner.type not in ("heredoc_start", "heredoc_body", "heredoc_end"):
                        rest.append(inner)
        found: list[Command] = []
        body = node.child_by_field_name("body")
        if body is None:
            # `> file` alone.
            command = Command((), self.line(node), tuple(redirects), document)
            self.script.steps.append(command)
            found = [command]
        elif body.type == "command":
            found = self.visit_command(body, tuple(redirects), document)
        else:
            found = self.visit(body)
            self.script.steps.append(Command((), self.line(node), tuple(redirects), document))
        for inner in rest:
            # `cat <<E | tee x`: what follows the pipe hangs below the here-document.
            nodes = inner.named_children if inner.type == "pipeline" else [inner]
            found += self.visit_pipeline(nodes, found[-1] if found else None)
        return found

    def redirects_of(self, node: Node) -> list[Redirect]:
        """The redirection of a node; none where the grammar has found no file for it."""
        target = node.child_by_field_name("destination")
        if target is None:
            return []
        operator = next((text_of(child) for child in node.children if not child.is_named), ">")
        first = node.named_children[0]
        descriptor = text_of(first) if first.type == "file_descriptor" else ""
        return [Redirect(operator, self.word_of(target), descriptor)]

    def document_of(self, node: Node) -> Document | None:
        start = next((c for c in node.named_children if c.type == "heredoc_start"), None)
        body = next((c for c in node.named_children if c.type == "heredoc_body"), None)
        if start is None or body is None:
            return None
        is_plain = text_of(start)[:1] in "'\"\\" or not any(
            child.type in ("simple_expansion", "expansion", "command_substitution")
            for child in body.named_children
        )
        return Document(text_of(body) if is_plain else None, self.line(body))

    def visit_command(
        self, node: Node, redirects: tuple[Redirect, ...], document: Document | None
    ) -> list[Command]:
        name = node.child_by_field_name("name")
        found = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                # The grammar takes assignments of a line of their own for the next command's.
                is_own_line = name is None or name.start_point[0] != child.end_point[0]
                before = dict(self.values)
                self.assign(child, is_exported=not is_own_line)
                if not is_own_line:
                    self.values = before
        words = []
        for child in node.named_children:
            if child.type == "file_redirect":
                redirects = (*redirects, *self.redirects_of(child))
            elif child.type == "herestring_redirect":
                given = self.word_of(child.named_children[-1]).literal
                document = document or Document(given, self.line(child))
            elif child.type == "variable_assignment":
                continue
            else:
                words += self.words_of(child)
        command = Command(tuple(words), self.line(node), redirects, document)
        self.script.steps.append(command)
        found.append(command)
        self.read_env(command)
        self.read_names(command)
        self.read_nested(command)
        return found

    def read_env(self, command: Command) -> None:
        """`env NAME=value program`."""
        if not command.words or command.words[0].literal != "env":
            return
        for word in command.words[1:]:
            given = word.divide()
            if given is None or not re.fullmatch(r"\w+", given[0]):
                return
            value = replace(given[1], source=word.source.partition("=")[2])
            self.script.steps.append(Assignment(given[0], value, True))

    def read_names(self, command: Command) -> None:
        """Variables that a command sets are unknown from then on."""
        first = command.words[0].literal if command.words else None
        if first in ("read", "mapfile", "readarray", "getopts", "unset"):
            for word in command.words[1:]:
                self.values.pop(word.literal or "", None)

    def read_nested(self, command: Command) -> None:
        """`bash -c '...'`, `eval '...'` and `trap '...' EXIT` hold commands."""
        literals = [word.literal for word in command.words]
        if self.depth >= _DEEPEST or not literals:
            return
        position = None
        if literals[0] in ("eval", "trap") and len(literals) > 1:
            position = 1
        else:
            for at, text in enumerate(literals[:-1]):
                if text is None or text.rpartition("/")[2] not in _SHELLS:
                    continue
                options = literals[at + 1 : -1]
                for offset, option in enumerate(options, start=at + 1):
                    if option and option.startswith("-") and option.endswith("c"):
                        position = offset + 1
                        break
                break
        text = literals[position] if position is not None else None
        if position is not None and text and (" " in text or "\n" in text):
            self.read(text, first_line=command.words[position].line, depth=self.depth + 1)
