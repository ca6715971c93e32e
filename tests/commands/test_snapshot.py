"""--snapshot: jobs run in a copy of their project, on a fake Slurm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.store import snapshots
from slurm_colloc.store.snapshots import ProjectFiles

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import list_jobs

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
SHARE = ("--gres=gpu:1", "--time=5", "--share=timeslice", "--mem=100M", "-c1")


@pytest.fixture
def project(user: CsubUser) -> Path:
    folder = user.home / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "data").mkdir()
    (folder / "src" / "net.py").write_text("old\n")
    (folder / "data" / "big").write_text("images\n")
    (folder / ".gitignore").write_text("data/\nruns/\n*.out\n")
    user.script("project/train.sh", "cat src/net.py data/big; mkdir -p runs; echo x > runs/$1")
    return folder


def start_git(folder: Path) -> None:
    for words in (["init", "-q"], ["add", "src", ".gitignore"]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def list_all(user: CsubUser) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(user.csub("queue", "--all", "--json").stdout)
    return rows


@needs_git
def test_a_queued_job_does_not_change_with_the_working_tree(
    user: CsubUser, slurm: FakeSlurm, project: Path
) -> None:
    start_git(project)
    (project / "runs").mkdir()
    slurm.pause()
    words = ["csub", "sweep", "--parsable", *SHARE, "--snapshot", "train.sh", "{n}", "--n", "1,2"]
    job_id = user.run(words, directory=project).stdout.strip()
    (project / "src" / "net.py").write_text("new\n")
    slurm.go_on()
    user.finish(job_id)
    assert user.csub("logs", f"{job_id}/1").stdout == "old\nimages\n"
    # What git ignores is the working tree's own: data is found, and results stay.
    assert sorted(path.name for path in (project / "runs").iterdir()) == ["1", "2"]
    # As `%j` has it: the first has the printed id, the other a number of its own.
    own_id = user.members(job_id)[2]["job_id"]
    for name in (job_id, own_id):
        assert (project / f"slurm-{name}.out").read_text() == "old\nimages\n"
    snapshot = Path(list_all(user)[0]["snapshot"])
    assert "Snapshot" in user.csub("show", f"{job_id}/1").stdout
    assert (snapshot / "tree" / "data").is_symlink()
    assert not (snapshot / "tree" / ".git").exists()


@needs_git
def test_snapshots_share_what_has_not_changed(user: CsubUser, project: Path) -> None:
    start_git(project)
    for number in range(3):
        job_id = user.run(
            ["csub", "--parsable", *SHARE, "--snapshot", "train.sh"], directory=project
        ).stdout.strip()
        user.finish(job_id)
        if number == 1:
            (project / "src" / "more.py").write_text("more\n")
    found = sorted({row["snapshot"] for row in list_all(user)})
    assert len(found) == 2
    first, second = (Path(path) / "tree" / "src" / "net.py" for path in found)
    assert first.samefile(second)
    assert not first.samefile(project / "src" / "net.py")
    assert first.stat().st_mode & 0o222 == 0


def test_without_git_all_is_copied_or_what_is_named(user: CsubUser, project: Path) -> None:
    user.run(["csub", *SHARE, "--snapshot=src,train.sh", "train.sh"], directory=project)
    user.run(["csub", *SHARE, "--snapshot", "train.sh"], directory=project)
    named, whole = (Path(row["snapshot"]) / "tree" for row in list_all(user))
    assert (named / "data").is_symlink()
    assert not (named / "src").is_symlink()
    assert not (whole / "data").is_symlink()
    user.csub("cancel", "all")


def test_wrong_snapshots_are_one_sentence(user: CsubUser, project: Path) -> None:
    for words, sentence in (
        (["--snapshot=nowhere"], "--snapshot: there is no nowhere"),
        (["--snapshot=.."], "lies outside of the project"),
        (["--snapshot", "--chdir=/tmp"], "runs in /tmp, which is not in the project"),
    ):
        for call in (words, [*words, "--dry-run"]):
            refused = user.run(["csub", *SHARE, *call, "train.sh"], directory=project, check=False)
            assert (refused.returncode, refused.stdout) == (2, "")
            assert sentence in refused.stderr
            assert refused.stderr.count("\n") == 1
    assert list_jobs(user) == []
    dry = user.run(["csub", *SHARE, "--snapshot", "--dry-run", "train.sh"], directory=project)
    assert dry.stdout
    assert not (user.state / "snapshots").exists()


def test_a_project_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MOST_BYTES", 10)
    (tmp_path / "large").write_text("x" * 11)
    with pytest.raises(UsageProblem, match="the largest is large"):
        snapshots.take_snapshot(tmp_path / "state", ProjectFiles(tmp_path, ("large",)))
    assert not (tmp_path / "state").exists()


def test_snapshots_are_cleaned_but_not_what_jobs_have_written(
    user: CsubUser, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.script("project/train.sh", "echo result > result.txt")
    job_id = user.run(
        ["csub", "--parsable", *SHARE, "--snapshot", "train.sh"], directory=project
    ).stdout.strip()
    user.finish(job_id)
    snapshot = Path(list_all(user)[0]["snapshot"])
    monkeypatch.setattr(snapshots, "_FRESH_S", 0.0)
    later = snapshot.stat().st_mtime + 10
    assert snapshots.remove_snapshots(user.state, {str(snapshot)}, later, dry_run=False) == (0, [])
    kept = snapshots.remove_snapshots(user.state, set(), later, dry_run=False)
    assert kept == (0, [str(snapshot)])
    (snapshot / "tree" / "result.txt").unlink()
    assert snapshots.remove_snapshots(user.state, set(), later, dry_run=True) == (1, [])
    assert snapshots.remove_snapshots(user.state, set(), later, dry_run=False) == (1, [])
    assert not snapshot.exists()
    user.csub("clean", "--older-than", "0s", check=False)
