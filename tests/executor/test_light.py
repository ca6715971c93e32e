"""`import slurm_colloc` loads nothing, and the Executor nothing heavy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import slurm_colloc

_LIST = "import sys, json, slurm_colloc{}; print(json.dumps(sorted(sys.modules)))"


def list_modules(more: str = "") -> set[str]:
    words = [sys.executable, "-c", _LIST.format(more)]
    return set(json.loads(subprocess.run(words, capture_output=True, check=True).stdout))


def test_importing_the_package_loads_none_of_it() -> None:
    assert {name for name in list_modules() if name.startswith("slurm_colloc")} == {"slurm_colloc"}


def test_the_executor_loads_nothing_heavy() -> None:
    heavy = {"torch", "pandas", "numpy", "pyarrow", "typer", "rich", "jinja2", "asyncio",
             "cloudpickle"}  # fmt: skip
    assert not heavy & list_modules("; slurm_colloc.Executor")


def test_type_checkers_are_told_of_the_same_names() -> None:
    stub = ast.parse(Path(slurm_colloc.__file__).with_suffix(".pyi").read_text())
    named = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = {}
    for name in slurm_colloc.__all__:
        if name != "__version__":
            value = getattr(slurm_colloc, name)
            found[name] = f"{value.__module__}.{value.__qualname__}"
    assert found == named
    assert not hasattr(slurm_colloc, "Nothing")
