"""`csub calibrate` from start to end: real trainings on the CPU, and on a simulated GPU."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.store.calibrations import read_calibration

from ..calibration.short_cells import PATIENCE_S, is_running, list_descendants
from ..calibration.tables import TABLES
from ..wait_until import wait_until

pytestmark = pytest.mark.long

CSUB = [sys.executable, "-m", "slurm_colloc"]


def make_environment(tmp_path: Path) -> dict[str, str]:
    names = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME")
    return {**os.environ, **{name: str(tmp_path / name.lower()) for name in names}}


def run(tmp_path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CSUB, "calibrate", *map(str, words)],
        env=make_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )


def list_written(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.rglob("*.json") if path.is_file()]


def test_recorded_rows_are_fitted_and_their_errors_shown(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    out = tmp_path / "site" / "h200.json"
    # Rows of these do not tell the power of the idle GPU.
    ended = run(tmp_path, "--fit", *TABLES[:2], "--idle-power", 79, "--out", out)
    assert ended.returncode == 0, ended.stderr
    looked_for = "csub looks for nvidia-h200.json, and finds no other name"
    assert ended.stderr == f"csub: written: {out}; {looked_for}\n"
    assert stat.S_IMODE(out.parent.stat().st_mode) == 0o755, "other users can read it"
    assert stat.S_IMODE(out.stat().st_mode) == 0o644
    assert "NVIDIA H200: fitted to 206 packs" in ended.stdout
    for column in ("mean", "p95", "bias", "of it", "<= 2.5x"):
        assert f"{column}: " in ended.stdout or f"{column}, p95: " in ended.stdout, column
    for words in ("unseen pair ", "unseen triple", "pack of 7", "pack of 12", "unseen family"):
        assert words in ended.stdout
    found = read_calibration(out)
    assert (found.gpu_model, found.idle_power_w, set(found.modes)) == (
        "NVIDIA H200", 79.0, {"mps", "timeslice"},
    )  # fmt: skip


def test_a_folder_gets_the_file_that_csub_looks_for(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    folder = tmp_path / "cal"
    folder.mkdir()
    ended = run(tmp_path, "--fit", *TABLES, "--out", folder, "--json")
    written = folder / "nvidia-h200.json"
    assert (ended.returncode, ended.stderr) == (0, f"csub: written: {written}\n")
    assert json.loads(ended.stdout)["written"] == str(written)
    found = read_calibration(written)
    assert found.gpu_model == "NVIDIA H200"
    assert found.idle_power_w == pytest.approx(79.7, abs=0.1)
    # What can only be seen at the end costs no more than the file.
    written.unlink()
    written.mkdir()
    ended = run(tmp_path, "--fit", *TABLES, "--out", folder)
    assert ended.returncode == 6
    assert "NVIDIA H200: fitted to 399 packs" in ended.stdout
    assert ended.stderr == f"csub: error: cannot write {written}: Is a directory\n"


def test_without_out_a_fit_writes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    ended = run(tmp_path, "--fit", *TABLES, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    assert told["schema"] == 1
    assert told["written"] is None
    assert told["calibration"]["gpu_model"] == "NVIDIA H200"
    assert list(told["set_aside"]) == ["timeslice"]
    assert {each["kind"] for each in told["errors"]} >= {"unseen pair", "unseen job"}
    assert list_written(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--fit"], 2, "--fit needs files of rows"),
        (["rows.csv"], 2, "rows are read only with --fit"),
        (["--idle-power=70"], 2, "--idle-power is read only with --fit"),
        (["--fit", "rows.csv", "--raw=x.csv"], 2, "with --fit nothing is measured"),
        (["--fit", "/nowhere.csv"], 2, "cannot read /nowhere.csv: it does not exist"),
        (["--fit", "/dev/null"], 2, "cannot read /dev/null: it is a device, no file"),
        # Nothing is measured or fitted first, nor is there a GPU.
        (["--out=/proc/x.json"], 2, "cannot write /proc/x.json: No such file or directory\n"),
        (["--out=/dev/null"], 2, "cannot write /dev/null: it is a device, no file"),
        (["--out=/dev/null/d/x.json"], 2, "cannot write /dev/null/d/x.json: Not a directory"),
        (["--out=/dev/null/x.json"], 2, "cannot write /dev/null/x.json: "),
        (
            ["--fit", "/nowhere.csv", "--idle-power=-5"],
            2,
            "--idle-power: must be from 0 to 10000, is -5.0",
        ),
        (["--fit", "/nowhere.csv", "--idle-power=nan"], 2, "--idle-power: must be"),
        (["--minutes", "0"], 2, "--minutes=0 must be above 0"),
        (["--minutes", "nan"], 2, "--minutes=nan must be above 0"),
        (["--out="], 2, "it names no file"),
        (["--raw="], 2, "it names no file"),
        (["--scale", "huge"], 2, "--scale=huge must be full or tiny"),
        (["--scale", "\x1b[2J\n"], 2, "--scale=\\x1b[2J\\n must be full or tiny"),
        (["--fit", "/\x1b[2J\n"], 2, "cannot read /\\x1b[2J\\n: it does not exist"),
        (["--out=/proc/\x1b[2J\n"], 2, "cannot write /proc/\\x1b[2J\\n: No such file"),
        ([f"--out=/{'x' * 300}"], 2, "File name too long"),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: list[str], status: int, said: str) -> None:
    pytest.importorskip("scipy")
    ended = run(tmp_path, *words)
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr.startswith("csub: error: ")
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--fit", "/nowhere.csv"], ["--fit", "rows.csv"], ["--scale=huge"], ["--gpu=GPU-9"]]
)
def test_a_refusal_leaves_no_folder(tmp_path: Path, words: list[str]) -> None:
    pytest.importorskip("scipy")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    words = [str(tmp_path / word) if word == "rows.csv" else word for word in words]
    out = tmp_path / "site" / "deep" / "x.json"
    ended = run(tmp_path, *words, f"--out={out}")
    assert ended.returncode != 0
    assert not out.parent.parent.exists()


def test_a_table_that_a_spreadsheet_wrote_is_read(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    table = tmp_path / "rows.csv"
    table.write_bytes(b"\xef\xbb\xbf" + TABLES[0].read_bytes())
    told = [run(tmp_path, "--fit", path, "--json") for path in (table, TABLES[0])]
    assert told[0].returncode == 0, told[0].stderr
    assert told[0].stdout == told[1].stdout


@pytest.mark.torch
def test_on_the_cpu_everything_is_measured_and_nothing_claimed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    raw = tmp_path / "rows.csv"
    ended = run(tmp_path, "--gpu=cpu", "--scale=tiny", "--minutes=1", "--raw", raw)
    assert ended.returncode == 2, ended.stderr
    assert "csub: timeslice-1: " in ended.stderr
    assert "cells measured; fitting" in ended.stderr
    assert "no training has been measured alone with figures of the GPU" in ended.stderr
    assert raw.read_text().count("\n") > 20
    assert list_written(tmp_path) == []


@pytest.mark.torch
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_leaves_no_process_and_no_calibration(
    tmp_path: Path, number: signal.Signals
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    raw = tmp_path / "rows.csv"
    process = subprocess.Popen(
        [*CSUB, "calibrate", "--gpu=cpu", "--scale=tiny", "--minutes=3", f"--raw={raw}"],
        env=make_environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: raw.exists() and raw.read_text().count("\n") > 1, "there is a row")
        started = list_descendants([process.pid])
        assert len(started) > 5
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 128 + number
        assert "Traceback" not in said
        assert not [pid for pid in started if is_running(pid)]
        assert list_written(tmp_path) == []
    finally:
        process.kill()
        process.communicate()


def test_the_help_of_csub_loads_no_numerical_library() -> None:
    program = (
        "import sys\n"
        "from slurm_colloc.__main__ import run\n"
        "status = run(['calibrate', '--help'])\n"
        "loaded = {'torch', 'numpy', 'scipy', 'pandas'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else status)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--minutes" in ended.stdout
