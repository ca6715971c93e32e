"""A Slurm of the tests' own, and users who submit to it with csub."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc.slurm.choose_access import VARIABLE
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.installation import find_installation
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

from .calls import run_csub

# Names of their own, so that two runs on one machine do not end each other's users.
USERS = (f"csub{os.getpid()}a", f"csub{os.getpid()}b")
PATIENCE_S = 60.0
POLL_S = 0.1
SLURM_LOOK_S = 1.5


@dataclass
class CsubUser:
    """Somebody who uses csub on a sandbox, with a home and a state directory of their own."""

    name: str
    uid: int
    gid: int
    home: Path
    sandbox: Sandbox
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.home / "state" / "slurm_colloc"

    @property
    def environment(self) -> dict[str, str]:
        base = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.home),
            "USER": self.name,
            "LOGNAME": self.name,
            "LANG": "C.UTF-8",
            "XDG_STATE_HOME": str(self.home / "state"),
        }
        # So that the same tests can ask through pyslurm (CONTRIBUTING.md).
        access = {key: value for key, value in os.environ.items() if key == VARIABLE}
        return {**base, **access, **self.sandbox.env(base), **self.extra}

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        directory: Path | None = None,
        environment: dict[str, str] | None = None,
        timeout_s: float = 120.0,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user; csub itself, `run(["csub", ...])`, is forked.

        It is started where CSUB_TEST_STARTED is set: packages of some machines have threads once
        they are imported, and no process is forked of one with threads.
        """
        environment = {**self.environment, **(environment or {})}
        directory = directory or self.home
        is_forked = argv[0] == "csub" and not os.environ.get("CSUB_TEST_STARTED")
        if is_forked and stdin is None:
            ended = run_csub(
                *argv[1:],
                environment=environment,
                directory=directory,
                user=(self.uid, self.gid) if self.identity else None,
                timeout_s=timeout_s,
            )
        else:
            ended = subprocess.run(
                list(argv),
                env=environment,
                cwd=directory,
                input=stdin if stdin is not None else "",
                capture_output=True,
                text=True,
                errors="surrogateescape",
                timeout=timeout_s,
                check=False,
                **self.identity,
            )
        if check:
            assert ended.returncode == 0, (
                f"{argv}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
            )
        return ended

    def start(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        """Start a program as this user and do not wait; the caller ends it."""
        return subprocess.Popen(
            list(argv),
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **self.identity,
        )

    @property
    def identity(self) -> dict[str, Any]:
        if os.geteuid() != 0 or self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def find(self, program: str) -> str:
        """Path of one of Slurm's programs, behind what a test has put into PATH before it."""
        folders = self.environment["PATH"].split(os.pathsep)
        behind = [folder for folder in folders if not Path(folder).is_relative_to(self.home)]
        found = shutil.which(program, path=os.pathsep.join(behind))
        assert found, program
        return found

    def csub(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run csub as this user."""
        return self.run(["csub", *arguments], check=check)

    def submit(self, *arguments: str) -> str:
        """Submit with csub (first word `pack` for csub pack); the job id."""
        words = list(arguments)
        head = [words.pop(0)] if words and words[0] == "pack" else []
        return self.csub(*head, "--parsable", *words).stdout.strip()

    def script(self, name: str, body: str, *, directives: str = "") -> Path:
        """Write a bash script into the user's home."""
        path = self.home / name
        path.write_text(f"#!/bin/bash\n{directives}\n{body}\n")
        path.chmod(0o755)
        os.chown(path, self.uid, self.gid)
        return path

    def members(self, job_id: str) -> dict[int, dict[str, Any]]:
        """`csub show --json` of a submission and of those that have joined it, by number."""
        names = [job_id, *self.list_joined(job_id)]
        rows = json.loads(self.csub("show", "--json", *names).stdout)
        return {int(row["member"].partition("/")[2]): row for row in rows}

    def list_joined(self, job_id: str) -> list[str]:
        """The numbers of the jobs that have joined the pack of a job."""
        found = []
        for path in self.state.glob("packs/*"):
            with contextlib.suppress(OSError, ValueError):
                if (path / "slurm_job_id").read_text().strip() == job_id:
                    specs = [json.loads(p.read_bytes()) for p in path.glob("members/*/spec.json")]
                    jobs = [spec["job"] for spec in specs]
                    found += [job["own_id"] for job in jobs if job.get("has_joined")]
        return found

    def find_address(self, number: str) -> str:
        """The member as which a job is in a pack, `4711/2`, by the number that was printed."""
        (row,) = json.loads(self.csub("show", "--json", number).stdout)
        return str(row["member"])

    def wait_for_states(
        self, job_id: str, wanted: str | dict[int, str], *, patience_s: float = PATIENCE_S
    ) -> dict[int, dict[str, Any]]:
        """Wait until members have these states (one for all, or by number)."""

        def reached(rows: dict[int, dict[str, Any]]) -> bool:
            if isinstance(wanted, str):
                return all(row["state"] == wanted for row in rows.values())
            return all(rows[number]["state"] == state for number, state in wanted.items())

        return self.wait_for_rows(job_id, reached, str(wanted), patience_s=patience_s)

    def wait_for_rows(
        self,
        job_id: str,
        reached: Callable[[dict[int, dict[str, Any]]], Any],
        what: str,
        *,
        patience_s: float = PATIENCE_S,
    ) -> dict[int, dict[str, Any]]:
        """Wait until members are as wanted; all rows."""
        deadline = time.monotonic() + patience_s
        while True:
            before = self._find_changes()
            rows = self.members(job_id)
            if reached(rows):
                return rows
            if time.monotonic() > deadline:
                seen = {number: (row["state"], row["reason"]) for number, row in rows.items()}
                pytest.fail(f"{job_id}: wanted {what}, have {seen}\n{self.describe(job_id)}")
            self._wait_for_change(before)

    def _find_changes(self) -> dict[str, int]:
        """When something was last written for each pack and each member."""
        folders = (*self.state.glob("packs/*"), *self.state.glob("packs/*/members/*"))
        found = {}
        for folder in folders:
            with contextlib.suppress(OSError):
                found[str(folder)] = folder.stat().st_mtime_ns
        return found

    def _wait_for_change(self, before: dict[str, int]) -> None:
        """Wait until something is written, or Slurm may have more to say.

        A look is a whole csub, which takes more from a small machine than what is waited for.
        """
        until = time.monotonic() + SLURM_LOOK_S
        while self._find_changes() == before and time.monotonic() < until:
            time.sleep(POLL_S)

    def finish(self, job_id: str, *, patience_s: float = PATIENCE_S) -> dict[int, dict[str, Any]]:
        """Wait until all members have ended (csub wait), those that joined, too; their rows."""
        names = [job_id, *self.list_joined(job_id)]
        self.run(["csub", "wait", *names], check=False, timeout_s=patience_s)
        return self.members(job_id)

    def index(self, job_id: str) -> Path:
        """The file in the state that says which packs a job id stands for."""
        for name in (f"{job_id}.json", f"*.{job_id}.json"):
            for path in (self.state / "jobs").glob(name):
                return path
        return self.state / "jobs" / f"{job_id}.json"

    def output(self, name: str) -> str:
        """A file in the user's home, empty while it is not there."""
        with contextlib.suppress(FileNotFoundError):
            return (self.home / name).read_text(errors="surrogateescape")
        return ""

    def describe(self, job_id: str) -> str:
        """What is known of a submission, for a failing test."""
        shown = self.csub("show", job_id, check=False)
        logs = [
            f"--- {path}\n{path.read_text(errors='replace')}"
            for pattern in (
                "packs/*/pack.log",
                "packs/*/events.jsonl",
                "packs/*/members/*/run.*.log",
            )
            for path in sorted(self.state.glob(pattern))[-8:]
        ]
        queue = self.run(["squeue", "--states=all"], check=False).stdout
        return shown.stdout + shown.stderr + queue + "".join(logs)


def administrate(user: CsubUser, *argv: str, check: bool = True) -> None:
    """Run a Slurm command as the one who runs the cluster."""
    root = CsubUser("root", os.geteuid(), os.getegid(), Path("/"), user.sandbox)
    root.run(list(argv), check=check)


def require_slurm() -> None:
    try:
        find_installation(os.environ)
    except SlurmUnreachable as problem:
        pytest.skip(str(problem))


@contextlib.contextmanager
def running_sandbox(**changes: Any) -> Iterator[Sandbox]:
    """A sandbox of its own, taken down at the end."""
    require_slurm()
    directory = Path(tempfile.mkdtemp(prefix="cs", dir="/var/tmp"))
    directory.chmod(0o755)
    sandbox = Sandbox(directory / "c")
    settings: dict[str, Any] = {
        "fake_gpus": True,
        # Most tests are not about the GPU, and are quicker without a simulated one.
        "simgpu": False,
        "kill_wait_s": 3,
        "grace_time_s": 4,
        "requeue_delay_s": 5,
        **changes,
    }
    extra = tuple(settings.pop("extra_conf", ()))
    for name, text in settings.pop("files", {}).items():
        path = sandbox.directory / "etc" / name
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(text)
    if not any(line.startswith("FirstJobId=") for line in extra):
        # Tests of root's hooks, which ask the kernel for jobs of any Slurm here, have small ids.
        extra = ("FirstJobId=2001", *extra)
    try:
        sandbox.up(SandboxSpec(sandbox.directory, **settings, extra_conf=extra))
        yield sandbox
    finally:
        sandbox.down(purge=True)
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def user_of(sandbox: Sandbox, name: str) -> Iterator[CsubUser]:
    """A user with a fresh home on a path that nodes and the login side share."""
    home = Path(tempfile.mkdtemp(prefix="home", dir="/var/tmp"))
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and can_reach_checkout(name):
        entry = pwd.getpwnam(name)
        uid, gid = entry.pw_uid, entry.pw_gid
        os.chown(home, uid, gid)
    else:
        name = pwd.getpwuid(uid).pw_name
    user = CsubUser(name, uid, gid, home, sandbox)
    try:
        yield user
    finally:
        # Nothing of a test stays in the queue of a shared sandbox.
        subprocess.run(
            ["scancel", f"--user={name}"], env=user.environment, check=False, capture_output=True
        )
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            wait_until_quiet(user)
        shutil.rmtree(home, ignore_errors=True)


def wait_until_quiet(user: CsubUser) -> None:
    """Wait until Slurm runs nothing of the user any more."""
    deadline = time.monotonic() + 30
    while user.run(["squeue", "-h", "-u", user.name], check=False).stdout.strip():
        if time.monotonic() > deadline:
            return
        time.sleep(POLL_S)


_reachable: dict[str, bool] = {}


def can_reach_checkout(name: str) -> bool:
    """An ordinary user can run the interpreter of the tests and import the package."""
    if name not in _reachable:
        entry = pwd.getpwnam(name)
        try:
            ended = subprocess.run(
                [sys.executable, "-I", "-c", "import slurm_colloc.runtime.runner"],
                user=entry.pw_uid,
                group=entry.pw_gid,
                extra_groups=[],
                cwd="/",
                capture_output=True,
                check=False,
            )
            _reachable[name] = ended.returncode == 0
        except OSError:
            _reachable[name] = False
    return _reachable[name]
