"""The import contracts hold, and each of them breaks when a forbidden import is planted."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
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
LAB = "csub works without the lab"
ONE_SIGNALLER = "One module of the node side signals"

# How import-linter prints a broken contract, and in it what is forbidden and which imports do it.
SECTION = re.compile(r"^(.+)\n-+\n", re.MULTILINE)
FORBIDDEN = re.compile(r"^(\S+ is not allowed to import \S+):\n\n((?:.+\n)+)", re.MULTILINE)

# The package, an import that its contract forbids it, and the contract.
PLANTED_IMPORTS = (
    ("model", "import slurm_colloc.store", LAYERS),
    ("planning", "import slurm_colloc.runtime", LAYERS),
    ("store", "import slurm_colloc.slurm", LAYERS),
    ("slurm", "import slurm_colloc.store", LAYERS),
    ("store", "import slurm_colloc.planning", LAYERS),
    ("submission", "import slurm_colloc.runtime", LAYERS),
    ("report", "import slurm_colloc.submission", LAYERS),
    ("submission", "import slurm_colloc.diagnosis", LAYERS),
    ("diagnosis", "import slurm_colloc.cli", LAYERS),
    ("runtime", "import slurm_colloc.cli", LAYERS),
    ("cli", "import slurm_colloc.__main__", LAYERS),
    ("model", "import subprocess", PURE),
    ("model", "import jinja2", PURE),
    ("planning", "import slurm_colloc.settings", PURE),
    ("planning", "import typer", PURE),
    ("runtime", "import typer", LIGHT_RUNTIME),
    ("runtime", "import jinja2", LIGHT_RUNTIME),
    ("runtime", "def late():\n    import pandas", LIGHT_RUNTIME),
    ("host", "import typer", LIGHT_RUNTIME),
    ("host", "import signal", ONE_SIGNALLER),
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
    ("report", "import slurm_colloc.learning", LAYERS),
    ("report", "import slurm_colloc.store.profile_updates", READING),
    ("metrics", "import slurm_colloc.planning", LAYERS),
    ("metrics", "import slurm_colloc.report", LAYERS),
    ("metrics", "import os", PURE),
    ("instrument", "import slurm_colloc.errors", LAYERS),
    ("instrument", "import slurm_colloc.progress", LAYERS),
    ("monitor", "import rich", LIGHT_MONITOR),
    ("monitor", "import pandas", LIGHT_MONITOR),
)

# What starts a program, or talks to NVML.
PLANTED_STARTS = (
    "import subprocess\n",
    "from subprocess import run\n",
    "import os\n\nos.system('true')\n",
    "import os\n\nos.popen('true')\n",
    "import pynvml\n",
)
OWNER = "slurm_colloc/slurm/run_command.py"


@dataclass(frozen=True)
class Findings:
    """What import-linter found: its exit status and words, and of these what breaks a contract.

    Args:
        status: 1 where a contract is broken.
        output: All that it printed.
        broken: By contract and by what is forbidden, such as `slurm_colloc.model is not allowed to
            import os`, the chains of imports that do it.
    """

    status: int
    output: str
    broken: dict[str, dict[str, str]]


def copy_checkout(folder: Path) -> Path:
    """Copy what the contracts look at: the packages and pyproject.toml."""
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lab", folder / "lab", ignore=unwanted)
    shutil.copytree(ROOT / "slurm_colloc", folder / "slurm_colloc", ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint_imports(checkout: Path) -> Findings:
    """Run import-linter in a checkout."""
    done = subprocess.run(
        [LINT_IMPORTS, "--no-cache"],
        cwd=checkout,
        env={**os.environ, "COLUMNS": "1000", "PYTHONPATH": str(checkout / "lab")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    parts = SECTION.split(output.partition("Broken contracts\n")[2])
    broken = {
        contract: dict(FORBIDDEN.findall(text))
        for contract, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    return Findings(done.returncode, output, broken)


@pytest.fixture(scope="module")
def planted_imports(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """What import-linter finds where all are planted, each in a module of its own."""
    checkout = copy_checkout(tmp_path_factory.mktemp("planted"))
    for number, (package, statement, _) in enumerate(PLANTED_IMPORTS):
        path = checkout / "slurm_colloc" / package / f"planted_{number}.py"
        path.write_text(f"{statement}\n")
    late = checkout / "slurm_colloc" / "planning" / "planted_lab.py"
    late.write_text("def late():\n    import slurm_colloc_lab.calibration\n")
    return lint_imports(checkout)


def test_every_contract_is_kept(tmp_path: Path) -> None:
    found = lint_imports(copy_checkout(tmp_path))
    assert found.status == 0, found.output
    for contract in sorted({contract for _, _, contract in PLANTED_IMPORTS}):
        assert f"{contract} KEPT" in found.output
    assert found.broken == {}


@pytest.mark.parametrize(
    ("number", "package", "statement", "contract"),
    [
        pytest.param(number, *planted, id="-".join(planted))
        for number, planted in enumerate(PLANTED_IMPORTS)
    ],
)
def test_a_planted_import_breaks_its_contract(
    planted_imports: Findings, number: int, package: str, statement: str, contract: str
) -> None:
    assert planted_imports.status == 1, planted_imports.output
    assert f"{contract} BROKEN" in planted_imports.output
    # Others break the contract, too: it has to be this module, by this import and no longer way.
    target = statement.rsplit(maxsplit=1)[-1]
    rule = f"slurm_colloc.{package} is not allowed to import {target}"
    assert rule in planted_imports.broken[contract], planted_imports.output
    chain = re.escape(f"slurm_colloc.{package}.planted_{number} -> {target} ") + r"\(l\.\d+\)$"
    assert re.search(rf"^-\s+{chain}", planted_imports.broken[contract][rule], re.MULTILINE)


def test_csub_imports_nothing_of_the_lab_not_even_late(planted_imports: Findings) -> None:
    broken = planted_imports.broken[LAB]
    chains = broken["slurm_colloc is not allowed to import slurm_colloc_lab"]
    assert "slurm_colloc.planning.planted_lab -> slurm_colloc_lab.calibration (l.2)" in chains


def test_a_module_without_a_place_in_the_layers_is_refused(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path)
    (checkout / "slurm_colloc" / "utils.py").write_text("")
    found = lint_imports(checkout)
    assert found.status == 1, found.output
    assert "utils" in found.output


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    """Who imports whom."""
    return grimp.build_graph("slurm_colloc", include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize("package", ["slurm_colloc.runtime", "slurm_colloc.host"])
def test_what_runs_on_the_node_needs_only_the_standard_library(
    imports: grimp.ImportGraph, package: str
) -> None:
    modules = {package, *imports.find_descendants(package)}
    reachable = modules.union(*(imports.find_upstream_modules(module) for module in modules))
    outside = {name.split(".")[0] for name in reachable} - {"slurm_colloc"}
    assert outside - sys.stdlib_module_names - OPTIONAL_ON_THE_NODE == set()


@pytest.fixture(scope="module")
def banned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The lines that ruff's TID251 complains of, by file: one for each start, and an owner's."""
    checkout = tmp_path_factory.mktemp("starts")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    files = {name_start(number): code for number, code in enumerate(PLANTED_STARTS)}
    for name, code in {**files, OWNER: "".join(PLANTED_STARTS)}.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(code)
    done = subprocess.run(
        [RUFF, "check", "--select=TID251", "--no-cache", "--output-format=json", "."],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, list[int]] = {}
    for problem in json.loads(done.stdout):
        assert problem["code"] == "TID251", problem
        name = Path(problem["filename"]).relative_to(checkout.resolve()).as_posix()
        found.setdefault(name, []).append(problem["location"]["row"])
    return found


def name_start(number: int) -> str:
    """A file of a package that may not start anything."""
    return f"slurm_colloc/planning/planted_{number}.py"


@pytest.mark.parametrize("number", range(len(PLANTED_STARTS)), ids=PLANTED_STARTS)
def test_only_owners_of_an_outside_program_may_start_one(
    banned: dict[str, list[int]], number: int
) -> None:
    last = PLANTED_STARTS[number].count("\n")
    assert banned[name_start(number)] == [last]
    # Its file exists, and all are planted in it.
    assert (ROOT / OWNER).exists()
    assert OWNER not in banned


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


def test_a_command_that_reads_loads_neither_typer_nor_what_submits(tmp_path: Path) -> None:
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
    assert "slurm_colloc.submission.upkeep.sweep" in loaded
    unwanted = (
        "pydantic",
        "typer",
        "slurm_colloc.planning",
        "slurm_colloc.submission.submit",
        "slurm_colloc.submission.packs.submit_batch",
        "jinja2",
    )
    assert sorted(name for name in loaded if name.startswith(unwanted)) == []
