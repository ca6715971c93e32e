"""How packs under MPS end: cancelled, at time limits, requeued, and where the daemon may lie."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import (
    HELLO,
    OPTIONS,
    TRAIN,
    Untouched,
    explained,
    journal,
    list_starts,
    pack_directory,
    read_setup,
    require_cgroups,
    shorten_waits,
    submit_pack,
    wait_for_clients,
    wait_for_starts,
)

pytestmark = pytest.mark.slurm


def test_cancelling_a_member_and_then_the_pack_leaves_nothing(mps_user: CsubUser) -> None:
    user = mps_user
    require_cgroups(user)
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    user.script("stubborn.sh", "trap '' TERM; simgpu run --seconds 300 --fault hang@0.1")
    job_id = submit_pack(user, "train.sh", "stubborn.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        user.csub("cancel", f"{job_id}/1")
        rows = user.wait_for_states(job_id, {1: "CANCELLED", 2: "RUNNING", 3: "RUNNING"})
        assert rows[1]["cause"] == "cancelled"
        assert rows[2]["starts"] == rows[3]["starts"] == 1
        user.csub("cancel", job_id)
        rows = user.wait_for_states(job_id, "CANCELLED")
        assert journal(user, job_id, "requeue") == []
    untouched.check()


@pytest.mark.smoke
def test_scancel_of_the_pack_leaves_nothing(mps_user: CsubUser) -> None:
    user = mps_user
    require_cgroups(user)
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        user.run(["scancel", job_id])
        rows = user.wait_for_states(job_id, "CANCELLED")
        assert {row["cause"] for row in rows.values()} == {"cancelled"}
        assert not (user.state / "faults").exists()
    untouched.check()


def test_a_member_at_its_time_limit_ends_alone(mps_user: CsubUser) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("train.sh", TRAIN, directives="#SBATCH --time=10")
    user.script("short.sh", TRAIN, directives="#SBATCH --time=0:01")
    job_id = submit_pack(user, "short.sh", "train.sh", options=OPTIONS[:-1])
    with explained(user, job_id):
        rows = user.wait_for_states(job_id, {1: "TIMEOUT", 2: "RUNNING"})
        assert (rows[1]["cause"], rows[1]["starts"]) == ("time limit", 1)
        assert rows[2]["is_mps_client"] is True
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert (rows[2]["state"], rows[2]["starts"]) == ("COMPLETED", 1)
    untouched.check()


def test_a_requeue_of_the_pack_starts_a_new_daemon(mps_user: CsubUser) -> None:
    user = mps_user
    require_cgroups(user)
    untouched = Untouched(user)
    user.script("train.sh", TRAIN)
    job_id = submit_pack(user, "train.sh", "train.sh")
    with explained(user, job_id):
        wait_for_clients(user, job_id)
        user.run(["scontrol", "requeue", job_id])
        wait_for_starts(user, job_id, 2)
        first, second = list_starts(user, job_id, 1)
        assert first.split("pipe=")[1] != second.split("pipe=")[1] != ""
        assert read_setup(user, job_id)["attempt"] == 2
        (user.home / "end").touch()
        assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}
    untouched.check()


@contextmanager
def full_directory(path: Path) -> Iterator[Path]:
    """A directory on a file system with no room."""
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=1777", "none", str(path)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode != 0:
        pytest.skip("a full file system needs root and the right to mount")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
        shutil.rmtree(path)


@pytest.mark.root
def test_full_and_read_only_directories_are_passed_over_and_told(mps_user: CsubUser) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("quick.sh", HELLO)
    locked = user.home / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    missing = user.home / "missing"
    usable = user.home / "u"
    usable.mkdir()
    os.chown(usable, user.uid, user.gid)
    with full_directory(user.home / "full") as full:
        bases = (str(locked), str(full), str(missing))
        shorten_waits(user, bases=(*bases, str(usable)))
        job_id = submit_pack(user, "quick.sh", "quick.sh")
        with explained(user, job_id):
            rows = user.finish(job_id)
            assert {(row["state"], row["mode"]) for row in rows.values()} == {("COMPLETED", "mps")}
            notes = read_setup(user, job_id)["notes"]
            assert [note.split(":")[1].strip() for note in notes] == list(bases)
            assert all(note.startswith("not used: ") for note in notes)
            assert f"Note:     not used: {locked}: " in user.csub("show", job_id).stdout
        # The daemon stops after the last member has ended.
        wait_until(lambda: not list(usable.iterdir()), "the daemon's directory is removed")
        shorten_waits(user, bases=bases)
        nowhere = submit_pack(user, "quick.sh", "quick.sh")
        with explained(user, nowhere):
            rows = user.finish(nowhere)
            assert {(r["state"], r["mode"]) for r in rows.values()} == {("COMPLETED", "timeslice")}
            reason = read_setup(user, nowhere)["reason"]
            assert reason.startswith("no directory can be made for the MPS daemon (")
            assert all(base in reason for base in bases)
    untouched.check()


def test_the_keeper_s_last_words_stand_in_the_pack_s_log(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("quick.sh", HELLO)
    job_id = submit_pack(user, "quick.sh", "quick.sh")
    user.finish(job_id)
    # It had none.
    assert (pack_directory(user, job_id) / "pack.log").read_text() == ""
