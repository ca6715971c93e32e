"""A sandbox for each test that wants one, and users who run jobs in it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.installation import find_installation
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

_REPOSITORY = Path(__file__).parents[2]
_USERS = ("sbtest1", "sbtest2")

RunAs = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class UserPython:
    """An interpreter that an ordinary user can run, with the environment that finds csub."""

    user: str
    program: str
    environment: dict[str, str]


@pytest.fixture(scope="session")
def slurm() -> None:
    """Skip where there is no Slurm."""
    try:
        find_installation(os.environ)
    except SlurmUnreachable as problem:
        pytest.skip(str(problem))


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory that other users may enter and whose path leaves room for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="sb", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def sandbox(slurm: None, short_directory: Path) -> Iterator[Sandbox]:  # noqa: ARG001 - it skips
    """A sandbox that is not up yet, and is taken down at the end."""
    found = Sandbox(short_directory / "c")
    yield found
    found.down(purge=True)


@pytest.fixture(scope="session")
def host_cpus() -> int:
    """CPUs that the tests may use."""
    return len(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def shared_sandbox(slurm: None, host_cpus: int) -> Iterator[Sandbox]:  # noqa: ARG001 - it skips
    """One running sandbox of two nodes with real CPU counts, for tests that leave it whole."""
    directory = Path(tempfile.mkdtemp(prefix="sb", dir="/var/tmp"))
    directory.chmod(0o755)
    found = Sandbox(directory / "c")
    try:
        found.up(
            SandboxSpec(
                found.directory,
                cpus_per_node=host_cpus,
                fake_gpus=True,
                kill_wait_s=2,
                grace_time_s=1,
                requeue_delay_s=5,
            )
        )
        yield found
    finally:
        found.down(purge=True)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def users() -> Iterator[tuple[str, str]]:
    """Two ordinary users, made for the tests where they are missing."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    made = []
    for name in _USERS:
        try:
            pwd.getpwnam(name)
        except KeyError:
            subprocess.run(["useradd", "--create-home", name], check=True, capture_output=True)
            made.append(name)
    yield _USERS
    for name in made:
        subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)


@pytest.fixture(scope="session")
def run_as(users: tuple[str, str]) -> RunAs:  # noqa: ARG001 - it makes them
    """Run a program as an ordinary user; `sandbox=` says whose Slurm it talks to."""

    def run(
        user: str,
        argv: Sequence[str],
        *,
        sandbox: Sandbox | None = None,
        environment: dict[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        entry = pwd.getpwnam(user)
        base = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": entry.pw_dir,
            "USER": user,
            "LOGNAME": user,
            "LANG": "C.UTF-8",
        }
        ended = subprocess.run(
            argv,
            user=entry.pw_uid,
            group=entry.pw_gid,
            extra_groups=[],
            env={**base, **(sandbox.env(base) if sandbox else {}), **(environment or {})},
            cwd=entry.pw_dir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert not check or ended.returncode == 0, f"{argv}: {ended.stdout}{ended.stderr}"
        return ended

    return run


@pytest.fixture
def user_python(users: tuple[str, str], run_as: RunAs) -> UserPython:
    """The interpreter of the tests, or the system's, whichever an ordinary user can run."""
    packages = sysconfig.get_path("purelib")
    environment = {
        "PYTHONPATH": f"{_REPOSITORY}:{_REPOSITORY}/lab:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    reasons = []
    for program in (sys.executable, "/usr/bin/python3"):
        try:
            ended = run_as(
                users[0],
                [program, "-c", "import slurm_colloc_lab.sandbox.sandbox_command"],
                environment=environment,
                check=False,
            )
        except OSError as error:
            reasons.append(f"{program}: {error.strerror}")
            continue
        if ended.returncode == 0:
            return UserPython(users[0], program, environment)
        reasons.append(f"{program}: {(ended.stderr.splitlines() or ['failed'])[-1]}")
    pytest.skip(f"no interpreter that an ordinary user can run finds csub ({'; '.join(reasons)})")
