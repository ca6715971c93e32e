"""The commands that are called most load no more modules than they are allowed.

A budget is raised only for what the command needs in most calls; the rest is loaded where it is
used. `make bench GROUPS=startup` measures what modules cost.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

_LOOK = """
import json, sys
# Where coverage is measured, it loads some itself.
before = set(sys.modules)
sys.path.insert(0, sys.argv[2])
{first}
from slurm_colloc.__main__ import run
status = run(json.loads(sys.argv[1]))
sys.stdout.flush()
loaded = sorted(set(sys.modules) - before)
print(json.dumps(loaded), file=sys.stderr)
sys.exit(status)
"""
_SLURM = {
    "sinfo": 'echo "gpu*|64|512000|gpu:4|1-00:00:00|n/a"',
    "squeue": "true",
    "sacct": "true",
    "scontrol": "echo MaxArraySize = 1001",
    "sbatch": "echo 4711",
}


@dataclass(frozen=True)
class Budget:
    """How many modules a command may load.

    Attributes:
        own: Of csub.
        all: With those of Python, which differ between its releases, and of other packages.
        others: The other packages.
    """

    own: int
    all: int
    others: frozenset[str] = frozenset()


BUDGETS = {
    "--help": Budget(own=15, all=90),
    "a.sh": Budget(own=88, all=195),
    "queue": Budget(own=70, all=170),
    "report": Budget(own=98, all=270, others=frozenset({"rich"})),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with a script, and with Slurm commands that give fixed answers."""
    (tmp_path / "bin").mkdir()
    for name, body in _SLURM.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "a.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
    # The first submission of all renders the batch script, which is kept.
    list_loaded(tmp_path, "a.sh")
    return tmp_path


def list_for(home: Path, word: str) -> set[str]:
    """What a command loads: a submission finds no open pack, the others find one."""
    if word == "a.sh":
        for path in (home / "state/slurm_colloc/open").iterdir():
            path.unlink()
    return list_loaded(home, word)


def list_loaded(home: Path, word: str, first: str = "") -> set[str]:
    """The modules that a command has loaded at its end, beyond those of a bare interpreter.

    Args:
        home: The directory.
        word: The command.
        first: A line of Python that runs before.
    """
    ended = subprocess.run(
        [sys.executable, "-c", _LOOK.format(first=first), json.dumps([word]), str(home)],
        cwd=home,
        env={
            "PATH": f"{home / 'bin'}:{os.defpath}",
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stderr.splitlines()[-1]))


def find_excess(loaded: set[str], budget: Budget) -> list[str]:
    """What breaks a budget, a sentence each."""
    own = {name for name in loaded if name.partition(".")[0] == "slurm_colloc"}
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    others -= {"slurm_colloc", *budget.others}
    found = [f"it loads {name}" for name in sorted(others)]
    if len(own) > budget.own:
        found.append(f"{len(own)} modules of csub, {budget.own} are allowed: {sorted(own)}")
    if len(loaded) > budget.all:
        found.append(f"{len(loaded)} modules, {budget.all} are allowed: {sorted(loaded)}")
    return found


@pytest.mark.parametrize("word", BUDGETS)
def test_a_command_loads_no_more_modules_than_its_budget(home: Path, word: str) -> None:
    assert find_excess(list_for(home, word), BUDGETS[word]) == []


def test_a_heavy_import_breaks_a_budget(home: Path) -> None:
    (home / "pandas").mkdir()
    (home / "pandas" / "__init__.py").write_text("")
    loaded = list_loaded(home, "queue", "import pandas")
    assert find_excess(loaded, BUDGETS["queue"]) == ["it loads pandas"]


def test_budgets_are_not_far_above_what_is_loaded(home: Path) -> None:
    for word, budget in BUDGETS.items():
        own = [name for name in list_for(home, word) if name.startswith("slurm_colloc")]
        assert len(own) >= budget.own - 8, (word, len(own))


def test_dataclasses_are_defined_late_except_in_what_root_loads() -> None:
    package = Path(__file__).resolve().parents[2] / "slurm_colloc"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"^(?:from|import) dataclasses\b", path.read_text(), re.MULTILINE)
    }
    roots = {f"model/{name}.py" for name in ("comment_token", "mig_layout", "mig_profiles")}
    outside = {name for name in found if not name.startswith("host/")}
    assert outside == {"model/late_definitions.py", *roots}
