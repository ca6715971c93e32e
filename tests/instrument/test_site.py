"""The injected sitecustomize: seen by nobody, and the next one runs as if it were not there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.runtime.pack_monitor import SITE_DIRECTORY, injected_environment

from .counted_programs import ROOT, build_environment, run_python

PACKAGE = ROOT / "slurm_colloc"
SHOW = "import sys; print(sys.modules.get('sitecustomize') and sys.modules['sitecustomize'].VALUE)"
# Without one of its own, of the system or of what measures these tests.
BARE = "import sys; print('sitecustomize' in sys.modules)"


def run_site(
    directory: Path, code: str, *others: Path, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run Python as a member does, with other directories in PYTHONPATH after ours."""
    # Python 2.7 would write what it compiles next to the source.
    environment = build_environment(directory, PYTHONDONTWRITEBYTECODE="1")
    path = [environment["PYTHONPATH"], *map(str, others)]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    return subprocess.run(
        [python, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def find_pythons() -> list[str]:
    """Other releases of Python on this machine, 2.7 included."""
    found = sorted((Path.home() / ".pyenv" / "versions").glob("*/bin/python"))
    found += [Path("/usr/bin/python3"), Path("/usr/bin/python2")]
    return [str(python) for python in found if os.access(python, os.X_OK)]


def test_the_next_sitecustomize_runs_and_is_the_one_that_is_seen(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("VALUE = 'theirs'\n")
    ended = run_site(tmp_path, SHOW, tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "theirs\n", "")


def test_a_package_is_a_sitecustomize_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize").mkdir()
    (tmp_path / "sitecustomize" / "__init__.py").write_text(
        "from sitecustomize.part import VALUE\n"
    )
    (tmp_path / "sitecustomize" / "part.py").write_text("VALUE = 'of a package'\n")
    assert run_site(tmp_path, SHOW, tmp_path).stdout == "of a package\n"


@pytest.mark.parametrize(
    "fault", ["raise ValueError('theirs')", "import not_there", "this is no Python"]
)
def test_a_fault_of_the_next_one_is_shown_as_without_ours(tmp_path: Path, fault: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(fault + "\n")
    ours = run_site(tmp_path, "print(1)", tmp_path)
    environment = {**build_environment(tmp_path), "PYTHONPATH": str(tmp_path)}
    theirs = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "sitecustomize" in theirs.stderr
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, "1\n", theirs.stderr)


@pytest.mark.parametrize("python", find_pythons())
def test_every_python_starts_as_without_it(tmp_path: Path, python: str) -> None:
    without = subprocess.run(
        [python, "-c", BARE],
        env={k: v for k, v in build_environment(tmp_path).items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    ours = run_site(tmp_path, BARE, python=python)
    assert without.returncode == 0
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, without.stdout, without.stderr)


@pytest.mark.parametrize("python", find_pythons())
def test_the_next_one_runs_in_every_python(tmp_path: Path, python: str) -> None:
    (tmp_path / "sitecustomize.py").write_text("VALUE = 'theirs'\n")
    ended = run_site(tmp_path, SHOW, tmp_path, python=python)
    assert (ended.stdout, ended.stderr) == ("theirs\n", "")


@pytest.mark.parametrize("directory", ["", "/nonexistent/progress"])
def test_without_a_directory_nothing_is_loaded(directory: str) -> None:
    ended = run_python(
        "import sys; print([n for n in sys.modules if 'slurm_colloc' in n], len(sys.meta_path))",
        directory,
    )
    plain = run_python("import sys; print([], len(sys.meta_path))", directory, PYTHONNOUSERSITE="1")
    assert ended.stdout == plain.stdout
    assert ended.progress is None


def test_a_program_without_torch_notices_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    code = "import json, logging\ntry:\n import torch.optim.nothing\nexcept ImportError: print(1)"
    ended = run_python(code, tmp_path)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "1\n", "")
    assert list(tmp_path.iterdir()) == []


def lay_out_torch(folder: Path, optimizer: str) -> None:
    """A torch of which only the optimizer's module is there."""
    for name in ("torch", "torch/optim"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text("")
    (folder / "torch/optim/optimizer.py").write_text(optimizer)


OLD = """
import functools
class Optimizer:
    def __init__(self): self._hook_for_profile()
    def _hook_for_profile(self):
        def wrap(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs): return function(*args, **kwargs)
            return wrapper
        if not getattr(type(self).step, 'hooked', None):
            type(self).step = wrap(type(self).step)
            type(self).step.hooked = True
class SGD(Optimizer):
    def step(self): return 'stepped'
class Child(SGD):
    def step(self): return super().step()
"""


def test_a_torch_without_hooks_is_counted_all_the_same(tmp_path: Path) -> None:
    lay_out_torch(tmp_path / "site", OLD)
    directory = tmp_path / "progress"
    directory.mkdir()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from torch.optim.optimizer import SGD, Child\n"
        "one, other = SGD(), Child()\n"
        "for _ in range(7): assert one.step() == 'stepped'\n"
        "for _ in range(5): assert other.step() == 'stepped'\n"
    )
    ended = run_python(code, directory)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.progress is not None
    assert ended.progress.steps == 12


@pytest.mark.parametrize("optimizer", ["", "Optimizer = None", "class Optimizer: pass"])
def test_an_odd_torch_is_left_alone(tmp_path: Path, optimizer: str) -> None:
    lay_out_torch(tmp_path, optimizer)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import torch.optim.optimizer as o\n"
        "print(type(o.__loader__).__name__, type(o.__spec__.loader).__name__)\n"
    )
    ended = run_python(code, tmp_path)
    assert ended.stdout == "SourceFileLoader SourceFileLoader\n"
    assert (ended.code, ended.stderr) == (0, "")


def test_a_torch_that_cannot_be_imported_fails_with_its_own_words(tmp_path: Path) -> None:
    lay_out_torch(tmp_path, "raise OSError('libcuda is from yesterday')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport torch.optim.optimizer"
    ended = run_python(code, tmp_path)
    assert ended.code == 1
    assert ended.stderr.endswith("OSError: libcuda is from yesterday\n")


def test_children_have_it_too(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', "
        "'from slurm_colloc import progress; progress.step()'], cwd='/', check=True)"
    )
    ended = run_python(code, tmp_path)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.progress is not None
    assert ended.progress.steps == 1


def test_the_environment_keeps_what_the_user_had() -> None:
    assert injected_environment({}, "/d") == {
        "PYTHONPATH": SITE_DIRECTORY,
        "SLURM_COLLOC_PROGRESS": "/d",
    }
    assert injected_environment({"PYTHONPATH": ""}, "/d")["PYTHONPATH"] == SITE_DIRECTORY
    kept = injected_environment({"PYTHONPATH": "/a::/b"}, "/d")["PYTHONPATH"]
    assert kept == f"{SITE_DIRECTORY}:/a::/b"
    again = injected_environment({"PYTHONPATH": kept}, "/d")["PYTHONPATH"]
    assert again == kept
    assert injected_environment({}, "/d", site="/odd:place") == {}
    assert (Path(SITE_DIRECTORY) / "sitecustomize.py").is_file()


@pytest.mark.parametrize(
    "path",
    [*(PACKAGE / "instrument").rglob("*.py"), PACKAGE / "progress.py", PACKAGE / "__init__.py"],
)
def test_the_source_is_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    future = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    }
    if path.name not in ("sitecustomize.py", "__init__.py"):
        # Otherwise its annotations would be evaluated, and 3.8 knows them not.
        assert "annotations" in future
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add((node.module or "").partition(".")[0])
    # imp is gone since Python 3.12.
    ours = {"slurm_colloc", "_slurm_colloc_instrument", "imp"}
    assert imported - sys.stdlib_module_names <= ours
