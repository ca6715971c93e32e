"""Reads a shell script into its commands, in the order in which they are written; runs nothing.

tree-sitter does the grammar (docs/decisions/0013-tree-sitter-for-check.md). It goes on behind what
it does not understand, and those lines are told. Everything here is pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.check.shell_expansion import WordReader, text_of
from slurm_colloc.check.shell_words import (
    Assignment,
    Command,
    Document,
    Kind,
    Redirect,
    ShellScript,
    ShellWord,
    WordPart,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_DEEPEST = 5


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
        if node.type == "for_statement":
            name = node.child_by_field_name("variable")
            if name is not None:
                self.values.pop(text_of(name), None)
        elif node.type == "function_definition":
            return self.visit_function(node)
        found = []
        for child in node.named_children:
            found += self.visit(child)
        return found

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
        is_exported = node.type == "declaration_command" and (
            node.child(0) is not None
            and text_of(node.children[0]) in ("export", "declare", "typeset")
            and (
                text_of(node.children[0]) == "export"
                or any(
                    child.type == "word"
                    and "x" in text_of(child)
                    and text_of(child).startswith("-")
                    for child in node.named_children
                )
            )
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
                target = child.child_by_field_name("destination")
                operator = next((text_of(c) for c in child.children if not c.is_named), ">")
                if target is not None:
                    redirects.append(Redirect(operator, self.word_of(target)))
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
                target = child.child_by_field_name("destination")
                operator = next((text_of(c) for c in child.children if not c.is_named), ">")
                if target is not None:
                    redirects = (*redirects, Redirect(operator, self.word_of(target)))
            elif child.type in ("variable_assignment", "herestring_redirect"):
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
            head = word.parts[0] if word.parts else None
            match = re.match(r"^(\w+)=(.*)$", head.text, re.DOTALL) if head else None
            if match is None or head is None or head.kind is not Kind.TEXT:
                return
            first = (WordPart(Kind.TEXT, match[2], head.line),) if match[2] else ()
            value = ShellWord((*first, *word.parts[1:]), word.source.partition("=")[2], word.line)
            self.script.steps.append(Assignment(match[1], value, True))

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
