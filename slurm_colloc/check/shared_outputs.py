"""Output files with a constant name, which several members would write at once; pure."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from slurm_colloc.check.collisions import (
    OWN_NAME,
    OWN_NAME_IN_PYTHON,
    ScriptFinding,
    Severity,
    shorten,
)
from slurm_colloc.check.python_strings import PythonReader, name_of, show_parts
from slurm_colloc.check.shell_words import Assignment, Command, Kind, ShellScript, WordPart

SHARED_OUTPUT = "shared-output"

_SECOND = re.compile(r"(^|\.)(torch\.save|joblib\.dump|safe_save_file|save_file)$")
"""What is saved comes first, where to second."""

_FIRST = re.compile(
    r"(^|\.)((np|numpy)\.save(z|z_compressed|txt)?|to_csv|to_parquet|to_pickle|to_json|to_hdf"
    r"|savefig|save_pretrained|save_weights|save_checkpoint|save_model)$"
)
_OWNER = re.compile(r"\.(write_text|write_bytes)$")
_PATH_KEYWORDS = ("f", "file", "filename", "fname", "path", "path_or_buf", "filepath", "file_path")
_CHANGES_DIRECTORY = re.compile(r"(^|\.)chdir$")
_ELSEWHERE = re.compile(r"^(/tmp|/var/tmp|/dev|/proc)(/|$)|://")
_TRUNCATING = frozenset({">", ">|", "&>"})


def find_python_outputs(tree: ast.AST, reader: PythonReader) -> Iterator[ScriptFinding]:
    """Files that a program writes under a constant name; none where it changes its directory.

    Args:
        tree: The program.
        reader: Has learned what the program assigns.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    # Hydra may give each run a directory.
    if "hydra" in reader.modules or any(_CHANGES_DIRECTORY.search(name_of(c.func)) for c in calls):
        return
    for call in calls:
        target = _find_target(call)
        if target is None:
            continue
        parts = reader.parts_of(target)
        if _is_constant_path(parts):
            yield _finding(reader.file, parts[0].line, show_parts(parts), OWN_NAME_IN_PYTHON)


def _find_target(call: ast.Call) -> ast.expr | None:
    """The path that a call writes to; None for one that writes none, or appends."""
    name = name_of(call.func)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if name in ("open", "io.open"):
        mode = call.args[1] if len(call.args) > 1 else keywords.get("mode")
        writes = isinstance(mode, ast.Constant) and re.search("[wx]", str(mode.value))
        return (call.args[0] if call.args else keywords.get("file")) if writes else None
    if _OWNER.search(name) and isinstance(call.func, ast.Attribute):
        return call.func.value
    named = next((keywords[word] for word in _PATH_KEYWORDS if word in keywords), None)
    if _SECOND.search(name):
        return call.args[1] if len(call.args) > 1 else named
    if _FIRST.search(name):
        return call.args[0] if call.args else named
    return None


def _is_constant_path(parts: Sequence[WordPart]) -> bool:
    if not parts or any(part.kind is not Kind.TEXT for part in parts):
        return False
    text = "".join(part.text for part in parts)
    # `{}` of a format whose arguments are not known.
    return "\0" not in text and text not in ("", "None") and not _ELSEWHERE.search(text)


def find_shell_outputs(script: ShellScript, file: str) -> Iterator[ScriptFinding]:
    """Files that a script truncates under a constant name."""
    for step in script.steps:
        if not isinstance(step, Command):
            continue
        for redirect in step.redirects:
            text = redirect.target.literal
            is_file = text is not None and text != "-" and not text.isdigit()
            if redirect.operator in _TRUNCATING and is_file and not _ELSEWHERE.search(text or ""):
                yield _finding(file, redirect.target.line, f"> {text}", OWN_NAME)


def _finding(file: str, line: int, what: str, own: str) -> ScriptFinding:
    return ScriptFinding(
        SHARED_OUTPUT,
        file,
        line,
        shorten(what),
        "all tasks of the array would write this one file",
        f"add {own} to its name",
    )


def changes_directory(script: ShellScript) -> bool:
    """A script may run its programs in a directory of each member's own."""
    for step in script.steps:
        if isinstance(step, Assignment) or not step.words:
            continue
        name, *others = step.words
        if name.literal in ("cd", "pushd") and any(word.literal is None for word in others):
            return True
    return False


def settle_outputs(findings: Iterable[ScriptFinding], *, is_array: bool) -> list[ScriptFinding]:
    """How constant names count: jobs that are no array may differ in their directories."""
    if is_array:
        return list(findings)
    return [
        dataclasses.replace(
            finding,
            why="jobs that run in one directory would all write this file",
            level=Severity.NOTE,
        )
        if finding.kind == SHARED_OUTPUT
        else finding
        for finding in findings
    ]
