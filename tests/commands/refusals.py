"""What csub refuses: it says why, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..bed import CsubUser


def list_state(user: CsubUser) -> set[str]:
    """What a submission leaves: packs, job ids, marks, locks and unfinished files."""
    folders = [user.state / name for name in ("packs", "open", "jobs", "making")]
    left = {str(path) for folder in folders if folder.exists() for path in folder.iterdir()}
    return left | {str(path) for path in user.state.glob("*.tmp*")}


def list_jobs(user: CsubUser) -> list[str]:
    return user.run(["squeue", "-h", "--me", "-o", "%i"]).stdout.split()


def check_refused(user: CsubUser, words: tuple[str, ...], status: int, sentence: str) -> None:
    """csub says exactly this on standard error, and has changed nothing."""
    before, jobs = list_state(user), list_jobs(user)
    ended = user.run(["csub", *words], check=False)
    assert ended.stderr == f"csub: error: {sentence}\n"
    assert (ended.returncode, ended.stdout) == (status, "")
    assert list_state(user) == before
    assert list_jobs(user) == jobs


def put_state_at(user: CsubUser, path: Path) -> None:
    settings = user.home / "settings.toml"
    settings.write_text(f'state_dir = "{path}"\n')
    user.extra["SLURM_COLLOC_SETTINGS"] = str(settings)


def pack_directory(user: CsubUser, job_id: str) -> Path:
    index = json.loads(user.index(job_id).read_text())
    return user.state / "packs" / f"{index['submission']}.{index['indices'][0]}"


@contextlib.contextmanager
def mounting_small_disk(scripts: CsubUser) -> Iterator[CsubUser]:
    """A user whose state lies on a file system of 256 KB."""
    disk = scripts.home / "disk"
    disk.mkdir()
    argv = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        f"size=256k,uid={scripts.uid},mode=0700",
        "none",
        str(disk),
    ]
    if subprocess.run(argv, check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    put_state_at(scripts, disk / "state")
    try:
        yield scripts
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
