"""A package has a face: the modules that others may import, a table in pyproject.toml."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "slurm_colloc"
FOLDERS = (ROOT / NAME, ROOT / "lab" / "slurm_colloc_lab")


def name_module(path: Path, root: Path) -> str:
    """`slurm_colloc.store.indexes`; a package for its `__init__`."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def list_imports(text: str, modules: set[str]) -> set[str]:
    """The modules of ours that a text imports, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if name in modules else node.module for name in whole)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & modules


def find_package(module: str) -> str:
    """`store`; empty for a module at the top, and for another distribution's."""
    words = module.split(".")
    return words[1] if words[0] == NAME and len(words) > 2 else ""


def find_deep_imports(
    texts: dict[str, str], faces: dict[str, list[str]]
) -> tuple[list[str], dict[str, set[str]]]:
    """Imports past a package's face, and what of each face is used from outside."""
    deep, used = [], defaultdict(set)
    for module, text in texts.items():
        for target in list_imports(text, set(texts)):
            package = find_package(target)
            if not package or package == find_package(module):
                continue
            inside = target.removeprefix(f"{NAME}.{package}.")
            used[package].add(inside)
            if inside not in faces.get(package, ()):
                deep.append(f"{module} imports {target}")
    return sorted(deep), used


def read_texts() -> dict[str, str]:
    return {
        name_module(path, folder.parent): path.read_text()
        for folder in FOLDERS
        for path in folder.rglob("*.py")
    }


def read_faces() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    faces: dict[str, list[str]] = project["tool"]["slurm_colloc"]["faces"]
    return faces


def test_packages_import_each_other_by_their_faces() -> None:
    deep, used = find_deep_imports(read_texts(), read_faces())
    assert deep == []
    unused = {name: set(face) - used[name] for name, face in read_faces().items()}
    assert {name: left for name, left in unused.items() if left} == {}


def test_an_import_past_a_face_is_found() -> None:
    texts = {
        "slurm_colloc.store": "",
        "slurm_colloc.store.indexes": "",
        "slurm_colloc.store.inside": "",
        "slurm_colloc.cli.look": "def f():\n    from slurm_colloc.store import inside\n"
        "    from slurm_colloc.store.indexes import a\n",
    }
    deep, used = find_deep_imports(texts, {"store": ["indexes"]})
    assert deep == ["slurm_colloc.cli.look imports slurm_colloc.store.inside"]
    assert used == {"store": {"indexes", "inside"}}
