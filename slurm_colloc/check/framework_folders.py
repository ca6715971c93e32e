"""Folders that frameworks name by themselves, so that members of a pack share them; pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from slurm_colloc.check.collisions import Finding, directory_finding
from slurm_colloc.check.python_strings import PythonReader, name_of

_LIGHTNING = ("lightning", "pytorch_lightning")


def check_lightning(reader: PythonReader, node: ast.Call) -> Iterator[Finding]:
    """Lightning numbers the folders of its runs by looking which are there."""
    if not reader.modules & set(_LIGHTNING):
        return
    name = name_of(node.func).rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if None in keywords:
        return
    advice = "give it version=os.environ.get('SLURM_COLLOC_MEMBER')"
    if name == "Trainer":
        logger = keywords.get("logger")
        has_own = logger is not None and not (
            isinstance(logger, ast.Constant) and logger.value is True
        )
        root = keywords.get("default_root_dir")
        if not has_own and (root is None or reader.is_fixed(root)):
            yield directory_finding(
                reader.file,
                reader.line(node),
                "Trainer(...) writes lightning_logs/version_N",
                "give it a default_root_dir of its own, or a logger with a version",
            )
    elif name in ("CSVLogger", "TensorBoardLogger"):
        path = next((keywords[k] for k in ("save_dir",) if k in keywords), None)
        path = path or (node.args[0] if node.args else None)
        has_own = "version" in keywords or "sub_dir" in keywords
        label = keywords.get("name") or (node.args[1] if len(node.args) > 1 else None)
        if not has_own and reader.is_fixed(path) and reader.is_fixed(label):
            yield directory_finding(
                reader.file, reader.line(node), f"{name}(...) writes version_N", advice
            )


def check_hydra(reader: PythonReader, node: ast.FunctionDef) -> Iterator[Finding]:
    """Hydra names the folders of its runs by the second."""
    if "hydra" not in reader.modules:
        return
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if name_of(call) not in ("hydra.main", "main"):
            continue
        is_sweep = any(text in ("-m", "--multirun") for text in reader.arguments)
        key, folder = ("sweep", "multirun") if is_sweep else ("run", "outputs")
        if any(text.startswith(f"hydra.{key}.dir=") for text in reader.arguments):
            continue
        yield directory_finding(
            reader.file,
            reader.line(decorator),
            f"@hydra.main writes {folder}/DATE/TIME",
            f"call it with 'hydra.{key}.dir={folder}/${{oc.env:SLURM_COLLOC_MEMBER}}'",
        )
