"""The wrapper as the real process that it is, without Slurm."""

from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.runtime.programs import wrapper
from slurm_colloc.runtime.step_command import Launch, build_wrapper_argv

from ..wait_until import wait_until

PATIENCE_S = 60


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Wrapped:
    """A member's start in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.prefix = root / "run.1.1"
        self.output = root / "out"
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        script: str | bytes,
        *,
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        mode: int = 0o700,
        directory: Path | None = None,
        input_path: str | None = None,
        truncate: bool = False,
        **changes: Any,
    ) -> Wrapped:
        path = self.root / "script"
        path.write_bytes(script.encode() if isinstance(script, str) else script)
        path.chmod(mode)
        values: dict[str, Any] = {
            "argv": (str(path), *arguments),
            "environment": sorted(
                ({"PATH": os.defpath} if environment is None else environment).items()
            ),
            "directory": str(directory or self.root),
            "cpus": (),
            "truncate": truncate,
            "input": input_path,
            "output": str(self.output),
            "error": None,
            "umask": 0o022,
            "prefix": str(self.prefix),
            "runner_pid": os.getpid(),
            "kill_wait_s": PATIENCE_S,
            "passes_on": False,
            "own_tmpdir": "",
            "is_step": False,
            **changes,
        }
        launch = self.root / "run.1.1.launch"
        launch.write_text(json.dumps({"schema": 1, **dataclasses.asdict(Launch(**values))}))
        self.process = subprocess.Popen(
            build_wrapper_argv(sys.executable, str(launch)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return self

    def started(self) -> dict[str, Any]:
        path = Path(f"{self.prefix}.started")
        wait_until(path.exists, "the member did not start")
        return dict(json.loads(path.read_text()))

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Its exit status and its exit record."""
        assert self.process is not None
        self.said = self.process.communicate(timeout=PATIENCE_S)[0].decode()
        return self.process.returncode, json.loads(Path(f"{self.prefix}.exit").read_text())

    def run(self, script: str | bytes, **changes: Any) -> tuple[int, dict[str, Any]]:
        return self.start(script, **changes).finish()

    def wait_for_output(self, text: str) -> None:
        wait_until(lambda: self.output.exists() and text in self.output.read_text(), f"no {text!r}")

    def clean(self) -> None:
        if self.process is not None and self.process.poll() is None:
            for path in (f"{self.prefix}.started",):
                if Path(path).exists():
                    pid = json.loads(Path(path).read_text())["pid"]
                    if is_alive(pid):
                        os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def wrapped(tmp_path: Path) -> Iterator[Wrapped]:
    entry = Wrapped(tmp_path)
    yield entry
    entry.clean()


@pytest.mark.parametrize(
    ("command", "status", "word"),
    [("exit 0", 0, 0), ("exit 3", 3, 3 << 8), ("exit 255", 255, 255 << 8),
     ("kill -KILL $$", 137, 9), ("kill -USR1 $$", 138, 10)],
)  # fmt: skip
def test_the_exit_status_is_the_scripts(
    wrapped: Wrapped, command: str, status: int, word: int
) -> None:
    found, record = wrapped.run(f"#!/bin/sh\n{command}\n")
    assert found == status
    assert record["wait_status"] == word
    assert record["foreign_signals"] == []
    assert record["problem"] == ""
    assert wrapped.said == ""


def test_the_launch_file_is_gone_as_soon_as_the_script_runs(wrapped: Wrapped) -> None:
    wrapped.run(f"#!/bin/sh\nls {wrapped.root}\n")
    names = wrapped.output.read_text().split()
    assert "run.1.1.launch" not in names
    # A reader that sees the script running also finds its record.
    assert "run.1.1.started" in names


def test_the_script_sees_exactly_the_environment_that_it_was_given(wrapped: Wrapped) -> None:
    environment = {
        "PATH": "/bin",
        "BYTES": b"\xff\xfe \xc3\xa4".decode("utf-8", "surrogateescape"),
        "LINES": "a\nb 'c' \"d\" $e;",
        "EMPTY": "",
        "WITH=": "x",
    }
    environment.pop("WITH=")
    wrapped.run("#!/bin/cat /proc/self/environ\n", environment=environment)
    found = dict(
        item.split(b"=", 1)
        for item in wrapped.output.read_bytes().partition(b"#!")[0].split(b"\0")
        if item
    )
    assert int(found.pop(b"SLURM_TASK_PID")) == wrapped.started()["pid"]
    assert found == {
        b"PATH": b"/bin",
        b"BYTES": b"\xff\xfe \xc3\xa4",
        b"LINES": b"a\nb 'c' \"d\" $e;",
        b"EMPTY": b"",
    }


def test_arguments_arrive_as_they_were_given(wrapped: Wrapped) -> None:
    arguments = (
        "a b",
        "",
        "'\"",
        "x\ny",
        "$(id);",
        "--",
        b"\xff".decode("utf-8", "surrogateescape"),
    )
    wrapped.run("#!/bin/sh\nprintf '%s|' \"$@\"\n", arguments=arguments)
    assert wrapped.output.read_bytes() == b"a b||'\"|x\ny|$(id);|--|\xff|"


def test_what_the_script_left_running_is_ended(wrapped: Wrapped) -> None:
    # One that ignores TERM, and one in a session of its own.
    status, _ = wrapped.run(
        "#!/bin/bash\n(trap '' TERM; while :; do sleep 100 & wait; done) >/dev/null 2>&1 &\n"
        "echo $!\nsetsid sleep 100 >/dev/null 2>&1 &\necho $!\nexit 4\n"
    )
    assert status == 4
    left = [int(word) for word in wrapped.output.read_text().split()]
    assert len(left) == 2
    assert not any(is_alive(pid) for pid in left)


def test_term_of_the_runner_reaches_every_process_of_the_member(wrapped: Wrapped) -> None:
    # The inner one is in a session of its own.
    (wrapped.root / "inner").write_text(
        "trap 'echo inner; exit 0' TERM\necho up\nwhile :; do sleep 0.05; done\n"
    )
    wrapped.start("#!/bin/bash\ntrap 'echo outer; wait; exit 9' TERM\nsetsid sh inner &\nwait\n")
    wrapped.wait_for_output("up")
    assert wrapped.process is not None
    wrapped.process.terminate()
    status, record = wrapped.finish()
    assert status == 9
    assert {"inner", "outer"} <= set(wrapped.output.read_text().split())
    assert record["foreign_signals"] == []
    assert record["terminated"] is True


def test_kill_follows_after_kill_wait(wrapped: Wrapped) -> None:
    wrapped.start(
        "#!/bin/bash\ntrap 'echo no' TERM\necho up\nwhile :; do sleep 0.05; done\n", kill_wait_s=0.3
    )
    wrapped.wait_for_output("up")
    assert wrapped.process is not None
    wrapped.process.terminate()
    status, record = wrapped.finish()
    assert (status, record["wait_status"]) == (137, signal.SIGKILL)
    assert "no" in wrapped.output.read_text()


def test_a_stopped_member_is_ended_too(wrapped: Wrapped) -> None:
    wrapped.start("#!/bin/sh\necho up\nkill -STOP $$\n", kill_wait_s=PATIENCE_S)
    wrapped.wait_for_output("up")
    assert wrapped.process is not None
    wrapped.process.terminate()
    assert wrapped.finish()[0] == 128 + signal.SIGTERM


def test_other_signals_of_the_runner_go_to_the_script_alone(wrapped: Wrapped) -> None:
    wrapped.start(
        "#!/bin/bash\ntrap 'echo got; exit 5' USR1\necho up\nwhile :; do sleep 0.05; done\n"
    )
    wrapped.wait_for_output("up")
    assert wrapped.process is not None
    wrapped.process.send_signal(signal.SIGUSR1)
    status, record = wrapped.finish()
    assert status == 5
    assert record["foreign_signals"] == []
    # It was not told to end.
    assert record["terminated"] is False


@pytest.mark.parametrize("passes_on", [False, True])
def test_signals_of_others_are_noted(wrapped: Wrapped, passes_on: bool) -> None:
    wrapped.start(
        "#!/bin/bash\ntrap 'echo passed' TERM\ntrap 'exit 6' USR1\necho up\n"
        "while :; do sleep 0.05; done\n",
        passes_on=passes_on,
    )
    wrapped.wait_for_output("up")
    assert wrapped.process is not None
    subprocess.run(["/bin/kill", "-TERM", str(wrapped.process.pid)], check=True)
    if passes_on:
        wrapped.wait_for_output("passed")
    wrapped.process.send_signal(signal.SIGUSR1)
    status, record = wrapped.finish()
    assert status == 6
    assert [number for number, _ in record["foreign_signals"]] == [signal.SIGTERM]
    assert ("passed" in wrapped.output.read_text()) is passes_on


def test_its_own_temporary_directory_is_private_and_goes_with_it(wrapped: Wrapped) -> None:
    own = wrapped.root / "tmp of 4711"
    wrapped.run(
        '#!/bin/sh\nstat -c %a "$TMPDIR"; mkdir -p "$TMPDIR/deep"; touch "$TMPDIR/deep/file"\n',
        environment={"PATH": os.defpath, "TMPDIR": str(own)}, own_tmpdir=str(own),
    )  # fmt: skip
    assert wrapped.output.read_text() == "700\n"
    assert not own.exists()


def test_a_missing_directory_is_told_as_slurm_tells_it(wrapped: Wrapped) -> None:
    wrapped.run("#!/bin/sh\npwd\n", directory=wrapped.root / "none")
    assert wrapped.output.read_text() == (
        f"error: couldn't chdir to `{wrapped.root}/none': No such file or directory: "
        "going to /tmp instead\n/tmp\n"
    )


@pytest.mark.parametrize(
    ("first_line", "expected"),
    [("#!/bin/sh", "S|a b"), ("#! /bin/sh -e ", "S|a b"), ("#!/usr/bin/env sh", "S|a b")],
)
def test_a_script_that_may_not_be_executed_runs_by_its_first_line(
    wrapped: Wrapped, first_line: str, expected: str
) -> None:
    # Without the permission, execve answers as on a file system mounted noexec.
    status, _ = wrapped.run(
        f'{first_line}\nprintf "%s|%s" "${{0##*/}}" "$1"\n', mode=0o600, arguments=("a b",)
    )
    assert status == 0
    assert wrapped.output.read_text() == expected.replace("S", "script")


def test_an_interpreter_that_is_not_there_is_told(wrapped: Wrapped) -> None:
    status, record = wrapped.run("#!/no/such/python\n")
    assert status == 127
    expected = f"it could not be started: {wrapped.root}/script: No such file or directory"
    assert record["problem"] == expected
    assert wrapped.output.read_text() == f"csub: {expected}\n"


def test_a_missing_input_is_told_in_the_members_own_file(wrapped: Wrapped) -> None:
    status, record = wrapped.run("#!/bin/sh\ncat\n", input_path="none.txt")
    assert status == 127
    assert "none.txt: No such file or directory" in record["problem"]
    assert "none.txt: No such file or directory" in wrapped.output.read_text()


def test_input_is_read_from_a_file_or_is_empty(wrapped: Wrapped) -> None:
    (wrapped.root / "in.txt").write_text("hello\n")
    wrapped.run("#!/bin/sh\ncat\n", input_path="in.txt")
    wrapped.run('#!/bin/sh\necho "[$(cat)]"\n')
    assert wrapped.output.read_text() == "hello\n[]\n"


def test_output_is_appended_or_truncated(wrapped: Wrapped) -> None:
    wrapped.run("#!/bin/sh\necho one\n")
    wrapped.run("#!/bin/sh\necho two; echo three >&2\n")
    assert wrapped.output.read_text() == "one\ntwo\nthree\n"
    wrapped.run("#!/bin/sh\necho four\n", truncate=True)
    assert wrapped.output.read_text() == "four\n"


def test_errors_go_to_a_file_of_their_own_or_the_same(wrapped: Wrapped) -> None:
    script = "#!/bin/sh\necho out; echo err >&2\n"
    wrapped.run(script, error=str(wrapped.root / "err"))
    assert wrapped.output.read_text() == "out\n"
    assert (wrapped.root / "err").read_text() == "err\n"
    wrapped.run(script, output="same", error="./same", truncate=True)
    assert (wrapped.root / "same").read_text() == "out\nerr\n"


def test_the_script_has_the_users_umask(wrapped: Wrapped) -> None:
    wrapped.run("#!/bin/sh\ntouch made\n", umask=0o027)
    assert stat.S_IMODE((wrapped.root / "made").stat().st_mode) == 0o640
    assert stat.S_IMODE(wrapped.output.stat().st_mode) == 0o640


def test_the_script_is_bound_to_its_cpus(wrapped: Wrapped) -> None:
    cpu = max(os.sched_getaffinity(0))
    wrapped.run("#!/bin/sh\ngrep Cpus_allowed_list /proc/self/status\n", cpus=(cpu,))
    assert wrapped.output.read_text().split()[1] == str(cpu)
    assert wrapped.started()["cpus"] == [cpu]


def test_the_script_inherits_no_signal_that_the_wrapper_blocks_or_ignores(wrapped: Wrapped) -> None:
    wrapped.run("#!/bin/sh\ngrep -E 'SigBlk|SigIgn' /proc/self/status\n")
    blocked, ignored = (
        int(line.split()[1], 16) for line in wrapped.output.read_text().splitlines()
    )
    assert blocked == 0
    # What the caller of the tests ignores stays ignored; what Python ignores does not.
    own = re.search(r"SigIgn:\s*(\w+)", Path("/proc/self/status").read_text())
    assert own
    of_python = (1 << (signal.SIGPIPE - 1)) | (1 << (signal.SIGXFSZ - 1))
    assert ignored == int(own[1], 16) & ~of_python


def test_a_wrapper_whose_runner_is_gone_starts_nothing(wrapped: Wrapped) -> None:
    wrapped.start("#!/bin/sh\necho up\n", runner_pid=1)
    assert wrapped.process is not None
    wrapped.process.communicate(timeout=PATIENCE_S)
    assert wrapped.process.returncode == 1
    assert not wrapped.output.exists()


def test_one_thread_that_has_gone_hides_no_child_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = subprocess.Popen(["sleep", "300"])
    listed = os.listdir

    def list_one_more(path: str) -> list[str]:
        # First comes a thread that ended between the look at the directory and at itself.
        return [str(2**30), *listed(path)] if path.endswith("/task") else listed(path)

    try:
        monkeypatch.setattr(os, "listdir", list_one_more)
        assert child.pid in wrapper.list_descendants()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOSPC])
def test_a_record_is_written_again_where_the_file_system_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failures = [number, number]
    replace = os.replace

    def fail(source: str, target: str) -> None:
        if failures:
            raise OSError(failures.pop(), "")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    wrapper.write_record(str(tmp_path / "run.1.1.exit"), {"wait_status": 0})
    assert wrapper.load(str(tmp_path / "run.1.1.exit")) == {"schema": 1, "wait_status": 0}
    assert failures == []


def test_a_launch_that_another_version_has_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.1.1.launch"
    path.write_text('{"schema": 2}')
    with pytest.raises(ValueError, match=rf"{path} is of another version \(schema 2\)"):
        wrapper.load(str(path))


def test_a_record_for_which_there_is_no_place_any_more_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        wrapper.write_record(str(tmp_path / "gone" / "run.1.1.exit"), {"wait_status": 0})


def test_members_that_start_together_wait_for_each_other(tmp_path: Path) -> None:
    prefixes = []
    for number in (1, 2):
        folder = tmp_path / "members" / f"{number:04d}"
        folder.mkdir(parents=True)
        prefixes.append(f"{folder}/run.1.1")
    first = multiprocessing.get_context("fork").Process(
        target=wrapper.wait_for_others, args=(prefixes[0], 2)
    )
    first.start()
    first.join(0.5)
    assert first.is_alive()
    assert wrapper.wait_for_others(prefixes[1], 2) == ""
    first.join(30)
    assert first.exitcode == 0
    # One that starts again in the same attempt waits for none, in the next for all.
    assert wrapper.wait_for_others(prefixes[0], 2) == ""
    assert sorted(path.name for path in (tmp_path).glob("together.*/*")) == ["0001", "0002"]


def test_members_that_never_come_are_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrapper, "_TOGETHER_S", 0.1)
    folder = tmp_path / "members" / "0001"
    folder.mkdir(parents=True)
    told = wrapper.wait_for_others(f"{folder}/run.1.1", 3)
    assert "with 1 of 3 members that were to start together" in told


def test_a_temporary_directory_that_cannot_be_made_is_told_as_slurm_tells_it(
    wrapped: Wrapped,
) -> None:
    own = wrapped.root / "no such scratch" / "csub-4711-1"
    status, record = wrapped.run(
        '#!/bin/sh\necho "$TMPDIR"\n',
        environment={"PATH": os.defpath, "TMPDIR": str(own)}, own_tmpdir=str(own),
    )  # fmt: skip
    assert (status, record["wait_status"]) == (0, 0)
    assert wrapped.output.read_text() == (
        f"error: Unable to create TMPDIR [{own}]: No such file or directory: using /tmp instead\n"
        "/tmp\n"
    )


@pytest.mark.parametrize(
    ("status", "shares", "is_step_group", "expected"),
    [
        # A group of its own counts its own kills, however its script took them.
        (0, False, True, 2),
        (5 << 8, False, True, 2),
        # Among neighbours they are its own where its script was killed.
        (0, True, True, 0),
        (5 << 8, True, True, 0),
        (9, True, True, 2),
        (137 << 8, True, True, 2),
        # Where Slurm makes no group for a step, that of its daemon counts those of the node.
        (0, False, False, 0),
        (9, False, False, 2),
    ],
)
def test_a_neighbour_that_was_killed_for_memory_makes_no_other_one_that(
    status: int, shares: bool, is_step_group: bool, expected: int
) -> None:
    launch = {"shares_cgroup": shares}
    seen = (1, is_step_group), (3, is_step_group)
    assert wrapper.count_oom_kills(*seen, status, launch) == expected


def test_kills_that_cannot_be_read_are_none() -> None:
    assert wrapper.count_oom_kills(None, (3, True), 9, {}) is None
    assert wrapper.count_oom_kills((3, True), None, 9, {}) is None


@pytest.mark.parametrize(
    ("group", "expected"),
    [("/slurm/uid_0/job_1/step_0/task_0", (4, True)), ("/user.slice/session-2.scope", (4, False))],
)
def test_a_memory_group_says_whether_it_is_of_a_step(
    monkeypatch: pytest.MonkeyPatch, group: str, expected: tuple[int, bool]
) -> None:
    files = {
        "/proc/self/cgroup": f"3:memory:{group}\n",
        f"/sys/fs/cgroup/memory{group}/memory.oom_control": "oom_kill_disable 0\noom_kill 4\n",
    }
    monkeypatch.setattr(wrapper, "read", lambda path: files.get(path, ""))
    assert wrapper.read_oom_kills() == expected


def test_a_signal_of_others_that_comes_again_and_again_is_noted_once(wrapped: Wrapped) -> None:
    script = "#!/bin/sh\nfor i in 1 2 3; do kill -USR1 $PPID; kill -USR2 $PPID; sleep 0.1; done\n"
    _, record = wrapped.run(script)
    numbers = [number for number, _ in record["foreign_signals"]]
    assert numbers == [signal.SIGUSR1, signal.SIGUSR2]


def test_a_process_that_no_kill_ends_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    killed: list[int] = []

    def wait(numbers: object, timeout_s: float) -> None:  # noqa: ARG001
        clock[0] += timeout_s

    # As one that hangs in the kernel: it stays, whatever it is sent.
    monkeypatch.setattr(wrapper, "list_descendants", lambda: [2**30])
    monkeypatch.setattr(wrapper, "signal_all", killed.append)
    monkeypatch.setattr(signal, "sigtimedwait", wait)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    wrapper.end_leftovers(None)
    assert killed.count(signal.SIGKILL) > 1
    assert clock[0] > wrapper.UNKILLABLE_S
