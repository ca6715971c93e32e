"""What failed along with others gets a second look, alone; what fails then has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import needs_gpu

CHECKOUT = Path(__file__).parents[2]
SETTINGS = "[pytest]\nmarkers =\n    slurm: on a real Slurm\n    gpu: on a GPU\n"
AT_FIRST = """
def fails_at_first(name):
    seen = pathlib.Path(name)
    known = seen.exists()
    seen.touch()
    assert known
"""


def run(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_it.py").write_text(f"import os, pathlib, pytest\n{AT_FIRST}\n{text}\n")
    code = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); from tests.again import main; "
    return subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit(main(sys.argv[1:]))", *words],
        cwd=folder,
        # Plugins that happen to be installed only cost time.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


SLURM = "@pytest.mark.slurm\ndef test_{name}():\n    {body}\n"


@pytest.mark.parametrize(
    "words", [(), ("--along=-p xdist -n 2 --dist loadfile",), ("-k", "late or good")]
)
def test_what_passes_alone_has_passed(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = SLURM.format(name="late", body="fails_at_first('late')") + "def test_good(): pass\n"
    ended = run(tmp_path, text, *words)
    assert ended.returncode == 0
    told, _, again = ended.stdout.partition(
        "A second look, alone, at what failed along with others:\n"
    )
    assert "1 failed, 1 passed" in told
    assert again.startswith("  test_it.py::test_late\n")
    assert "1 passed" in again


def test_workers_find_all_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in ("slurm_colloc/module.py", "tests/test_them.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("def test_true():\n    assert True\n")
    ended = run(tmp_path, "def test_other(): pass\n", "--along=-p xdist -n 2", "-k", "true")
    assert "1 passed" in ended.stdout
    found = {path.name.partition(".")[0] for path in tmp_path.rglob("__pycache__/*.pyc")}
    assert found == {"module", "test_them", "test_it"}


def test_what_fails_again_has_failed(tmp_path: Path) -> None:
    text = SLURM.format(name="never", body="assert False")
    text += "def test_late(): fails_at_first('late')\n"
    ended = run(tmp_path, text)
    assert ended.returncode == 1
    assert "1 failed, 1 passed" in ended.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "text",
    [
        "@pytest.mark.gpu\n" + SLURM.format(name="gpu", body="fails_at_first('gpu')"),
        "".join(SLURM.format(name=n, body=f"fails_at_first('{n}')") for n in range(9)),
    ],
)
def test_there_is_no_second_look(tmp_path: Path, text: str) -> None:
    """On a GPU, or at many failures."""
    ended = run(tmp_path, text)
    assert ended.returncode == 1
    assert "second look" not in ended.stdout


def test_a_run_that_did_not_end_is_not_repeated(tmp_path: Path) -> None:
    ended = run(tmp_path, SLURM.format(name="stops", body="os._exit(3)"))
    assert ended.returncode == 3
    ended = run(tmp_path, "import nothing_of_this_name\n")
    assert ended.returncode == pytest.ExitCode.INTERRUPTED
    assert "second look" not in ended.stdout


def test_what_failed_in_an_earlier_run_is_forgotten(tmp_path: Path) -> None:
    text = SLURM.format(name="late", body="assert os.environ.get('FINE')")
    assert run(tmp_path, text).returncode == 1
    ended = run(tmp_path, "def test_good(): pass\n")
    assert ended.returncode == 0
    assert "second look" not in ended.stdout


@pytest.mark.parametrize(
    ("name", "keywords", "needed"),
    [
        ("tests/gpu/test_gpu_mps.py::test_one", {"gpu", "tests"}, True),
        ("tests/gpu/test_mix.py::test_one[gpu]", {"gpu", "tests"}, False),
        ("tests/mps/test_stopping.py::test_one", {"gpu", "mps"}, True),
        ("tests/mps/test_stopping.py::test_one", {"mps"}, False),
    ],
)
def test_a_folder_of_that_name_is_no_mark(name: str, keywords: set[str], needed: bool) -> None:
    assert needs_gpu(name, keywords) is needed
