"""Programs that take GPU memory by what the whole GPU has, no matter what shares it; pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from slurm_colloc.check.collisions import ScriptFinding, Severity, build_finding, shorten
from slurm_colloc.check.python_strings import PythonReader, name_of
from slurm_colloc.check.shell_reading import Assignment, Command, Kind, ShellScript, WordPart
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.preallocation import JAX_GROWS, TENSORFLOW_GROWS

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


@dataclass(frozen=True)
class _Framework:
    """One that takes GPU memory before it needs any.

    Attributes:
        takes: What it takes as it first uses the GPU.
        export: The line that keeps it from that.
        variables: Which keep it from that, each with the values that do; none for any value.
        names: Names in a program that say that its author has settled it.
    """

    takes: str
    export: str
    variables: Mapping[str, frozenset[str]]
    names: frozenset[str] = frozenset()


_JAX = _Framework(
    "75 % of the GPU's memory",
    f"export {JAX_GROWS}",
    {
        "XLA_PYTHON_CLIENT_PREALLOCATE": frozenset({"false", "0"}),
        "XLA_PYTHON_CLIENT_ALLOCATOR": frozenset(),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": frozenset(),
        "XLA_CLIENT_MEM_FRACTION": frozenset(),
        "JAX_PLATFORMS": frozenset({"cpu"}),
    },
    frozenset({"jax_platforms", "jax_platform_name"}),
)
_TENSORFLOW = _Framework(
    "nearly all of the GPU's memory",
    f"export {TENSORFLOW_GROWS}",
    {"TF_FORCE_GPU_ALLOW_GROWTH": frozenset({"true", "1"})},
    frozenset(
        {
            "set_memory_growth", "allow_growth", "set_visible_devices",
            "set_logical_device_configuration", "set_virtual_device_configuration",
            "per_process_gpu_memory_fraction",
        }
    ),
)  # fmt: skip
_FRAMEWORKS = {"jax": _JAX, "flax": _JAX, "tensorflow": _TENSORFLOW}
"""By the module that is imported."""


def find_preallocation(
    tree: ast.Module, reader: PythonReader, environment: Mapping[str, str | None]
) -> Iterator[ScriptFinding]:
    """`import jax`, where nothing keeps it from taking most of the GPU's memory at its start.

    Args:
        tree: The program.
        reader: Knows its file and lines.
        environment: What it is started with; None for a value that is not known.
    """
    said = {name for node in ast.walk(tree) for name in _list_names(node)}
    told: set[int] = set()
    for node in ast.walk(tree):
        for module in _list_imported(node):
            found = _FRAMEWORKS.get(module)
            if found is None or id(found) in told:
                continue
            told.add(id(found))
            if said & (found.names | found.variables.keys()) or _is_set(found, environment):
                continue
            yield build_finding(
                "gpu-memory-preallocation",
                reader.file,
                reader.line(node),
                ast.unparse(node),
                takes=found.takes,
                export=found.export,
            )


def read_shell_environment(script: ShellScript) -> dict[str, str | None]:
    """What the programs of a shell script are started with; None for what is not known."""
    found: dict[str, str | None] = {}
    for step in script.steps:
        if isinstance(step, Assignment) and step.is_exported:
            found[step.name] = step.value.literal
        elif isinstance(step, Command):
            # `env NAME=value python train.py`.
            for word in step.words:
                name, given, value = (word.literal or "").partition("=")
                if given and name.isidentifier():
                    found[name] = value
    return found


def _is_set(framework: _Framework, environment: Mapping[str, str | None]) -> bool:
    for name, right in framework.variables.items():
        if name in environment:
            value = environment[name]
            if value is None or not right or value.lower() in right:
                return True
    return False


def _list_imported(node: ast.AST) -> list[str]:
    """The packages that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module.partition(".")[0]]
    return []


def _list_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.keyword) and node.arg:
        return [node.arg]
    return [node.id] if isinstance(node, ast.Name) else []
