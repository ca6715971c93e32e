"""Bad input and broken surroundings: one clear sentence, an exit code, and nothing left behind."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import (
    check_refused,
    list_jobs,
    list_state,
    mounting_small_disk,
    pack_directory,
    put_state_at,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other owners need root")

PACK = ("pack", "--gres=gpu:1", "-c1", "--mem=100M", "--time=5")


@pytest.mark.parametrize("command", ["show", "logs", "cancel", "wait"])
def test_unknown_and_malformed_ids_are_told_apart(user: CsubUser, command: str) -> None:
    for job_id in ("99999", "99999/1"):
        check_refused(
            user, (command, job_id), 7,
            f"csub has no job 99999 in {user.state}: csub queue --all lists what it knows; a plain "
            "Slurm job is seen with squeue",
        )  # fmt: skip
    for text in ("x", "1/", "1/x", "L", "1_", ""):
        check_refused(
            user, (command, text), 2,
            f"{text!r} names neither a pack nor a member: write 4711 for all members of a "
            "submission, 4711/3 or 4711/2-5 for some, last for the newest submission, or all",
        )  # fmt: skip


@pytest.mark.parametrize("command", ["show", "logs", "cancel", "wait"])
def test_an_unknown_member_of_a_known_pack_is_not_found(scripts: CsubUser, command: str) -> None:
    job_id = scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")
    check_refused(
        scripts, (command, f"{job_id}/7"), 7,
        f"job {job_id} has no member 7: csub show {job_id} lists its 2 members",
    )  # fmt: skip


def test_a_queue_without_any_state_is_empty_and_asks_nobody(user: CsubUser) -> None:
    shown = user.run(["csub", "queue"], environment={"PATH": str(Path(sys.executable).parent)})
    assert shown.stdout == "MEMBER  NAME  STATE  MODE  NODE:GPU  TIME  LEFT  REASON\n"
    assert shown.stderr == ""
    assert not user.state.exists()


def test_one_call_asks_slurm_once_for_all_packs(scripts: CsubUser, slurm: FakeSlurm) -> None:
    held = [scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh") for _ in range(3)]
    ended = scripts.submit(*PACK, "ok.sh")
    scripts.finish(ended)
    for words in (("queue",), ("show", *held), ("queue", "--all")):
        before = slurm.list_all_calls()
        shown = scripts.csub(*words).stdout
        assert all(f"{job_id}/2" in shown for job_id in held)
        assert [call[0] for call in slurm.list_all_calls()[len(before) :]] == ["squeue"]


def test_without_slurm_csub_says_so_and_names_the_way_out(scripts: CsubUser) -> None:
    path = {"PATH": str(Path(sys.executable).parent)}
    for words, program in ((("ok.sh",), "sbatch"), ((*PACK, "ok.sh", "ok.sh"), "sinfo")):
        ended = scripts.run(["csub", *words], check=False, environment=path)
        assert ended.stderr == (
            f"csub: error: there is no Slurm here: {program} is not installed or not in PATH: call "
            "csub where sbatch works, or run without Slurm with csub --local\n"
        )
        assert (ended.returncode, ended.stdout) == (4, "")
    assert list_state(scripts) == set()


def test_a_file_in_the_place_of_the_state_directory_is_named(scripts: CsubUser) -> None:
    put_state_at(scripts, scripts.home / "ok.sh")
    for words in (("ok.sh",), ("queue",), ("queue", "--all"), ("show", "1")):
        ended = scripts.run(["csub", *words], check=False)
        folder = "open"
        assert ended.stderr == (
            f"csub: error: cannot read {scripts.home / 'ok.sh' / folder}: Not a directory\n"
        )
        assert ended.returncode == 6


@pytest.fixture
def small_disk(scripts: CsubUser) -> Iterator[CsubUser]:
    """A user whose state lies on a file system of 256 KB."""
    with mounting_small_disk(scripts) as user:
        yield user


@needs_root
@pytest.mark.long
def test_a_disk_that_fills_at_any_write_leaves_nothing_and_submits_nothing(
    small_disk: CsubUser,
) -> None:
    user = small_disk
    state = user.home / "disk" / "state"
    user.run(["csub", "queue"])
    jobs = list_jobs(user)
    filler = user.home / "disk" / "filler"
    refused = 0
    for free_pages in range(64):
        # 64 pages of 4 KB: fill all but some of them.
        filler.write_bytes(b"")
        used = shutil.disk_usage(filler.parent)
        filler.write_bytes(b"x" * max(0, used.free - 4096 * free_pages))
        ended = user.run(["csub", *PACK, "ok.sh", "ok.sh"], check=False)
        if ended.returncode == 0:
            break
        assert ended.returncode == 6
        assert ended.stderr.startswith("csub: error: cannot ")
        assert ended.stderr.count("\n") == 1
        if "was submitted all the same" in ended.stderr:
            # The job began to write before its id was written, and took the last page.
            break
        refused += 1
        assert ended.stderr.endswith(
            ": No space left on device: the disk is full: make room, then try again; nothing was "
            "left half-submitted\n"
        )
        # Only the rendered batch script is kept from one submission to the next, what numbers were
        # given, what was read of scripts, for a while what Slurm has said of QoS, ids and nodes.
        kept = {
            "qos.json",
            "job-ids.json",
            "origin.json",
            "claim.json",
            "checked.json",
            "nodes.json",
        }
        left = [path.name for path in state.rglob("*") if path.is_file()]
        assert [n for n in left if not n.startswith("script.") and n not in kept] == []
        assert list_jobs(user) == jobs
    filler.unlink()
    assert refused >= 5
    found = re.search(r"job (\d+)", ended.stdout + ended.stderr)
    assert found is not None
    job_id = found[1]
    assert list(user.members(job_id)) == [1, 2]


def test_a_file_size_limit_is_a_failed_write_like_any_other(scripts: CsubUser) -> None:
    scripts.csub("queue")
    scripts.script("large.sh", "#" * 5000)
    before, jobs = list_state(scripts), list_jobs(scripts)
    ended = scripts.run(
        ["bash", "-c", 'ulimit -f 4; exec "$@"', "csub", "csub", *PACK, "large.sh", "large.sh"],
        check=False,
    )
    assert ended.returncode == 6
    assert "csub: error: cannot write " in ended.stderr
    assert ended.stderr.endswith(": File too large\n")
    assert list_state(scripts) == before
    assert list_jobs(scripts) == jobs


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "is damaged ("),
        (b"", "is damaged ("),
        (b'{"schema": 1}', "is damaged ("),
        (b'{"schema": 99}', ("is of another version (schema 99, this one reads 1): use the csub "
         "that submitted it")),
        (b'{"schema": 0}', ("is of another version (schema 0, this one reads 1): use the csub "
         "that submitted it")),
    ],
    ids=["half", "empty", "incomplete", "newer", "older"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["pack.json", "members/0001/spec.json"])
def test_a_damaged_or_foreign_file_is_named_and_other_packs_are_still_served(
    scripts: CsubUser, name: str, content: bytes, says: str
) -> None:
    good = scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")
    bad = scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")
    path = pack_directory(scripts, bad) / name
    path.write_bytes(content)
    shown = scripts.run(["csub", "show", bad], check=False)
    assert shown.returncode == 6
    assert str(path) in shown.stderr
    assert says in shown.stderr
    assert "Traceback" not in shown.stderr
    assert len(scripts.members(good)) == 2
    queue = scripts.run(["csub", "queue"], check=False)
    assert f"{good}/2" in queue.stdout
    assert str(path) in queue.stderr
    assert "Traceback" not in queue.stderr
    # And a new submission is not held up by it.
    scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")


@pytest.mark.parametrize(
    "words",
    [("queue",), ("cancel",), ("hold",), ("release",), ("requeue",), ("retry",), ("clean", "0d")],
    ids=lambda words: words[0],
)
def test_a_pack_of_another_schema_is_told_and_never_changed(
    scripts: CsubUser, words: tuple[str, ...]
) -> None:
    job_id = scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")
    pack = pack_directory(scripts, job_id)
    record = pack / "pack.json"
    record.write_text(record.read_text().replace('"schema":1', '"schema":2'))
    # Slurm does not know its job any more, as long after its end.
    scripts.run(["scancel", job_id])
    before = {path: path.read_bytes() for path in pack.rglob("*") if path.is_file()}
    command, *rest = words
    named = ["--older-than", *rest] if rest else [] if command == "queue" else [job_id]
    ended = scripts.run(["csub", command, *named], check=False)
    assert ended.returncode == (0 if command == "clean" else 6)
    assert f"{record} is of another version (schema 2, this one reads 1)" in ended.stderr
    assert {path: path.read_bytes() for path in pack.rglob("*") if path.is_file()} == before
