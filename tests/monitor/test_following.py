"""Progress that is read from what a program prints."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_colloc.monitor.progress_lines import Follower, Following
from slurm_colloc.store.limited_cpu import TooSlow, limited_cpu
from slurm_colloc.store.pack.progress_counters import (
    FollowRequest,
    read_follow_request,
    read_member_progress,
    write_follow_request,
)
from slurm_colloc.submission.jobs.job_options import REGEX_MOST, parse_progress_regex

from .bed import Bed

STEP = r"step (?P<step>[0-9,]+)"


def follow(regex: str, *files: tuple[Path, int]) -> Follower:
    return Follower(FollowRequest(regex, tuple((str(path), size) for path, size in files)))


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_number_that_was_reached_is_the_count(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "step 99 of the run before\n")
    follower = follow(STEP, (out, out.stat().st_size))
    follower.work(1.0)
    assert (follower.steps, follower.last_s) == (None, None)
    write(out, "hello\nstep 5, loss 2\nstep 1,280, loss 1\nstep 1,2")
    follower.work(2.0)
    # The last line is not whole yet.
    assert (follower.steps, follower.first_s, follower.last_s) == (1280, 2.0, 2.0)
    write(out, "90\n")
    follower.work(3.0)
    assert (follower.steps, follower.first_s, follower.last_s) == (1290, 2.0, 3.0)
    follower.work(4.0)
    assert follower.last_s == 3.0


def test_without_a_group_each_match_is_a_step(tmp_path: Path) -> None:
    out, error = tmp_path / "out", tmp_path / "err"
    follower = follow("Epoch|epoch", (out, 0), (error, 0))
    write(out, "Epoch 1, epoch 2\nEpoch 3\n")
    write(error, "epoch 4\n")
    follower.work(1.0)
    assert (follower.steps, follower.samples) == (4, None)


def test_a_progress_bar_ends_its_lines_with_carriage_returns(tmp_path: Path) -> None:
    out = tmp_path / "out"
    follower = follow(r"(?P<samples>[0-9.e+]+)/2000", (out, 0))
    write(out, "\r 10%|#   | 200/2000 [00:01]\r 20%|##  | 4e2/2000 [00:02]\r 30%|### | 600/2000")
    follower.work(1.0)
    assert (follower.steps, follower.samples) == (None, 400)


def test_a_file_that_is_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "step 1\nstep 2\n")
    follower = follow(STEP, (out, 0))
    follower.work(1.0)
    out.write_text("step 3\n")
    follower.work(2.0)
    assert follower.steps == 3


def test_what_is_no_number_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    follower = follow(r"step (?P<step>\S+)", (out, 0), (tmp_path / "absent", 0))
    write(out, "step 7\nstep seven\nstep inf\nstep nan\n")
    follower.work(1.0)
    assert follower.steps == 7


def test_what_is_no_ordinary_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    follower = follow(STEP, (tmp_path / "fifo", 0), (Path("/dev/zero"), 0), (tmp_path / "out", 0))
    write(tmp_path / "out", "step 3\n")
    follower.work(1.0)
    assert follower.steps == 3


def test_a_regex_without_end_is_given_up(tmp_path: Path) -> None:
    out = tmp_path / "out"
    follower = follow(r"(x+x+)+y", (out, 0))
    write(out, "x" * 4000 + "\n")
    follower.work(1.0)
    assert "is not followed any more" in follower.problem
    write(out, "xxy\n")
    follower.work(2.0)
    assert follower.steps is None


def test_cpu_time_is_limited_and_then_it_is_not() -> None:
    def spin() -> None:
        with limited_cpu(0.05):
            while True:
                pass

    with pytest.raises(TooSlow):
        spin()
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass


def test_what_is_printed_counts_before_what_is_counted_inside(tmp_path: Path) -> None:
    directory = tmp_path / "0001.1"
    directory.mkdir()
    following = Following(read_member_progress)
    assert following.read(str(directory)) is None
    out = tmp_path / "out"
    write_follow_request(str(directory), STEP, [(str(out), 0)])
    assert following.read(str(directory)) is None
    write(out, "step 12\n")
    found = following.read(str(directory))
    assert found is not None
    assert (found.steps, found.samples, found.source, found.trainers) == (12, None, "regex", 1)


def test_rubbish_is_no_request(tmp_path: Path) -> None:
    assert read_follow_request(str(tmp_path)) is None
    for text in ("{", '{"schema": 1}', '{"schema": 1, "regex": "x", "files": [["a"]]}'):
        (tmp_path / "follow.json").write_text(text)
        assert read_follow_request(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("(", "it is not a regular expression of Python's: missing )"),
        ("(?P<steps>[0-9]+)", "its group 'steps' means nothing: named groups are step and samples"),
        ("x" * (REGEX_MOST + 1), f"it has {REGEX_MOST + 1} characters, and may have {REGEX_MOST}"),
        ("x*", "it matches empty text"),
    ],
)
def test_what_is_no_such_regex_is_told(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^it|^its") as told:
        parse_progress_regex(text)
    assert words in str(told.value)


def test_the_monitor_follows_a_member(bed: Bed) -> None:
    script = "for i in $(seq 40); do echo step $i; sleep 0.1; done; sleep 60"
    bed.start_member(3, script)
    out = bed.pack / "members" / "0003" / "out"
    write_follow_request(str(bed.progress / "0003.1"), STEP, [(str(out), 0)])
    monitor = bed.start_monitor()
    bed.wait_for(lambda now: now["members"].get("3", {}).get("steps") == 40, "all steps are seen")
    bed.end_monitor(monitor)
    last = bed.member_rows(3)[-1]
    assert (last["steps"], last["samples"], last["progress"]) == (40, None, "regex")
    assert last["first_step_at"] < last["last_step_at"]
