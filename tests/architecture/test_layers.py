"""The import contracts hold, and each of them breaks when a forbidden import is planted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")
RUFF = Path(sys.executable).with_name("ruff")

# Third-party modules that node code may load where they are installed, and works without.
OPTIONAL_ON_THE_NODE = {"pynvml", "pyslurm"}

LAYERS = "Imports go one way"
PURE = "Values and planning touch nothing outside"
LIGHT_RUNTIME = "What runs on the node stays light"
LIGHT_SUBMISSION = "Submission loads no numerical library"
LIGHT_MONITOR = "The monitor stays small"
READING = "Reading writes nothing that is learned"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy what the contracts look at: the package and pyproject.toml."""
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "slurm_colloc", tmp_path / "slurm_colloc", ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(checkout: Path) -> tuple[int, str]:
    """Run import-linter in a checkout; return its exit status and output as one line of words."""
    done = subprocess.run(
        [LINT_IMPORTS, "--no-cache"],
        cwd=checkout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def plant(checkout: Path, package: str, statement: str) -> None:
    """Add a module with one import to a package."""
    (checkout / "slurm_colloc" / package / "planted.py").write_text(f"{statement}\n")


def test_every_contract_is_kept(checkout: Path) -> None:
    status, output = lint_imports(checkout)
    assert status == 0, output
    for contract in (LAYERS, PURE, LIGHT_RUNTIME, LIGHT_SUBMISSION, LIGHT_MONITOR, READING):
        assert f"{contract} KEPT" in output


@pytest.mark.parametrize(
    ("package", "statement", "contract"),
    [
        ("model", "import slurm_colloc.store", LAYERS),
        ("planning", "import slurm_colloc.runtime", LAYERS),
        ("store", "import slurm_colloc.slurm", LAYERS),
        ("slurm", "import slurm_colloc.store", LAYERS),
        ("store", "import slurm_colloc.planning", LAYERS),
        ("submission", "import slurm_colloc.runtime", LAYERS),
        ("report", "import slurm_colloc.submission", LAYERS),
        ("report", "import slurm_colloc.learning", LAYERS),
        ("report", "import slurm_colloc.store.learned.profile_updates", READING),
        ("submission", "import slurm_colloc.diagnosis", LAYERS),
        ("diagnosis", "import slurm_colloc.cli", LAYERS),
        ("runtime", "import slurm_colloc.cli", LAYERS),
        ("cli", "import slurm_colloc.sandbox", LAYERS),
        ("sandbox", "import slurm_colloc.cli", LAYERS),
        ("cli", "import slurm_colloc.__main__", LAYERS),
        ("model", "import subprocess", PURE),
        ("model", "import jinja2", PURE),
        ("planning", "import slurm_colloc.settings", PURE),
        ("planning", "import typer", PURE),
        ("runtime", "import typer", LIGHT_RUNTIME),
        ("runtime", "import jinja2", LIGHT_RUNTIME),
        ("runtime", "def late():\n    import pandas", LIGHT_RUNTIME),
        ("host", "import typer", LIGHT_RUNTIME),
        ("administration", "import typer", LIGHT_RUNTIME),
        ("administration", "import slurm_colloc.submission", LAYERS),
        ("host", "import slurm_colloc.store", LAYERS),
        ("host", "import slurm_colloc.slurm", LAYERS),
        ("host", "import slurm_colloc.runtime", LAYERS),
        ("submission", "import pandas", LIGHT_SUBMISSION),
        ("submission", "import torch", LIGHT_SUBMISSION),
        ("monitor", "import slurm_colloc.runtime", LAYERS),
        ("runtime", "import slurm_colloc.monitor", LAYERS),
        ("report", "import slurm_colloc.monitor", LAYERS),
        ("metrics", "import slurm_colloc.planning", LAYERS),
        ("metrics", "import slurm_colloc.report", LAYERS),
        ("metrics", "import os", PURE),
        ("instrument", "import slurm_colloc.errors", LAYERS),
        ("instrument", "import slurm_colloc.progress", LAYERS),
        ("monitor", "import rich", LIGHT_MONITOR),
        ("monitor", "import pandas", LIGHT_MONITOR),
    ],
)
def test_a_planted_import_breaks_its_contract(
    checkout: Path, package: str, statement: str, contract: str
) -> None:
    plant(checkout, package, statement)
    status, output = lint_imports(checkout)
    assert status == 1, output
    assert f"{contract} BROKEN" in output
    assert f"slurm_colloc.{package}.planted" in output


def test_a_module_without_a_place_in_the_layers_is_refused(checkout: Path) -> None:
    (checkout / "slurm_colloc" / "utils.py").write_text("")
    status, output = lint_imports(checkout)
    assert status == 1, output
    assert "utils" in output


@pytest.mark.parametrize("package", ["slurm_colloc.runtime", "slurm_colloc.host"])
def test_what_runs_on_the_node_needs_only_the_standard_library(package: str) -> None:
    graph = grimp.build_graph("slurm_colloc", include_external_packages=True, cache_dir=None)
    modules = {package, *graph.find_descendants(package)}
    reachable = modules.union(*(graph.find_upstream_modules(module) for module in modules))
    outside = {name.split(".")[0] for name in reachable} - {"slurm_colloc"}
    assert outside - sys.stdlib_module_names - OPTIONAL_ON_THE_NODE == set()


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess\n",
        "from subprocess import run\n",
        "import os\n\nos.system('true')\n",
        "import os\n\nos.popen('true')\n",
        "import pynvml\n",
    ],
)
@pytest.mark.parametrize(
    ("module", "may"),
    [("slurm_colloc/planning/planted.py", False), ("slurm_colloc/slurm/run_command.py", True)],
)
def test_only_owners_of_an_outside_program_may_start_one(module: str, may: bool, code: str) -> None:
    done = subprocess.run(
        [RUFF, "check", "--select", "TID251", "--no-cache", "--stdin-filename", module, "-"],
        cwd=ROOT,
        input=code,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if may else 1), done.stdout + done.stderr
    assert ("TID251" in done.stdout) is not may


@pytest.mark.parametrize(
    "package",
    ["runtime", "host", "submission", "planning", "metrics", "model", "store", "instrument"],
)
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    # Searches load these when they need them; pyproject.toml names them for the contract, too.
    on_arrays = {
        "array_arithmetic",
        "cost_columns",
        "sharing_trials",
        "subset_costs",
        "subset_partition",
    }
    names = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "slurm_colloc" / package).rglob("*.py")
        if path.name not in {"__init__.py", "__main__.py"}
        and not (package == "planning" and path.stem in on_arrays)
    )
    code = "import importlib, sys\n"
    code += "".join(f"importlib.import_module({name!r})\n" for name in names)
    code += "print(sorted({'pandas', 'pyarrow', 'torch', 'numpy', 'rich'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_command_that_reads_loads_neither_pydantic_nor_what_submits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "slurm_colloc", "queue"],
        cwd=ROOT,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"typer", "slurm_colloc.submission.upkeep.sweep"} <= loaded
    unwanted = ("pydantic", "slurm_colloc.planning", "slurm_colloc.submission.submit", "jinja2")
    assert sorted(name for name in loaded if name.startswith(unwanted)) == []
