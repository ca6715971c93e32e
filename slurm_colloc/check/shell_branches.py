"""Steps of a shell script that are done, or not, as a test says; pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.model.late_definitions import dataclass

if TYPE_CHECKING:
    from tree_sitter import Node

    from slurm_colloc.check.shell_reading import Assignment, Command

_SAME_SHELL = frozenset({"compound_statement", "redirected_statement", "do_group", "else_clause"})


class Joint(enum.Enum):
    """What makes steps depend on a test."""

    AND = "&&"
    OR = "||"
    IF = "if"
    ELSE = "else"
    FOR = "for"
    WHILE = "while"
    UNTIL = "until"

    @property
    def follows_success(self) -> bool:
        """The steps are done where the test succeeds."""
        return self in (Joint.AND, Joint.IF, Joint.WHILE)


@dataclass(frozen=True)
class Branch:
    """Steps that are done, or not, as a test says.

    Attributes:
        joint: How they depend on it.
        test: The test as it is written, with what is known of variables put in; of `for` the
            variable and its values.
        line: Where that begins.
        asks: The commands of the test.
        steps: The steps.
        ends: `exit` or `break` where they surely do that; empty for neither.
        has_other: `if` with something for the opposite case.
        is_in_loop: It stands in a loop.
    """

    joint: Joint
    test: str
    line: int
    asks: tuple[Command | Assignment, ...]
    steps: tuple[Command | Assignment, ...]
    ends: str
    has_other: bool
    is_in_loop: bool


def text_of(node: Node) -> str:
    """A node as it is written."""
    return (node.text or b"").decode("utf-8", "replace")


def divide(node: Node) -> tuple[list[Node], list[Node], list[Node]]:
    """The nodes of a test, of what depends on it, and of the opposite case."""
    children = node.named_children
    if node.type == "list":
        return children[:1], children[1:], []
    if node.type != "if_statement":
        return children[:-1], children[-1:], []
    then = next((c.start_byte for c in node.children if c.type == "then"), node.end_byte)
    rest = [child for child in children if child.start_byte > then]
    other = [child for child in rest if child.type in ("else_clause", "elif_clause")]
    inside = [child for child in rest if child not in other]
    return [child for child in children if child.start_byte < then], inside, other


def find_joint(node: Node) -> Joint:
    """What joins the steps of a node to its test."""
    if node.type == "if_statement":
        return Joint.IF
    word = next((text_of(c) for c in node.children if not c.is_named), "")
    return next((joint for joint in Joint if joint.value == word), Joint.FOR)


def is_told_chain(node: Node) -> bool:
    """`[ ... ] && echo it` says no more than its first part."""
    if node.type != "list" or find_joint(node) is not Joint.AND:
        return False
    name = node.named_children[-1].child_by_field_name("name")
    return name is not None and text_of(name) in ("echo", "printf", "logger", "date")


def find_end(nodes: Sequence[Node]) -> str:
    """`exit` or `break` where one of these nodes surely does that; '' for none."""
    for node in nodes:
        name = node.child_by_field_name("name") if node.type == "command" else None
        if name is not None and text_of(name) in ("exit", "break"):
            return text_of(name)
        found = find_end(node.named_children) if node.type in _SAME_SHELL else ""
        if found:
            return found
    return ""
