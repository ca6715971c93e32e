"""The words of a shell script, with what is known of variables and arguments put in.

tree-sitter has done the grammar, see check.shell_reading. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.check.shell_words import Kind, ShellWord, WordPart

if TYPE_CHECKING:
    from tree_sitter import Node

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


def text_of(node: Node) -> str:
    """A node as it is written."""
    return (node.text or b"").decode("utf-8", "replace")


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
