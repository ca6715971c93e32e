"""What a pack starts by name: it may have been submitted, or begun, before an upgrade."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_colloc
from slurm_colloc.runtime.path_shims import write_shims
from slurm_colloc.runtime.step_command import WRAPPER

PACKAGE = Path(slurm_colloc.__file__).parent
ROOT = PACKAGE.parent

PROMISED = (
    "slurm_colloc.runtime",
    "slurm_colloc.runtime.programs.enter",
    "slurm_colloc.runtime.programs.examine_node",
    "slurm_colloc.runtime.programs.move_memory",
    "slurm_colloc.monitor",
)
"""docs/reliability.md has them, too."""

_STARTED = re.compile(r"-m[\"']?,? [\"']?(slurm_colloc(?:\.\w+)*)")


@pytest.mark.parametrize("module", PROMISED)
def test_each_of_them_is_a_program(module: str) -> None:
    code = f"import runpy, sys; sys.argv = ['x']; runpy.run_module({module!r}, run_name='__main__')"
    ended = subprocess.run(
        [sys.executable, "-IB", "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    # It was found and ran, without the arguments that it needs, or to the end of its input.
    assert "No module named" not in ended.stderr
    assert (ended.returncode == 0) == module.endswith(".move_memory")


def test_the_wrapper_has_its_place() -> None:
    # A runner names it by its path, from before an upgrade in its own place.
    assert Path(WRAPPER).relative_to(PACKAGE) == Path("runtime/programs/wrapper.py")
    assert Path(WRAPPER).is_file()


def test_a_shim_names_its_program_by_its_path(tmp_path: Path) -> None:
    write_shims(tmp_path, sys.executable)
    program = PACKAGE / "runtime" / "programs" / "shim.py"
    assert program.is_file()
    assert f" {program} " in (tmp_path / "bin" / "scancel").read_text()


def test_nothing_else_is_started_by_name_in_a_pack() -> None:
    folders = [PACKAGE / name for name in ("runtime", "submission", "cli/change", "store")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    files += (ROOT / "templates").iterdir()
    started = {name for path in files for name in _STARTED.findall(path.read_text())}
    assert started == set(PROMISED) - {"slurm_colloc.monitor"}


def test_the_promise_is_written_down() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    programs = [f"slurm_colloc/runtime/programs/{name}.py" for name in ("wrapper", "shim")]
    for name in (*PROMISED, *programs):
        assert f"`{name}`" in text
