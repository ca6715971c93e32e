"""Finds in a Python program what makes a job give way to its neighbours; pure.

As check.shell_guards does in a shell script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from slurm_colloc.check.collisions import OWN_NAME_IN_PYTHON, ScriptFinding
from slurm_colloc.check.python_strings import PythonReader, name_of, show_parts
from slurm_colloc.check.shell_collisions import DEVICES, is_fixed_temporary
from slurm_colloc.check.shell_guards import BATCH
from slurm_colloc.check.shell_reading import ShellWord, find_variable
from slurm_colloc.model.late_definitions import late_pattern

_IN_USE = late_pattern(
    r"nvmlDeviceGet(Compute|Graphics)RunningProcesses|nvmlDeviceGetUtilizationRates|gpustat"
    r"|--query-compute-apps|nvidia-smi pmon|nvidia-smi.*--query-gpu=\S*(memory\.used|utilization\.)"
)
_FREE = late_pattern(
    r"\bmem_get_info\b|nvmlDeviceGetMemoryInfo|nvidia-smi.*--query-gpu=\S*memory\.free"
)
_SAYS_FREE = late_pattern(r"free|avail|used|\(\) +0\b")
"""What all of the GPU has is asked for by the same calls."""
_FINDERS = frozenset({"find_executable_batch_size", "scale_batch_size"})
_FINDING_OPTIONS = frozenset({"auto_find_batch_size", "auto_scale_batch_size"})
_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit"})
_LOCKS = late_pattern(r"(^|\.)(flock|lockf)$")
_MORE, _LESS = (ast.Gt, ast.GtE, ast.NotEq), (ast.Lt, ast.LtE, ast.Eq)


def find_python_guards(tree: ast.Module, reader: PythonReader) -> list[ScriptFinding]:
    """What in a program gives way to neighbours."""
    sources = _Sources(tree)
    found: list[ScriptFinding] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            found += _check_guard(node, sources, reader)
        elif isinstance(node, ast.Try):
            found += _check_lock(node, reader)
        elif isinstance(node, ast.While | ast.For):
            found += _check_tries(node, reader)
        elif isinstance(node, ast.Assign):
            found += _check_sized(node, sources, reader)
        elif isinstance(node, ast.Call):
            found += _check_call(node, reader)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp):
            found += _check_numbers(node, reader)
        elif isinstance(node, ast.FunctionDef):
            finders = (one for one in node.decorator_list if _last_name(one) in _FINDERS)
            found += (_find_sized(one, reader) for one in finders if not isinstance(one, ast.Call))
    return found


class _Sources:
    """What variables were set to, as it is written."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    names = target.elts if isinstance(target, ast.Tuple) else [target]
                    self._known |= {
                        name.id: ast.unparse(node.value)
                        for name in names
                        if isinstance(name, ast.Name)
                    }

    def spell(self, node: ast.AST) -> str:
        """An expression, and what its variables were set to."""
        text = ast.unparse(node)
        for _ in range(2):
            names = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", text))
            text = " ".join([text, *(self._known[name] for name in names if name in self._known)])
        # Of a list of words the quotes and commas are left out.
        return re.sub(r"['\"],? *['\"]|['\"\[\]]", " ", text)


def _last_name(node: ast.AST) -> str:
    return name_of(node).rpartition(".")[2]


def _ends(body: Sequence[ast.stmt]) -> bool:
    for node in body:
        value = node.value if isinstance(node, ast.Expr) else None
        raised = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(value, ast.Call) and name_of(value.func) in _EXITS:
            return True
        if raised is not None and name_of(raised) == "SystemExit":
            return True
    return False


def _find_sense(test: ast.expr) -> bool | None:
    """Whether a test succeeds where there is more of what it asks for; None where that is open."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _find_sense(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.Compare):
        sign = test.ops[0]
        if len(test.ops) > 1 or not isinstance(sign, _MORE + _LESS):
            return None
        return isinstance(sign, _MORE)
    return True if isinstance(test, ast.Name | ast.Call | ast.Attribute) else None


def _check_guard(node: ast.If, sources: _Sources, reader: PythonReader) -> Iterator[ScriptFinding]:
    ends, ends_else = _ends(node.body), _ends(node.orelse)
    if not (ends or ends_else):
        return
    what, text = ast.unparse(node.test), sources.spell(node.test)
    if _is_there(node.test, reader):
        if ends:
            yield reader.find("tmp-lock", node, what, loses_work=True)
        return
    is_used = _IN_USE.search(text)
    is_free = _FREE.search(text) and _SAYS_FREE.search(text)
    if is_used or is_free:
        sense = _find_sense(node.test)
        # Of `.used` more means a GPU in use, of `free` less.
        busy = sense != (is_used is None and ".used" not in text)
        loses_work = sense is not None and (ends if busy else ends_else)
        yield reader.find(
            "idle-gpu-guard", node, what, loses_work=loses_work, does="ends the program"
        )


def _find_sized(node: ast.AST, reader: PythonReader) -> ScriptFinding:
    return reader.find("memory-sized-batch", node, loses_work=True)


def _is_batch(node: ast.AST) -> bool:
    return bool(
        BATCH.search(_last_name(node) if isinstance(node, ast.Attribute) else name_of(node))
    )


def _check_sized(
    node: ast.Assign, sources: _Sources, reader: PythonReader
) -> Iterator[ScriptFinding]:
    text = sources.spell(node.value) if any(map(_is_batch, node.targets)) else ""
    if _FREE.search(text) and _SAYS_FREE.search(text):
        yield _find_sized(node, reader)


def _check_tries(node: ast.While | ast.For, reader: PythonReader) -> Iterator[ScriptFinding]:
    """`except torch.cuda.OutOfMemoryError: batch_size //= 2`, in a loop."""
    handlers = (one for one in ast.walk(node) if isinstance(one, ast.ExceptHandler))
    for step in (step for handler in handlers for step in handler.body):
        is_less = isinstance(step, ast.AugAssign) and isinstance(step.op, ast.FloorDiv | ast.Div)
        if is_less and isinstance(step, ast.AugAssign) and _is_batch(step.target):
            yield _find_sized(step, reader)


def _check_call(node: ast.Call, reader: PythonReader) -> Iterator[ScriptFinding]:
    name, own = name_of(node.func), reader.parts_of
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    is_on = any(
        not (isinstance(value, ast.Constant) and not value.value)
        for option, value in keywords.items()
        if option in _FINDING_OPTIONS
    )
    if is_on or _last_name(node.func) in _FINDERS:
        yield _find_sized(node, reader)
    elif name == "int" and node.args and find_variable(own(node.args[0]), DEVICES):
        yield reader.find("gpu-index", node)
    elif name == "map" and len(node.args) > 1 and name_of(node.args[0]) == "int":
        if find_variable(own(node.args[1]), DEVICES):
            yield reader.find("gpu-index", node)
    elif _last_name(node.func) == "SharedMemory" and "create" in keywords:
        given = keywords.get("name") or (node.args[0] if node.args else None)
        if given is None or (isinstance(given, ast.Constant) and given.value is None):
            return
        parts = own(given)
        job_id = find_variable(parts, ("SLURM_JOB_ID", "SLURM_JOBID")) is not None
        if job_id or reader.is_fixed(given):
            what = show_parts(parts)
            yield reader.find(
                "shared-memory-name", node, what, own=OWN_NAME_IN_PYTHON, by_job_id=job_id
            )


def _check_numbers(
    node: ast.ListComp | ast.GeneratorExp, reader: PythonReader
) -> Iterator[ScriptFinding]:
    """`[int(i) for i in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]`."""
    is_int = isinstance(node.elt, ast.Call) and name_of(node.elt.func) == "int"
    if is_int and find_variable(reader.parts_of(node.generators[0].iter), DEVICES):
        yield reader.find("gpu-index", node)


# ---- Locks below /tmp ----------------------------------------------------------------------------


def _is_temporary(node: ast.AST, reader: PythonReader) -> bool:
    word = ShellWord(reader.parts_of(node), "", 0)
    return word.literal is not None and is_fixed_temporary(word)


def _is_there(test: ast.expr, reader: PythonReader) -> bool:
    """`os.path.exists("/tmp/x.lock")`, `Path("/tmp/x.lock").exists()`."""
    if not isinstance(test, ast.Call) or _last_name(test.func) not in (
        "exists",
        "isfile",
        "is_file",
    ):
        return False
    owner = test.func.value if isinstance(test.func, ast.Attribute) else test
    path = test.args[0] if test.args else owner
    is_lock = re.search(r"lock|\.pid$", show_parts(reader.parts_of(path)), re.IGNORECASE)
    return is_lock is not None and _is_temporary(path, reader)


def _check_lock(node: ast.Try, reader: PythonReader) -> Iterator[ScriptFinding]:
    """`fcntl.flock(open("/tmp/x.lock", "w"), LOCK_EX | LOCK_NB)`, where a failure ends it."""
    if not any(_ends(handler.body) for handler in node.handlers):
        return
    for call in (
        call for step in node.body for call in ast.walk(step) if isinstance(call, ast.Call)
    ):
        is_lock = _LOCKS.search(name_of(call.func)) and "LOCK_NB" in ast.unparse(call)
        if not is_lock or not call.args:
            continue
        parts = reader.parts_of(call.args[0])
        inner = [part for outer in parts for part in outer.inner] or list(parts)
        word = ShellWord(tuple(inner[:1]), "", 0)
        if word.literal and is_fixed_temporary(word):
            yield reader.find("tmp-lock", call, loses_work=True)
