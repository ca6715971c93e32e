"""Progress that is read from what a program prints."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_colloc.monitor.member_progress import Follower, Following
from slurm_colloc.store.atomic_files import TooSlow, limited_cpu
from slurm_colloc.store.progress_counters import (
    FollowRequest,
    read_follow_request,
    read_member_progress,
    write_follow_request,
)
from slurm_colloc.submission.jobs.job_options import REGEX_MOST, parse_progress_regex

from .watched_pack import WatchedPack

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
    first_s = follower.first_s
    # The last line is not whole yet.
    assert follower.steps == 1280
    assert follower.first_s == follower.last_s == pytest.approx(2.0, abs=0.5)
    write(out, "90\n")
    follower.work(3.0)
    assert (follower.steps, follower.first_s) == (1290, first_s)
    assert follower.last_s == pytest.approx(3.0, abs=0.5)
    last_s = follower.last_s
    follower.work(4.0)
    assert follower.last_s == last_s


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


def test_lines_of_which_none_matched_are_counted_by_member(tmp_path: Path) -> None:
    following = Following(read_member_progress)
    outs = {}
    for name, regex in (("0001.1", r"step d+"), ("0002.1", STEP), ("0003.1", STEP)):
        (tmp_path / name).mkdir()
        outs[name] = tmp_path / f"{name}.out"
        write_follow_request(str(tmp_path / name), regex, [(str(outs[name]), 0)])
        write(outs[name], "step 1\nstep 2\nstep")
        if name != "0003.1":
            following.read(str(tmp_path / name))
    assert following.list_unmatched() == {1: 2}
    write(outs["0001.1"], " 3\n")
    following.read(str(tmp_path / "0001.1"))
    assert following.list_unmatched() == {1: 3}
    # Of its starts the last one counts.
    (tmp_path / "0001.2").mkdir()
    write_follow_request(str(tmp_path / "0001.2"), STEP, [(str(outs["0001.1"]), 0)])
    following.read(str(tmp_path / "0001.2"))
    assert following.list_unmatched() == {}


def test_a_line_counts_from_when_it_was_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    follower = follow(STEP, (out, 0))
    follower.work(100.0)
    write(out, "step 5\n")
    os.utime(out, (time.time() - 7, time.time() - 7))
    follower.work(110.0)
    assert follower.last_s == pytest.approx(103.0, abs=0.5)
    # A server with another clock changes nothing beyond the last look.
    for ago, at in ((-60, 120.0), (60, 120.0)):
        write(out, f"step {6 + at + ago}\n".replace(".0", ""))
        os.utime(out, (time.time() - ago, time.time() - ago))
        follower.work(at + (ago > 0) * 10)
        assert 110.0 <= (follower.last_s or 0) <= 130.0


def test_what_is_printed_is_told_to_the_runner_as_steps_since_the_first(tmp_path: Path) -> None:
    directory = tmp_path / "0001.1"
    directory.mkdir()
    following = Following(read_member_progress)
    out = tmp_path / "out"
    write_follow_request(str(directory), STEP, [(str(out), 0)])
    write(out, "step 50,000 of a run that goes on\n")
    following.read(str(directory))
    told = read_member_progress(str(directory))
    assert told is not None
    assert (told.steps, told.source, told.samples, told.trainers) == (1, "regex", None, 1)
    write(out, "step 50,020\n")
    found = following.read(str(directory))
    assert found is not None
    assert found.steps == 50_020
    told = read_member_progress(str(directory))
    assert told is not None
    assert told.steps == 21
    assert (told.first_step_s, told.last_step_s) == pytest.approx(
        (found.first_step_s, found.last_step_s)
    )
    assert [path.name for path in directory.iterdir() if path.name.startswith("0.0")] == [
        "0.0.progress"
    ]


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


def test_the_monitor_follows_a_member(bed: WatchedPack) -> None:
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
