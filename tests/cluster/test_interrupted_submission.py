"""csub killed or interrupted at any moment: the whole submission is there, or nothing of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

# Stands before the real sbatch, whose path is put in for @sbatch@, as the gates' for @gates@. It
# tells where it is, and waits there until it may go on.
SBATCH = r"""#!/bin/bash
mark() {
    : >"@gates@/$1"
    if [ -e "@gates@/stop-at-$1" ]; then
        until [ -e "@gates@/go" ]; do sleep 0.02; done
    fi
}
mark before
@sbatch@ "$@" >"@gates@/answer"
status=$?
mark after
cat "@gates@/answer"
exit $status
"""


# Answers nothing, and submits later.
LATE_SBATCH = r"""#!/bin/bash
cp -- "${@: -1}" "@gates@/script"
(
    # csub's lock is not held any longer.
    for fd in /proc/self/fd/*; do
        fd=${fd##*/}
        [ "$fd" -le 2 ] || eval "exec $fd>&-"
    done
    until [ -e "@gates@/go" ]; do sleep 0.02; done
    exec @sbatch@ "${@:1:$#-1}" "@gates@/script"
) </dev/null >/dev/null 2>&1 &
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2
exit 1
"""


def fill_in(user: CsubUser, script: str) -> str:
    """A script with the paths of the real sbatch and of the gates."""
    return script.replace("@sbatch@", user.find("sbatch")).replace("@gates@", f"{user.home}/gates")


@pytest.fixture
def watched(user: CsubUser) -> Iterator[CsubUser]:
    """A user whose sbatch stops where a test wants it."""
    folder = user.home / "bin"
    folder.mkdir()
    sbatch = folder / "sbatch"
    sbatch.write_text(fill_in(user, SBATCH))
    sbatch.chmod(0o755)
    gates = user.home / "gates"
    gates.mkdir()
    os.chown(gates, user.uid, user.gid)
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    user.script("a.sh", "echo $SLURM_COLLOC_MEMBER >>ran.txt")
    yield user
    (gates / "go").touch()


PACK = ("csub", "pack", "--gres=gpu:1", "-c1", "--mem=100M", "--time=5", "a.sh", "a.sh")


def list_slurm_jobs(user: CsubUser) -> dict[str, str]:
    """Slurm's jobs of this user, with their comments."""
    shown = user.run(["squeue", "-h", "--me", "--states=all", "--format=%i|%k"]).stdout
    lines = shown.splitlines()
    return dict(line.partition("|")[::2] for line in lines)


def list_leftovers(user: CsubUser) -> list[str]:
    """Locks, temporary files and half-made directories in the state."""
    making = user.state / "making"
    left = [str(path) for path in making.iterdir()] if making.exists() else []
    return left + [str(path) for path in list_temporary(user)]


def list_temporary(user: CsubUser) -> list[Path]:
    """Unfinished files of csub; a pack that runs has its own, for moments."""
    folders = (user.state, *(user.state / name for name in ("open", "jobs")))
    packs = (user.state / "packs").glob("*")
    return [path for folder in (*folders, *packs) for path in folder.glob("*.tmp*")]


def check_state_agrees_with_slurm(user: CsubUser, earlier: set[str]) -> list[str]:
    """Each pack has its job and each job its pack; the ids of the new jobs."""

    def is_tidy() -> bool:
        # A pack that runs by now may be writing a file, and then the lock waits for the next call.
        if list_leftovers(user):
            user.csub("queue")
        return not list_leftovers(user)

    wait_until(is_tidy, "nothing half-written is left")
    jobs = list_slurm_jobs(user)
    new = [job_id for job_id in jobs if job_id not in earlier]
    packs = {path.name.rpartition(".")[0]: path for path in (user.state / "packs").glob("*")}
    known = {
        (path / "slurm_job_id").read_text().strip(): submission
        for submission, path in packs.items()
    }
    for job_id in new:
        assert jobs[job_id] == f"[csub-pack={known[job_id]}] [csub/1 mps]"
        assert user.index(job_id).exists()
    # Slurm forgets an ended job after five minutes, which a busy machine may take.
    assert set(known) <= set(jobs) | earlier
    return new


def settle(user: CsubUser, earlier: set[str]) -> list[str]:
    """Let what is still under way end, look at the queue once, and compare."""
    locks = user.state / "making"
    wait_until(lambda: not list_holders(locks), "no sbatch of an interrupted csub is left")
    for path in (*locks.glob("*.new"), *list_temporary(user)):
        # As some seconds later: a younger one might be just being made.
        os.utime(path, (0, 0))
    shown = user.csub("queue")
    assert "Traceback" not in shown.stderr
    return check_state_agrees_with_slurm(user, earlier)


def list_holders(folder: Path) -> list[int]:
    """Processes that have a file of this folder open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # A process may end at any moment of this.
        with contextlib.suppress(OSError):
            for entry in list((process / "fd").iterdir()):
                with contextlib.suppress(OSError):
                    if entry.readlink().is_relative_to(folder):
                        found.append(int(process.name))
    return found


def open_gates(user: CsubUser) -> Path:
    return user.home / "gates"


@pytest.mark.smoke
@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_of_csub_while_sbatch_runs_loses_no_job(watched: CsubUser, moment: str) -> None:
    gates = open_gates(watched)
    earlier = set(list_slurm_jobs(watched))
    (gates / f"stop-at-{moment}").touch()
    csub = watched.start(PACK)
    wait_until((gates / moment).exists, "sbatch is there")
    csub.kill()
    csub.communicate()
    # While sbatch lives, nobody may drop its packs.
    watched.csub("queue")
    assert len(list((watched.state / "packs").iterdir())) == 1
    (gates / "go").touch()
    (job_id,) = settle(watched, earlier)
    rows = watched.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 2
    assert sorted(watched.output("ran.txt").split()) == [f"{job_id}/1", f"{job_id}/2"]


def test_a_pack_that_runs_before_its_id_is_known_writes_it_itself(watched: CsubUser) -> None:
    gates = open_gates(watched)
    (gates / "stop-at-after").touch()
    csub = watched.start(PACK)
    wait_until((gates / "after").exists, "the job is submitted")
    csub.kill()
    csub.communicate()
    wait_until(lambda: watched.output("ran.txt").count("\n") == 2, "the members run")
    job_id = watched.output("ran.txt").partition("/")[0]
    rows = watched.wait_for_states(job_id, "COMPLETED")
    assert list(rows) == [1, 2]


@pytest.mark.smoke
@pytest.mark.parametrize("moment", ["before", "after"])
def test_ctrl_c_while_sbatch_runs_takes_the_job_back(watched: CsubUser, moment: str) -> None:
    gates = open_gates(watched)
    earlier = set(list_slurm_jobs(watched))
    watched.script("a.sh", "sleep 300")
    (gates / f"stop-at-{moment}").touch()
    csub = watched.start(PACK)
    wait_until((gates / moment).exists, "sbatch is there")
    csub.send_signal(signal.SIGINT)
    (gates / "go").touch()
    out, err = csub.communicate(timeout=60)
    assert csub.returncode == 130
    assert out == ""
    (job_id,) = settle(watched, earlier)
    assert err == (f"csub: error: interrupted; job {job_id} was submitted and has been cancelled\n")
    watched.wait_for_states(job_id, "CANCELLED")


def test_ctrl_c_twice_gives_up_waiting_and_says_what_is_open(watched: CsubUser) -> None:
    gates = open_gates(watched)
    earlier = set(list_slurm_jobs(watched))
    (gates / "stop-at-after").touch()
    csub = watched.start(PACK)
    wait_until((gates / "after").exists, "the job is submitted, its answer is not there")
    csub.send_signal(signal.SIGINT)
    # Two signals that are pending at the same time would be one.
    wait_until(lambda: is_idle(csub.pid), "csub has seen the first")
    time.sleep(0.2)
    csub.send_signal(signal.SIGINT)
    out, err = csub.communicate(timeout=60)
    assert (csub.returncode, out) == (4, "")
    assert err == (
        "csub: error: sbatch was ended by signal 15 before it answered: what was asked may still "
        "be done; csub queue shows it as soon as it is known\n"
    )
    (job_id,) = settle(watched, earlier)
    watched.wait_for_states(job_id, "COMPLETED")


def is_idle(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_a_late_job_of_an_unanswered_submission_is_still_known(watched: CsubUser) -> None:
    gates = open_gates(watched)
    earlier = set(list_slurm_jobs(watched))
    (gates / "stop-at-before").touch()
    # sbatch is ended, but what it was about to ask happens all the same, later.
    late = watched.home / "bin" / "sbatch"
    late.write_text(fill_in(watched, LATE_SBATCH))
    ended = watched.csub(*PACK[1:], check=False)
    assert ended.returncode == 4
    assert ended.stderr == (
        "csub: error: Slurm's controller did not answer in time: Batch job submission failed: "
        "Socket timed out on send/recv operation: what was asked may still be done; csub queue "
        "shows it as soon as it is known\n"
    )
    assert "PENDING" in watched.csub("queue").stdout
    (gates / "go").touch()
    wait_until(lambda: set(list_slurm_jobs(watched)) - earlier, "the job turns up")
    (job_id,) = settle(watched, earlier)
    rows = watched.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_at_any_moment_leaves_all_of_a_submission_or_nothing(
    user: CsubUser, number: signal.Signals
) -> None:
    user.script("a.sh", "echo $SLURM_COLLOC_MEMBER >>ran.txt")
    # The state exists, and the time of a whole submission is known.
    began = time.monotonic()
    user.csub(*PACK[1:])
    whole_s = time.monotonic() - began
    chance = random.Random(int(number))
    earlier = set(list_slurm_jobs(user))
    submitted: list[str] = []
    cancelled: list[str] = []
    for attempt in range(14):
        before = set(list_slurm_jobs(user))
        csub = user.start(PACK)
        # Evenly over the submission, with some noise.
        time.sleep(whole_s * 1.1 * (attempt + chance.random()) / 14)
        csub.send_signal(number)
        out, err = csub.communicate(timeout=60)
        new = settle(user, before)
        assert len(new) <= 1
        submitted += new
        if number is signal.SIGINT and csub.returncode == 130 and new:
            assert f"job {new[0]} was submitted and has been cancelled" in err
            cancelled += new
        elif "Submitted batch job" in out:
            assert new == [out.split()[3]]
        elif number is signal.SIGINT:
            # Before its first line Python itself says what it was doing, or is not even up.
            is_early = csub.returncode == -signal.SIGINT and not err
            assert is_early or "interrupted" in err or "KeyboardInterrupt" in err
            assert new == []
    for job_id in submitted:
        user.run(["csub", "wait", job_id], check=False)
        states = {str(row["state"]) for row in user.members(job_id).values()}
        # It may have run before it was cancelled.
        assert states == {"COMPLETED"} or (job_id in cancelled and states == {"CANCELLED"})
    assert set(list_slurm_jobs(user)) - earlier == set(submitted)
    ran = user.output("ran.txt").split()
    assert len(ran) == len(set(ran))


@pytest.mark.exhaustive
def test_kill_between_any_two_steps_of_the_file_system_leaves_nothing_half_made(
    user: CsubUser,
) -> None:
    if not Path("/usr/bin/strace").exists():
        pytest.skip("strace is not installed")
    user.script("a.sh", "exit 0")
    user.finish(user.submit("pack", "--gres=gpu:1", "a.sh", "a.sh"))
    earlier = set(list_slurm_jobs(user))
    kinds = ("mkdir", "rename", "unlink", "link")
    killed = 0
    for kind in kinds:
        for count in itertools.count(1):
            ended = user.run(
                ["strace", "-o", "/dev/null", "-e", f"trace={kind}",
                 "-e", f"inject={kind}:signal=KILL:when={count}", *PACK[:2], "--hold", *PACK[2:]],
                check=False,
            )  # fmt: skip
            settle(user, earlier)
            if ended.returncode == 0:
                break
            killed += 1
            assert ended.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert killed >= 10


@pytest.mark.smoke
def test_files_of_the_state_are_private(user: CsubUser) -> None:
    user.script("a.sh", "exit 0")
    user.submit("pack", "--gres=gpu:1", "-c1", "--mem=100M", "--hold", "a.sh", "a.sh")
    for path in (user.state, *user.state.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode & 0o077 == 0, path
