"""Programs that take a fraction of the whole GPU's memory, no matter what shares it; pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from slurm_colloc.check.collisions import ScriptFinding, Severity, shorten
from slurm_colloc.check.python_strings import PythonReader, name_of
from slurm_colloc.check.shell_words import Assignment, Kind, WordPart

_CALLS = re.compile(r"(^|\.)(set_)?per_process_memory_fraction$")
_KEYWORDS = frozenset({"per_process_gpu_memory_fraction", "gpu_memory_utilization"})
"""TensorFlow's, and vLLM's."""

_VARIABLES = frozenset({"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"})
"""JAX's."""

_SMALL = 0.5


def check_memory_calls(reader: PythonReader, node: ast.Call) -> Iterator[ScriptFinding]:
    """`torch.cuda.set_per_process_memory_fraction(0.9)`, and the same of others."""
    value: ast.expr | None = None
    if _CALLS.search(name_of(node.func)):
        value = node.args[0] if node.args else next((k.value for k in node.keywords), None)
    else:
        value = next((k.value for k in node.keywords if k.arg in _KEYWORDS), None)
    if value is not None:
        what = ast.unparse(node)
        yield memory_finding(reader.file, reader.line(node), what, reader.parts_of(value))


def check_memory_variable(
    file: str, line: int, what: str, name: str, parts: tuple[WordPart, ...]
) -> Iterator[ScriptFinding]:
    """`XLA_PYTHON_CLIENT_MEM_FRACTION=.90`."""
    if name in _VARIABLES:
        yield memory_finding(file, line, what, parts)


def check_memory_assignment(step: Assignment, file: str) -> Iterator[ScriptFinding]:
    """The same in a shell script."""
    what = f"{step.name}={step.value.source or step.value.shown}"
    yield from check_memory_variable(file, step.line, what, step.name, step.value.parts)


def memory_finding(file: str, line: int, what: str, parts: tuple[WordPart, ...]) -> ScriptFinding:
    """A fraction; one that leaves half of the GPU or more to others is only told."""
    fraction = None
    if parts and all(part.kind is Kind.TEXT for part in parts):
        text = "".join(part.text for part in parts)
        if re.fullmatch(r"\d*\.?\d+|\d+\.", text):
            fraction = float(text)
    share = "a fraction" if fraction is None else f"{fraction:.0%}".replace("%", " %")
    is_small = fraction is not None and fraction <= _SMALL
    return ScriptFinding(
        "gpu-memory-fraction",
        file,
        line,
        shorten(what),
        f"in a pack it takes {share} of the whole GPU's memory, whatever the neighbours need",
        "leave it out, and say with --gpu-mem what the job needs",
        Severity.NOTE if is_small else Severity.PROBLEM,
    )
