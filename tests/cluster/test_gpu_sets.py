"""Packs over several GPUs: a runner for each GPU set, one queue, and what follows if one fails."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.store.pack_directory import read_division
from slurm_colloc.store.written_ends import read_runner
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, user_of
from ..wait_until import wait_until
from .test_mps_fallbacks import nvml_faults

pytestmark = pytest.mark.slurm

OPTIONS = ("--requeue", "--gres=gpu:1", "-c12", "--mem=50M", "--time=10")
# Two places on each GPU, for a GPU has a share of 24 CPUs.
PLAIN = (*OPTIONS, "--share=timeslice")
TWO = "--gpus-per-pack=2"
NOTE = (
    "name=runs/${SLURM_COLLOC_NAME#*_}; "
    'echo "start ${SLURM_COLLOC_PACK##*/} $CUDA_VISIBLE_DEVICES" >>"$name"'
)
END = 'echo end >>"$name"'
UNTIL_END = 'until [ -e end ] || [ -e "$name.end" ]; do sleep 0.1; done'


@pytest.fixture
def user(mps_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of a node with four GPUs."""
    with user_of(mps_cluster, accounts[0]) as found:
        make_runs(found)
        yield found


def make_runs(user: CsubUser) -> None:
    (user.home / "runs").mkdir()
    os.chown(user.home / "runs", user.uid, user.gid)


def read_runs(user: CsubUser) -> dict[int, list[list[str]]]:
    """What each member has written of itself, of those that have written anything."""
    written = (path for path in (user.home / "runs").iterdir() if path.suffix != ".end")
    texts = {int(path.name): path.read_text() for path in written}
    return {n: [line.split() for line in text.splitlines()] for n, text in texts.items() if text}


def count_running(user: CsubUser) -> int:
    return sum(lines[-1][0] == "start" for lines in read_runs(user).values())


def has_begun(user: CsubUser, count: int) -> bool:
    return len(read_runs(user)) == count


def list_packs(user: CsubUser) -> list[Path]:
    """The packs' directories: set 0 first."""
    return sorted((user.state / "packs").iterdir(), key=lambda path: "~" in path.name)


def let_end(user: CsubUser, *numbers: int) -> None:
    for number in numbers:
        (user.home / "runs" / f"{number}.end").touch()


def read_job(user: CsubUser, job_id: str) -> dict[str, str]:
    words = user.run(["scontrol", "show", "job", job_id]).stdout.split()
    return dict(word.partition("=")[::2] for word in words)


@pytest.mark.smoke
def test_one_slurm_job_keeps_two_gpus_busy_to_the_end(user: CsubUser) -> None:
    user.script("work.sh", f"{NOTE}; {UNTIL_END}; {END}")
    job_id = user.submit(TWO, *PLAIN, "--array=1-8", "work.sh")
    wait_until(lambda: count_running(user) == 4, "both GPUs are filled")
    division = read_division(list_packs(user)[0])
    assert division is not None
    gpus = [share.gpus[0] for share in division.shares]
    assert len(set(gpus)) == 2
    assert read_job(user, job_id)["TresPerNode"].endswith("gpu:2")
    # Members of one GPU end, until it has had all that waited for the other as well.
    fast = list_packs(user)[0].name
    for begun in (5, 6, 7, 8):
        running = (n for n, lines in read_runs(user).items() if len(lines) == 1)
        let_end(user, next(n for n in running if read_runs(user)[n][0][1] == fast))
        wait_until(partial(has_begun, user, begun), "the place is filled")
    assert [lines[0][1] for lines in read_runs(user).values()].count(fast) == 6
    (user.home / "end").touch()
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    assert sorted(rows) == list(range(1, 9))
    for lines in read_runs(user).values():
        # Each once, on the GPU of its set and no other.
        assert [line[0] for line in lines] == ["start", "end"]
        assert lines[0][2] == gpus["~" in lines[0][1]]
    wait_until(lambda: read_job(user, job_id)["JobState"] == "COMPLETED", "the job ends")


def test_a_job_whose_runner_was_killed_starts_again_and_counts_each_end_once(
    user: CsubUser,
) -> None:
    user.script("work.sh", f"{NOTE}; {UNTIL_END}; {END}")
    job_id = user.submit(TWO, *PLAIN, "--array=1-6", "work.sh")
    wait_until(lambda: count_running(user) == 4, "both GPUs are filled")
    (first, second) = list_packs(user)
    done = next(n for n, lines in read_runs(user).items() if lines[0][1] == first.name)
    let_end(user, done)
    user.wait_for_states(job_id, {done: "COMPLETED"})
    runner = read_runner(second)
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    wait_until(
        lambda: sum(
            len(lines) > 1 and lines[-1][0] == "start" for lines in read_runs(user).values()
        ),
        "members run again",
    )
    (user.home / "end").touch()
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    runs = read_runs(user)
    assert [line[0] for line in runs[done]] == ["start", "end"]
    assert all([line[0] for line in lines].count("end") == 1 for lines in runs.values())
    assert read_job(user, job_id)["Restarts"] == "1"


def test_what_concerns_one_member_reaches_it_in_whichever_set_it_is(user: CsubUser) -> None:
    user.script("work.sh", f"trap 'exit 0' TERM; {NOTE}; {UNTIL_END} & wait; {END}")
    job_id = user.submit(TWO, *PLAIN, "--array=1-6", "work.sh")
    wait_until(lambda: count_running(user) == 4, "both GPUs are filled")
    by_set: dict[str, list[int]] = {}
    for number, lines in read_runs(user).items():
        by_set.setdefault(lines[0][1], []).append(number)
    gone = [numbers[0] for numbers in by_set.values()]
    assert len(gone) == 2
    user.csub("cancel", *(f"{job_id}/{number}" for number in gone))
    user.wait_for_states(job_id, dict.fromkeys(gone, "CANCELLED"))
    # Their places are filled, and the others have heard nothing.
    wait_until(lambda: len(read_runs(user)) == 6, "their places are filled")
    (user.home / "end").touch()
    rows = user.finish(job_id)
    left = {row["state"] for number, row in rows.items() if number not in gone}
    assert left == {"COMPLETED"}
    assert read_job(user, job_id)["Restarts"] == "0"


def test_a_cancelled_job_ends_in_all_its_sets(user: CsubUser) -> None:
    user.script("work.sh", f"{NOTE}; {UNTIL_END}; {END}")
    job_id = user.submit(TWO, *PLAIN, "--array=1-6", "work.sh")
    wait_until(lambda: count_running(user) == 4, "both GPUs are filled")
    user.csub("cancel", "--yes", job_id)
    user.wait_for_states(job_id, "CANCELLED")
    assert "end" not in {line[0] for lines in read_runs(user).values() for line in lines}


MPS = (*OPTIONS, "--share=mps")
TRAIN = (
    f"{NOTE}; simgpu run --seconds 300 & pid=$!; "
    "until [ -e end ]; do kill -0 $pid || { wait $pid; exit 1; }; sleep 0.1; done; "
    f"kill $pid; {END}"
)


def test_members_of_a_gpu_that_is_lost_start_again_on_the_other(
    user: CsubUser, mps_cluster: Sandbox
) -> None:
    user.script("train.sh", TRAIN)
    job_id = user.submit(TWO, *MPS, "--array=1-6", "train.sh")
    wait_until(lambda: count_running(user) == 4, "both GPUs are filled")
    first, second = list_packs(user)
    division = read_division(first)
    assert division is not None
    (lost,), (left,) = (share.gpus for share in division.shares[::-1])
    hit = [n for n, lines in read_runs(user).items() if lines[0][2] == lost]
    with nvml_faults(mps_cluster, f"fallen={lost}"):
        user.wait_for_states(job_id, dict.fromkeys(hit, "PENDING"))
        (user.home / "end").touch()
        rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    runs = read_runs(user)
    for number in hit:
        assert [line[0] for line in runs[number]] == ["start", "start", "end"]
        assert [line[2] for line in runs[number][:2]] == [lost, left]
    # What had not begun there has only run on the other; those of the other ran through.
    assert all(lines[-2][2] == left for lines in runs.values())
    assert all(len(lines) == 2 for number, lines in runs.items() if number not in hit)
    setup = json.loads((second / "setup.json").read_text())
    assert (setup["mode"], setup["reason"]) == ("", f"{lost} is lost")
    assert read_job(user, job_id)["Restarts"] == "0"


def read_states(user: CsubUser, job_id: str) -> list[Any]:
    return [row["state"] for row in user.members(job_id).values()]


TAKE_TOKEN = """
take() { for token in token.*; do rm "$token" 2>/dev/null && return; done; return 1; }
until [ -e all ] || take; do sleep 0.1; done
"""


def give_tokens(user: CsubUser, begin: int) -> None:
    """Let twenty more members do their work."""
    for number in range(begin, begin + 20):
        (user.home / f"token.{number}").touch()


@pytest.mark.long
def test_sixty_members_run_once_each_over_four_gpus_whatever_runners_are_killed(
    user: CsubUser,
) -> None:
    # However busy the machine is, not all of them end before two runners were killed.
    user.script("work.sh", f"{NOTE}; {TAKE_TOKEN} sleep 0.$((RANDOM % 9)); {END}")
    give_tokens(user, 100)
    job_id = user.submit("--gpus-per-pack=4", *PLAIN, "--array=1-60", "work.sh")
    source = random.Random(3)
    killed = 0
    deadline = time.monotonic() + 300
    while set(states := read_states(user, job_id)) != {"COMPLETED"}:
        assert time.monotonic() < deadline, user.describe(job_id)
        # Slurm restarts a job twice for killed runners.
        if killed < 2 and states.count("COMPLETED") > 10 * (killed + 1):
            runner = read_runner(source.choice(list_packs(user)))
            if runner is not None and Path(f"/proc/{runner.pid}").exists():
                os.kill(runner.pid, signal.SIGKILL)
                killed += 1
                give_tokens(user, 100 + 20 * killed)
                if killed == 2:
                    (user.home / "all").touch()
    assert killed == 2
    runs = read_runs(user)
    assert sorted(runs) == list(range(1, 61))
    for number, lines in runs.items():
        # One that was hit by a kill started again; the end was the last of it.
        assert [line[0] for line in lines].count("end") >= 1, (number, lines)
    # Members of one GPU were never without their set's own.
    started = [line for lines in runs.values() for line in lines if line[0] == "start"]
    assert {len(line) for line in started} == {3}


def test_members_of_two_gpus_share_them_with_members_of_one(user: CsubUser) -> None:
    body = f'{NOTE}; echo "$MASTER_PORT" >>"$name"; {UNTIL_END}; {END}'
    user.script("pair.sh", body, directives="#SBATCH --gres=gpu:2")
    user.script("one.sh", body, directives="#SBATCH --gres=gpu:1")
    words = [word for word in OPTIONS if not word.startswith("--gres")]
    job_id = user.submit(
        "pack", TWO, *words, "--share=mps", "--degree=4", "pair.sh", "one.sh", "one.sh", "pair.sh"
    )
    wait_until(lambda: count_running_lines(user) == 4, "all four run")
    (pack,) = list_packs(user)
    runs = read_runs(user)
    gpus = {number: set(lines[0][2].split(",")) for number, lines in runs.items()}
    assert gpus[1] == gpus[4] == gpus[2] | gpus[3]
    # The two small ones are on different GPUs.
    assert [len(gpus[number]) for number in (1, 2, 3, 4)] == [2, 1, 1, 2]
    assert gpus[2] != gpus[3]
    assert len({lines[1][0] for lines in runs.values()}) == 4
    setup = json.loads((pack / "setup.json").read_text())
    assert (setup["mode"], set(setup["gpus"])) == ("mps", gpus[1])
    (user.home / "end").touch()
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}


def count_running_lines(user: CsubUser) -> int:
    """Members that have said all they say before they wait."""
    return sum(len(lines) == 2 for lines in read_runs(user).values())
