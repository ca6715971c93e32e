"""`csub shell`: inside a running member, with a command and with a real terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..bed import PATIENCE_S, CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

# The member's process is one whose environment, directory and umask differ from its submission's.
BUSY = 'export KEY="value of $1"; cd sub; umask 027; touch ../up.$1; exec sleep 600'
ASK = 'echo "$KEY|$PWD|$(umask)|$CUDA_VISIBLE_DEVICES|$SLURM_COLLOC_MEMBER|$SLURM_CPUS_PER_TASK"'
CPUS = "grep Cpus_allowed_list /proc/self/status"


def start_two(user: CsubUser, *options: str) -> str:
    """A pack of two members that run and have set themselves up."""
    user.run(["mkdir", "sub"])
    user.script("busy.sh", BUSY)
    job_id = user.submit(
        "pack", *options, "--cpus-per-task=1", "--mem=100M", "busy.sh 1", "busy.sh 2"
    )
    user.wait_for_states(job_id, "RUNNING")
    wait_until(
        lambda: (user.home / "up.1").exists() and (user.home / "up.2").exists(), "both are set up"
    )
    wait_until(lambda: len(find_processes("sleep", "600")) >= 2, "both have become sleep")
    return job_id


def find_processes(*argv: str) -> list[int]:
    """Processes with this command line."""
    wanted = "\0".join(argv).encode() + b"\0"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == wanted:
                found.append(int(path.parent.name))
    return found


def shell(
    user: CsubUser, member: str, *command: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return user.run(["csub", "shell", member, *command], check=False, stdin=stdin)


@pytest.mark.smoke
def test_a_command_runs_where_the_member_runs(honest_user: CsubUser) -> None:
    user = honest_user
    job_id = start_two(user, "--gres=gpu:1")
    rows = user.members(job_id)
    for number in (1, 2):
        told = shell(user, f"{job_id}/{number}", "--", "sh", "-c", f"{ASK}; {CPUS}")
        assert told.returncode == 0, told.stderr
        answer, cpus = told.stdout.splitlines()
        assert answer.split("|") == [
            f"value of {number}",
            str(user.home / "sub"),
            "0027",
            "0",
            f"{job_id}/{number}",
            "1",
        ]
        assert cpus.split()[-1] == ",".join(map(str, rows[number]["cpus"]))
    assert rows[1]["cpus"] != rows[2]["cpus"]
    user.csub("cancel", job_id)


@pytest.mark.smoke
def test_exit_codes_input_and_options_of_the_command_are_its_own(user: CsubUser) -> None:
    job_id = start_two(user, "--gres=gpu:1")
    assert shell(user, f"{job_id}/1", "sh", "-c", "exit 7").returncode == 7
    assert shell(user, f"{job_id}/1", "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = shell(user, f"{job_id}/1", "--", "no-such-program", "--help")
    assert missing.returncode == 127
    assert "csub: error: no-such-program: No such file or directory" in missing.stderr
    typed = shell(user, f"{job_id}/2", stdin="echo $KEY; exit 5\n")
    assert (typed.stdout, typed.returncode) == ("value of 2\n", 5)
    counted = shell(user, f"{job_id}/2", "--", "wc", "-l", stdin="a\nb\n")
    assert counted.stdout.strip() == "2"
    user.csub("cancel", job_id)


def test_nothing_is_left_behind_and_the_members_are_not_touched(user: CsubUser) -> None:
    job_id = start_two(user, "--gres=gpu:1")
    seconds = f"60{os.getpid()}"
    told = shell(
        user, f"{job_id}/1", "--", "sh", "-c", f"setsid sleep {seconds} >/dev/null 2>&1 & sleep 0.5"
    )
    assert told.returncode == 0, told.stderr
    assert find_processes("sleep", seconds) == []
    wait_until(
        lambda: "shell" not in user.run(["squeue", "-h", "--steps", "-o", "%j"]).stdout,
        "its step is gone",
    )
    assert {row["state"] for row in user.members(job_id).values()} == {"RUNNING"}
    assert {row["starts"] for row in user.members(job_id).values()} == {1}
    user.csub("cancel", job_id)


def test_a_shell_ends_with_its_member(user: CsubUser) -> None:
    job_id = start_two(user, "--gres=gpu:1")
    seconds = f"61{os.getpid()}"
    inside = user.start(["csub", "shell", f"{job_id}/1", "--", "sleep", seconds])
    try:
        wait_until(lambda: find_processes("sleep", seconds), "the command runs")
        user.csub("cancel", f"{job_id}/1")
        _, complaint = inside.communicate(timeout=PATIENCE_S)
    finally:
        inside.kill()
        inside.wait()
    assert inside.returncode != 0
    assert f"{job_id}/1 has ended, and this shell with it" in complaint
    assert find_processes("sleep", seconds) == []
    assert user.members(job_id)[2]["state"] == "RUNNING"
    user.csub("cancel", job_id)


class Terminal:
    """A person at a terminal who has called csub."""

    def __init__(self, user: CsubUser, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        os.fchown(slave, user.uid, user.gid)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "csub", *arguments],
            stdin=slave, stdout=slave, stderr=slave, cwd=user.home,
            env={**user.environment, "TERM": "vt100"}, **user.identity,
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read_until(self, condition: Callable[[str], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.seen):
            assert time.monotonic() < deadline, f"not seen: {what}\n{self.seen}"
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:
                    assert condition(self.seen), f"closed before: {what}\n{self.seen}"

    def close(self) -> None:
        # As a terminal's window does: its session is hung up.
        os.close(self._master)
        try:
            self.process.wait(timeout=PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.mark.parametrize("kind", ["pack", "lone", "local"])
def test_a_shell_on_a_terminal(user: CsubUser, kind: str) -> None:
    user.extra["SHELL"] = "/bin/bash"
    if kind == "pack":
        member = f"{start_two(user, '--gres=gpu:1')}/2"
    else:
        user.run(["mkdir", "sub"])
        user.script("busy.sh", BUSY)
        local = ["--local"] if kind == "local" else ["--gres=gpu:1"]
        member = f"{user.submit(*local, 'busy.sh', '2')}/1"
        user.wait_for_states(member.partition("/")[0], "RUNNING")
        wait_until(lambda: find_processes("sleep", "600"), "it has become sleep")
    interrupted, left = f"62{os.getpid()}", f"63{os.getpid()}"
    terminal = Terminal(user, "shell", member)
    try:
        terminal.type('test -t 0 && echo "[$KEY|$TERM|$SLURM_COLLOC_MEMBER|$((6*7))]"; pwd\n')
        terminal.read_until(lambda seen: f"[value of 2|vt100|{member}|42]" in seen, "the answer")
        terminal.read_until(lambda seen: f"{user.home}/sub" in seen, "the directory")
        # Job control works: Ctrl-C ends the command and not the shell.
        terminal.type(f"sleep {interrupted}\n")
        wait_until(lambda: find_processes("sleep", interrupted), "the command runs")
        terminal.type("\x03")
        wait_until(lambda: not find_processes("sleep", interrupted), "the command was interrupted")
        terminal.type(f"sleep {left} & echo started; exit 3\n")
        terminal.process.wait(timeout=PATIENCE_S)
        assert terminal.process.returncode == 3
        wait_until(lambda: not find_processes("sleep", left), "nothing is left behind")
    finally:
        terminal.close()
    assert user.members(member)[int(member.partition("/")[2])]["state"] == "RUNNING"
    user.csub("cancel", member.partition("/")[0])
    user.finish(member.partition("/")[0])


def test_a_member_that_does_not_run_cannot_be_entered(user: CsubUser) -> None:
    user.script("end.sh", "exit 0")
    held = user.submit("pack", "--gres=gpu:1", "--hold", "end.sh", "end.sh")
    told = shell(user, f"{held}/1")
    assert told.returncode == 2
    assert f"{held}/1 is PENDING: only a running member can be entered" in told.stderr
    assert f"csub why {held}/1" in told.stderr
    several = shell(user, held)
    assert several.returncode == 2
    assert f"{held} stands for 0 running members" in several.stderr
    assert shell(user, f"{held}/9").returncode == 7
    user.csub("cancel", held)


def test_an_element_of_an_array_is_entered_by_its_own_id(user: CsubUser) -> None:
    user.script("go.sh", "while [ ! -e go ]; do sleep 0.1; done")
    job_id = user.submit("--array=0-3", "--gres=gpu:1", "--degree=2", "go.sh")
    user.wait_for_states(job_id, "RUNNING")
    for number in (0, 3):
        told = shell(user, f"{job_id}/{number}", "sh", "-c", "echo $SLURM_ARRAY_TASK_ID")
        assert told.stdout == f"{number}\n", told.stderr
    user.run(["touch", "go"])
    user.finish(job_id)
