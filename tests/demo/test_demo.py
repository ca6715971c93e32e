"""`make demo` shows what it promises, with Slurm and without."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).with_name("demo.sh")

pytestmark = [pytest.mark.demo, pytest.mark.torch]


def run_demo(path: str, page: Path) -> str:
    ended = subprocess.run(
        ["sh", str(DEMO)],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{path}",
            "CSUB_DEMO_PAGE": str(page),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def check_story(shown: str, job: str, mode: str) -> None:
    """Four members run at once in that mode, train, and end as they should."""
    first_queue = shown.partition("$ csub queue")[2].partition("\n$ ")[0]
    rows = re.findall(rf"^{job}/\d +\S+ +(\w+) +{mode}", first_queue, re.MULTILINE)
    assert rows.count("RUNNING") >= 3, shown
    logs = shown.rpartition(f"$ csub logs {job}\n")[2]
    accuracies = re.findall(r"\d+ steps, accuracy ([\d.]+)", logs)
    assert len(accuracies) == 3, shown
    assert all(float(accuracy) > 0.8 for accuracy in accuracies), shown
    assert "the loss is" in logs
    assert re.search(rf"{job}/4 .*FAILED +exit 3:0", shown)
    assert len(re.findall(rf"{job}/[123] .*COMPLETED +exit 0:0", shown)) == 3
    sentence, path = shown.splitlines()[-2:]
    assert sentence.startswith("4 trainings together took "), sentence
    assert f"1 failed ({job}/4: exit code 3)." in sentence
    page = Path(path)
    assert page.name == "page.html"
    assert html.escape(sentence) in page.read_text()


@pytest.mark.slurm
def test_four_trainings_share_one_slurm_job(tmp_path: Path) -> None:
    if shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("Slurm is not installed")
    shown = run_demo(os.environ["PATH"], tmp_path / "page.html")
    answer = re.search(r"members (\d+)/1-\1/4 in 1 pack", shown)
    assert answer
    # The sandbox's GPUs are simulated, where there is a compiler for them.
    check_story(shown, answer[1], "mps" if shutil.which("cc") else "timeslice")
    assert len(re.findall(rf"^ +{answer[1]} +gpu ", shown, re.MULTILINE)) == 1


def test_without_slurm_the_demo_runs_plain_processes_and_says_so(tmp_path: Path) -> None:
    # What the demo's shell needs, and nothing of Slurm.
    for name in (
        "sh",
        "dirname",
        "mkdir",
        "mktemp",
        "rm",
        "cp",
        "sed",
        "grep",
        "sleep",
        "bash",
        "env",
    ):
        program = shutil.which(name)
        assert program, name
        (tmp_path / name).symlink_to(program)
    ended = subprocess.run(
        ["sh", "-c", f"PATH={tmp_path}:/usr/sbin:/sbin command -v slurmctld"], check=False
    )
    if ended.returncode == 0:
        # The demo also looks where slurmctld usually lies: hide that, as on a machine without it.
        hide = Path("/usr/sbin/slurmctld")
        if os.geteuid() != 0 or not hide.exists():
            pytest.skip("Slurm is installed, and only root can hide it")
        shown = run_hidden(tmp_path)
    else:
        shown = run_demo(str(tmp_path), tmp_path / "page.html")
    assert "There is no Slurm here" in shown
    answer = re.search(r"^Submitted batch job (L\d+)$", shown, re.MULTILINE)
    assert answer
    check_story(shown, answer[1], "timeslice")


def run_hidden(programs: Path) -> str:
    """Run the demo where /usr/sbin is empty, in a mount namespace of its own."""
    empty = programs / "empty"
    empty.mkdir()
    ended = subprocess.run(
        [
            "unshare", "--mount", "sh", "-c",
            'mount --bind "$1" /usr/sbin && PATH=$2 exec sh "$3"',
            "sh", str(empty), f"{Path(sys.executable).parent}:{programs}", str(DEMO),
        ],
        env={**os.environ, "CSUB_DEMO_PAGE": str(programs / "page.html")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout
