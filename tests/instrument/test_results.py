"""Results that a program reports in two lines, in every Python, or logs to a tracker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.store.report_files import keep_metrics, read_metrics

from .counted_programs import ROOT, build_environment, run, run_python
from .test_progress import find_modern_pythons

TWO = "from slurm_colloc import progress\nprogress.metric(loss=0.25, acc=1)\n"


def read(directory: Path) -> dict[str, tuple[float | None, float | None, float | None, str]]:
    """The results of all processes of one start."""
    pack = directory.parent / "pack"
    (pack / "report").mkdir(parents=True, exist_ok=True)
    keep_metrics(str(directory.parent), pack)
    found = read_metrics(pack).get(1, {})
    return {name: (m.last, m.least, m.greatest, m.source) for name, m in found.items()}


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """The directory of a member's start."""
    directory = tmp_path / "0001.1"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("python", find_modern_pythons())
def test_two_lines_report_in_every_python(start: Path, tmp_path: Path, python: str) -> None:
    more = "progress.metric({'val/loss': 3}, loss=0.5)\n"
    ended = run([python, "-c", TWO + more], start, cwd=tmp_path)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
    assert read(start) == {
        "loss": (0.5, 0.25, 0.5, "python"), "acc": (1, 1, 1, "python"),
        "val/loss": (3, 3, 3, "python"),
    }  # fmt: skip


@pytest.mark.parametrize("python", find_modern_pythons())
def test_without_csub_it_does_nothing(start: Path, python: str) -> None:
    environment = {**build_environment(start), "PYTHONPATH": str(ROOT)}
    del environment["SLURM_COLLOC_PROGRESS"]
    code = f"{TWO}progress.metric(7)\nprogress.metric(loss='x', acc=object())\n"
    ended = run([python, "-B", "-c", code], start, environment=environment)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
    assert list(start.iterdir()) == []


def test_nothing_that_is_reported_wrongly_is_noticed_by_the_program(start: Path) -> None:
    code = (
        "from slurm_colloc import progress\n"
        "progress.metric(loss=float('nan'), a='0.3', b=None, c=True, d=[1], e=10**400)\n"
        "progress.metric({5: 1.0, '': 2.0, 'x' * 101: 3.0})\n"
        "progress.metric({f'm{n}': n for n in range(1000)})\n"
        "progress.metric(7)\n"
    )
    ended = run_python(code, start)
    assert (ended.code, ended.stdout, ended.stderr) == (0, "", "")
    found = read(start)
    assert found["loss"] == (None, None, None, "python"), "known, and not finite"
    assert set(found) <= {"loss", *(f"m{n}" for n in range(1000))}
    assert len(found) <= 64


def test_what_was_reported_before_a_kill_is_kept(start: Path) -> None:
    code = f"{TWO}import os\nprogress.metric(loss=0.125)\nos.kill(os.getpid(), 9)\n"
    assert run_python(code, start).code == -signal.SIGKILL
    assert read(start)["loss"][0] == 0.125


def test_a_text_that_has_become_shorter_is_whole(start: Path) -> None:
    code = (
        "from slurm_colloc import progress\nprogress.metric(loss=0.123456789012345)\n"
        "progress.metric(loss=1)\n"
    )
    run_python(code, start)
    assert read(start)["loss"] == (1, 0.123456789012345, 1, "python")


def test_a_full_disk_or_no_directory_is_no_matter(tmp_path: Path) -> None:
    ended = run_python(TWO, tmp_path / "no" / "such")
    assert (ended.code, ended.stderr) == (0, "")


def test_of_ranks_the_first_reports_and_of_other_processes_each(start: Path) -> None:
    for rank in ("0", "1"):
        code = f"from slurm_colloc import progress\nprogress.metric(loss={rank})\n"
        run_python(code, start, RANK=rank, WORLD_SIZE="2")
    assert read(start)["loss"] == (0, 0, 0, "python")
    code = (
        "import os\nfrom slurm_colloc import progress\nprogress.metric(loss=5)\n"
        "if not os.fork():\n    progress.metric(acc=0.5)\n    os._exit(0)\nos.wait()\n"
    )
    run_python(code, start)
    assert read(start)["loss"] == (5, 0, 5, "python")
    assert read(start)["acc"][0] == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"loss": 3}', '{"loss": [1, 1, 1, "python"]}',
        '{"loss": ["1", 1, 1, "python", 1]}',
        '{"loss": [NaN, 1, 1, "python", 1]}', '{"loss": [1e999, 1, 1, "python", 1]}',
        '{"loss": [1, 1, 1, "other", 1]}', '{"loss": [true, 1, 1, "python", 1]}', "[" * 100_000,
        '{"' + "x" * 101 + '": [1, 1, 1, "python", 1]}', " " * (1 << 17),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_left_out(start: Path, text: str) -> None:
    run_python(TWO, start)
    (start / "9.9.metrics").write_text(text)
    assert set(read(start)) == {"loss", "acc"}


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(start: Path) -> None:
    os.mkfifo(start / "9.9.metrics")
    assert read(start) == {}


def test_what_is_kept_twice_is_the_same_and_a_later_start_goes_on(start: Path) -> None:
    run_python(TWO, start)
    first = read(start)
    assert read(start) == first
    for file in start.iterdir():
        file.unlink()
    again = start.parent / "0001.2"
    again.mkdir()
    run_python("from slurm_colloc import progress\nprogress.metric(loss=0.75)\n", again)
    assert read(again)["loss"] == (0.75, 0.25, 0.75, "python")
    assert read(again)["acc"] == first["acc"]


def log_to_mlflow(start: Path, tmp_path: Path, body: str) -> dict[str, Any]:
    pytest.importorskip("mlflow")
    code = (
        "import mlflow\n"
        f"mlflow.set_tracking_uri('sqlite:///{tmp_path}/store.db')\n"
        "with mlflow.start_run() as run:\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    )
    ended = run_python(code, start, HOME=str(tmp_path), PYTHONWARNINGS="ignore")
    assert ended.code == 0, ended.stderr
    return read(start)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_what_is_logged_to_mlflow_is_a_result(start: Path, tmp_path: Path) -> None:
    body = (
        "mlflow.log_metric('loss', 0.5)\n"
        "mlflow.log_metrics({'loss': 0.25, 'acc': 0.75}, step=2)\n"
        "mlflow.MlflowClient().log_metric(run.info.run_id, 'direct', 3.0)\n"
        "mlflow.log_metric('system/gpu', 9)"
    )
    assert log_to_mlflow(start, tmp_path, body) == {
        "loss": (0.25, 0.25, 0.5, "mlflow"), "acc": (0.75, 0.75, 0.75, "mlflow"),
        "direct": (3, 3, 3, "mlflow"),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_what_is_logged_to_wandb_is_a_result(start: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    code = (
        "import wandb\n"
        "with wandb.init(project='p', mode='offline') as run:\n"
        "    run.log({'loss': 0.5, 'word': 'x', 'eval': {'acc': 1}})\n"
        "    wandb.log({'loss': 0.25})\n"
    )
    ended = run_python(
        code, start, HOME=str(tmp_path), WANDB_DIR=str(tmp_path), WANDB_SILENT="true"
    )
    assert ended.code == 0, ended.stderr
    assert read(start) == {
        "loss": (0.25, 0.25, 0.5, "wandb"), "eval.acc": (1, 1, 1, "wandb")
    }  # fmt: skip


def test_the_file_is_one_line_of_json(start: Path) -> None:
    run_python(TWO, start)
    (file,) = start.glob("*.metrics")
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(json.loads(file.read_text())) == ["loss", "acc"]
