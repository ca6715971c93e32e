"""What would fail or wait for ever is said where it is submitted, and named where it has failed."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import check_refused

GPU = ("--gres=gpu:1", "--time=5")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("-c", "640", "ok.sh"),
            (
                "ok.sh: it asks for 640 CPUs, and a node of partition gpu has 16 at most: ask for "
                "fewer, or for another partition"
            ),
        ),
        (
            ("--array=0-1", "--time=8-0", "ok.sh"),
            (
                "ok.sh: it asks for --time=8-00:00:00, and partition gpu allows 7-00:00:00 at "
                "most: give a shorter --time, or another partition"
            ),
        ),
        (
            ("pack", "--gres=gpu:a100:1", "ok.sh", "ok.sh"),
            (
                "ok.sh: it asks for a GPU of type a100, and no node of partition gpu has any: "
                "sinfo -o '%P %c %m %G' shows what each partition has"
            ),
        ),
    ],
)
def test_what_no_node_can_hold_is_refused(
    scripts: CsubUser, words: tuple[str, ...], sentence: str
) -> None:
    first, rest = (words[:1], words[1:]) if words[0] == "pack" else ((), words)
    check_refused(scripts, (*first, *GPU, *rest), 3, sentence)


@pytest.mark.parametrize(
    ("column", "cell", "status", "told"),
    [
        (
            "cpus-per-task", "640", 3,
            ("it asks for 640 CPUs, and a node of partition gpu has 16 at most: ask for fewer, or "
            "for another partition"),
        ),
        (
            "time", "8-0", 3,
            ("it asks for --time=8-00:00:00, and partition gpu allows 7-00:00:00 at most: give a "
            "shorter --time, or another partition"),
        ),
        (
            "gres", "gpu:a100:1", 3,
            ("it asks for a GPU of type a100, and no node of partition gpu has any: sinfo -o "
            "'%P %c %m %G' shows what each partition has"),
        ),
        (
            "profile-like", "x", 2,
            ("--profile-like='x': no usage profile has this name or signature: csub profile list "
            "shows those that there are"),
        ),
    ],
)  # fmt: skip
def test_the_cell_of_a_table_that_asks_for_it_is_named(
    scripts: CsubUser, column: str, cell: str, status: int, told: str
) -> None:
    table = scripts.home / "jobs.csv"
    table.write_text(f"script,{column}\nok.sh,\nok.sh,{cell}\n")
    check_refused(
        scripts, ("batch", *GPU, "jobs.csv"), status, f"jobs.csv:3, column {column}: {told}"
    )


def test_the_line_of_a_script_that_asks_for_it_is_named(scripts: CsubUser) -> None:
    scripts.script("wide.sh", "true", directives="#SBATCH -c 640\n#SBATCH --gres=gpu:1")
    told = (
        "wide.sh:2: it asks for 640 CPUs, and a node of partition gpu has 16 at most: ask for "
        "fewer, or for another partition"
    )
    check_refused(scripts, ("wide.sh",), 3, told)


@pytest.mark.parametrize("words", [(), ("--array=0-1",)], ids=["lone", "array"])
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--output=nodir/%a.out", "the directory nodir of --output=nodir/%a.out does not exist"),
        ("--chdir=/nonexistent", "its working directory /nonexistent does not exist"),
    ],
)
def test_a_missing_directory_is_told_at_submission(
    scripts: CsubUser, slurm: FakeSlurm, words: tuple[str, ...], option: str, told: str
) -> None:
    slurm.pause()
    ended = scripts.run(["csub", *GPU, *words, option, "ok.sh"])
    assert f"csub: ok.sh: {told} here; unless it is made in time, the job fails\n" in ended.stderr
    assert ended.stdout.startswith("Submitted batch job ")


def test_a_member_that_could_not_be_started_is_no_end_of_its_script(scripts: CsubUser) -> None:
    job_id = scripts.submit(*GPU, "--array=0-1", "--output=nodir/%a.out", "ok.sh")
    scripts.run(["csub", "wait", job_id], check=False)
    told = scripts.csub("explain", f"{job_id}/1").stdout
    assert "  End:       not started\n" in told
    assert "nodir/1.out: No such file or directory" in told


def test_a_failure_shows_the_last_line_of_its_output(scripts: CsubUser) -> None:
    scripts.script("bad.sh", "echo epoch 1; echo 'ValueError: no such dataset' >&2; exit 1")
    scripts.script("good.sh", "echo all done")
    job_id = scripts.submit("pack", *GPU, "bad.sh", "good.sh")
    scripts.run(["csub", "wait", job_id], check=False)
    bad, good = scripts.csub("why", job_id).stdout.splitlines()
    assert "exit code 1; the last line of its output: ValueError: no such dataset; " in bad
    assert "all done" not in good


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--array=0-1", "ok.sh"),
            "no GPU is asked for (--gres=gpu:1), so there is nothing to share",
        ),
        (
            (*GPU, "-c8", "--array=0-1", "ok.sh"),
            "none of these jobs shares a GPU: 2 at once need 16 CPUs, the GPU's share is 8",
        ),
        ((*GPU, "--array=0-1", "ok.sh"), ""),
        ((*GPU, "--degree=1", "--array=0-1", "ok.sh"), ""),
        ((*GPU, "--quiet", "-c8", "--array=0-1", "ok.sh"), ""),
    ],
)  # fmt: skip
def test_a_person_is_told_why_nothing_shares(
    scripts: CsubUser, words: tuple[str, ...], told: str
) -> None:
    leader, follower = pty.openpty()
    try:
        ended = subprocess.run(
            [scripts.find("csub"), *words], cwd=scripts.home, env=scripts.environment, check=False,
            stdout=subprocess.PIPE, stderr=follower, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        os.close(follower)
        follower = -1
        said = b""
        while True:
            try:
                block = os.read(leader, 4096)
            except OSError:
                break
            if not block:
                break
            said += block
    finally:
        os.close(leader)
        if follower >= 0:
            os.close(follower)
    assert ended.returncode == 0
    # What stands on standard output is for programs, so the answer's rest comes first.
    lines = said.decode().splitlines()
    assert lines[1:] == ([f"csub: {told}"] if told else [])
    # A program that reads standard error is not told.
    assert not told or told not in scripts.run(["csub", *words]).stderr
