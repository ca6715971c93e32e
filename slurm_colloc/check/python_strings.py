"""What the strings of a Python program are made of; pure.

Also: programs that take GPU memory by what the whole GPU has, no matter what shares it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_colloc.check.collisions import ScriptFinding, Severity, build_finding, shorten
from slurm_colloc.check.shell_reading import (
    JOB_IDS,
    Assignment,
    Command,
    Kind,
    ShellScript,
    WordPart,
    literal_of,
)
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.member import JAX_GROWS, TENSORFLOW_GROWS

_OWN = late_pattern(r"(^|\.)(getpid|uuid\d?|uuid4|token_hex|mkdtemp|mkstemp|TemporaryDirectory)$")
_CLOCKS = late_pattern(
    r"(^|\.)(strftime|now|utcnow|today|time|time_ns|ctime|asctime|isoformat|localtime)$"
)
_TO_THE_SECOND = late_pattern(r"%[-#]?[sSTMrRcX]")


class PythonReader:
    """What is known of a program while it is walked.

    Args:
        file: What the user calls it.
        offset: How many lines of `file` stand before it.
        arguments: What it is called with, as far as it is known.
    """

    def __init__(self, file: str, offset: int, arguments: tuple[str, ...]) -> None:
        self.file = file
        self.offset = offset
        self.arguments = arguments
        self.values: dict[str, tuple[WordPart, ...]] = {}
        self.modules: set[str] = set()

    def line(self, node: ast.AST) -> int:
        """The line of a node, in the file."""
        return int(getattr(node, "lineno", 0)) + self.offset

    def learn(self, node: ast.AST) -> None:
        """Note what a statement imports or assigns."""
        if isinstance(node, ast.Import):
            self.modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            self.modules.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                name = target.id
                # Set twice: it is not known which one holds.
                known = name in self.values
                parts = self.parts_of(node.value)
                self.values[name] = (
                    (WordPart(Kind.UNKNOWN, name, self.line(node), self.values[name] + parts),)
                    if known
                    else parts
                )

    def parts_of(self, node: ast.AST) -> tuple[WordPart, ...]:  # noqa: C901, PLR0911, PLR0912 - a table
        """What a string is made of."""
        line = self.line(node)
        if isinstance(node, ast.Constant):
            return (WordPart(Kind.TEXT, str(node.value), line),)
        if isinstance(node, ast.JoinedStr):
            return tuple(part for value in node.values for part in self.parts_of(value))
        if isinstance(node, ast.FormattedValue):
            spec = ast.unparse(node.format_spec) if node.format_spec is not None else ""
            if "%" in spec:
                # A date in the form that is given: `{now:%H%M%S}`.
                kind = Kind.CLOCK if _TO_THE_SECOND.search(spec) else Kind.UNKNOWN
                return (WordPart(kind, ast.unparse(node.value), line),)
            return self.parts_of(node.value)
        if isinstance(node, ast.BinOp):
            left, right = self.parts_of(node.left), self.parts_of(node.right)
            if isinstance(node.op, ast.Div):
                return (*left, WordPart(Kind.TEXT, "/", line), *right)
            if isinstance(node.op, ast.Add):
                return (*left, *right)
            if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
                text = re.sub(r"%[\d.]*[sdrif]", "\0", str(node.left.value))
                return (WordPart(Kind.TEXT, text, line), *right)
            return (WordPart(Kind.SUM, ast.unparse(node), line, (*left, *right)),)
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(part for value in node.elts for part in self.parts_of(value))
        if isinstance(node, ast.Name):
            return self.values.get(node.id, (WordPart(Kind.UNKNOWN, node.id, line),))
        if isinstance(node, ast.Subscript):
            name = environment_name(node)
            if name is not None:
                return (WordPart(Kind.VARIABLE, name, line),)
            return (WordPart(Kind.UNKNOWN, ast.unparse(node), line, self.parts_of(node.value)),)
        if isinstance(node, ast.Call):
            return self.parts_of_call(node)
        return (WordPart(Kind.UNKNOWN, ast.unparse(node), line),)

    def parts_of_call(self, node: ast.Call) -> tuple[WordPart, ...]:  # noqa: PLR0911 - a table
        """What a call gives is made of."""
        line, name = self.line(node), name_of(node.func)
        variable = environment_name(node)
        if variable is not None:
            return (WordPart(Kind.VARIABLE, variable, line),)
        if _OWN.search(name):
            return (WordPart(Kind.VARIABLE, "$", line),)
        if name.endswith(("path.join", "Path", "PurePath")) or name == "join":
            parts: list[WordPart] = []
            for argument in node.args:
                parts += [WordPart(Kind.TEXT, "/", line)] if parts else []
                parts += self.parts_of(argument)
            return tuple(parts)
        if name.endswith("strftime"):
            formats = [a.value for a in node.args if isinstance(a, ast.Constant)]
            is_fine = any(_TO_THE_SECOND.search(str(text)) for text in formats)
            kind = Kind.CLOCK if is_fine or not formats else Kind.UNKNOWN
            if any("%f" in str(text) for text in formats):
                return (WordPart(Kind.VARIABLE, "$", line),)
            return (WordPart(kind, str(formats[0]) if formats else "time", line),)
        if _CLOCKS.search(name) and self.is_clock(name):
            return (WordPart(Kind.CLOCK, "time", line),)
        if name in ("str", "int", "repr", "os.path.expanduser", "os.path.abspath") and node.args:
            return self.parts_of(node.args[0])
        inner = [part for argument in node.args for part in self.parts_of(argument)]
        if isinstance(node.func, ast.Attribute):
            owner = self.parts_of(node.func.value)
            if node.func.attr == "format":
                text = re.sub(r"\{[^{}]*\}", "\0", "".join(p.text for p in owner))
                return (WordPart(Kind.TEXT, text, line), *inner)
            if node.func.attr in ("resolve", "absolute", "expanduser", "strip", "replace"):
                return owner
            inner += owner
        return (WordPart(Kind.UNKNOWN, ast.unparse(node), line, tuple(inner)),)

    def is_clock(self, name: str) -> bool:
        """A call of time or datetime, not of something else with such a name."""
        head = name.partition(".")[0]
        return head in ("time", "datetime", "dt", "date", "now", "strftime", "pd", "arrow")

    def is_fixed(self, node: ast.expr | None) -> bool:
        """Nothing, or a text."""
        return node is None or literal_of(self.parts_of(node)) is not None

    def find(self, kind: str, node: ast.AST, what: str = "", **words: Any) -> ScriptFinding:
        """A finding at a node; `what` is the node as it is written where nothing else is said."""
        return build_finding(kind, self.file, self.line(node), what or ast.unparse(node), **words)


def name_of(node: ast.AST) -> str:
    """The dotted name of a function; what is in front of a call or index is left out."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = name_of(node.value)
        return f"{head}.{node.attr}" if head else f".{node.attr}"
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return ""


def environment_name(node: ast.AST) -> str | None:
    """`X` of os.environ["X"], os.environ.get("X") and os.getenv("X")."""
    if isinstance(node, ast.Subscript):
        if name_of(node.value) not in ("os.environ", "environ"):
            return None
        key: ast.AST = node.slice
    elif isinstance(node, ast.Call) and node.args:
        if name_of(node.func) not in ("os.environ.get", "environ.get", "os.getenv", "getenv"):
            return None
        key = node.args[0]
    else:
        return None
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return key.value
    return None


def show_parts(parts: tuple[WordPart, ...]) -> str:
    """A string as it is told to people."""
    return "".join(render_part(part) for part in parts)


def render_part(part: WordPart) -> str:
    """A part of a string as it is told to people."""
    if part.kind is Kind.TEXT:
        return part.text.replace("\0", "{}")
    if part.kind is Kind.VARIABLE:
        return f"${part.text}" if part.text in JOB_IDS or part.text.isidentifier() else "{pid}"
    return f"{{{part.text}}}"


# ---- Programs that take GPU memory by what the whole GPU has, no matter what shares it; pure -----

_CALLS = late_pattern(r"(^|\.)(set_)?per_process_memory_fraction$")
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


def memory_finding(file: str, line: int, what: str, parts: tuple[WordPart, ...]) -> ScriptFinding:
    """A fraction; one that leaves half of the GPU or more to others is only told."""
    text = literal_of(parts) or ""
    fraction = float(text) if re.fullmatch(r"\d*\.?\d+|\d+\.", text) else None
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
            yield reader.find(
                "gpu-memory-preallocation", node, takes=found.takes, export=found.export
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
