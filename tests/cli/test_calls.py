"""A forked csub does what one that was started does, and knows nothing of earlier calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ..calls import run_csub


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("--version",), 0),
        (("plan", "--local", "a.sh"), 0),
        (("config", "degree", "2"), 0),
        (("plan", "vit-\xe9\udcff\n.sh"), 2),
        (("show", "4711"), 7),
    ],
)
def test_a_forked_csub_says_what_one_that_was_started_says(
    tmp_path: Path, words: tuple[str, ...], status: int
) -> None:
    said = []
    for name in ("started", "forked"):
        home = tmp_path / name / "home"
        home.mkdir(parents=True)
        (home / "a.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
        environment = {"HOME": str(home), "PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        if name == "forked":
            done = run_csub(*words, environment=environment, directory=home)
        else:
            done = subprocess.run(
                [sys.executable, "-m", "slurm_colloc", *words],
                env=environment, cwd=home, capture_output=True, text=True, check=False,
            )  # fmt: skip
        files = sorted(str(path.relative_to(home)) for path in home.rglob("*"))
        texts = (text.replace(str(home), "HOME") for text in (done.stdout, done.stderr))
        said.append((done.returncode, *texts, files))
    assert said[0] == said[1]
    assert said[0][0] == status


def test_a_forked_csub_has_the_environment_and_directory_of_its_own_call(tmp_path: Path) -> None:
    for name, degree in (("a", "2"), ("b", "3")):
        home = tmp_path / name
        home.mkdir()
        environment = {"HOME": str(home), "PATH": os.defpath}
        assert run_csub("config", "degree", environment=environment, directory=home).stdout != (
            f"{degree}\n"
        )
        run_csub("config", "degree", degree, environment=environment, directory=home)
        told = run_csub("config", "degree", environment=environment, directory=home)
        assert (told.returncode, told.stdout, told.stderr) == (0, f"{degree}\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_a_forked_csub_is_the_user_that_it_is_to_be() -> None:
    uid = 61234
    home = Path(tempfile.mkdtemp(prefix="calls", dir="/var/tmp"))
    try:
        os.chown(home, uid, uid)
        environment = {"HOME": str(home), "PATH": os.defpath}
        done = run_csub(
            "config", "degree", "2", environment=environment, directory=home, user=(uid, uid)
        )
        assert done.returncode == 0, done
        written = [path for path in home.rglob("*") if path.is_file()]
        assert written
        assert {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(uid, uid)}
    finally:
        shutil.rmtree(home)


def test_a_forked_csub_that_takes_too_long_is_left(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "profiles")
    environment = {"HOME": str(tmp_path), "PATH": os.defpath}
    with pytest.raises(subprocess.TimeoutExpired):
        run_csub(
            "profile", "import", "profiles",
            environment=environment, directory=tmp_path, timeout_s=0.2,
        )  # fmt: skip
    # With its answer it ends, and another call is answered meanwhile.
    assert run_csub("--version", environment=environment, directory=tmp_path).returncode == 0
    with (tmp_path / "profiles").open("w") as file:
        file.write("{}")
