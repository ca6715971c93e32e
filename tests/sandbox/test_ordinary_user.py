"""A whole sandbox of an ordinary user: no root anywhere."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from slurm_colloc.host.system.node_processes import (
    list_running_processes,
    read_command_line,
    read_environment,
    read_uid,
)
from slurm_colloc_lab.sandbox.sandbox_processes import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.root]

RunAs = Callable[..., subprocess.CompletedProcess[str]]


class UserPython(Protocol):
    @property
    def user(self) -> str: ...
    @property
    def program(self) -> str: ...
    @property
    def environment(self) -> dict[str, str]: ...


@pytest.fixture
def state(short_directory: Path, user_python: UserPython) -> Iterator[Path]:
    """The user's state directory."""
    entry = pwd.getpwnam(user_python.user)
    directory = short_directory / "s"
    directory.mkdir()
    os.chown(directory, entry.pw_uid, entry.pw_gid)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def find_processes_of(user: str, directory: Path) -> list[tuple[str, ...]]:
    uid = pwd.getpwnam(user).pw_uid
    return [
        read_command_line(process.id.pid)
        for process in list_running_processes()
        if read_uid(process.id.pid) == uid
        and (
            any(str(directory) in word for word in read_command_line(process.id.pid))
            or str(directory) in read_environment(process.id.pid).get("SLURM_CONF", "")
        )
    ]


def test_an_ordinary_user_brings_up_uses_and_takes_down_a_cluster(
    slurm: None, user_python: UserPython, run_as: RunAs, state: Path
) -> None:
    assert slurm is None
    user = user_python.user
    environment = {**user_python.environment, "XDG_STATE_HOME": str(state)}
    code = "import sys; from slurm_colloc_lab.sandbox.sandbox_command import main; "
    code += "sys.exit(main(sys.argv[1:]))"

    def csub(*words: str) -> str:
        argv = [user_python.program, "-c", code, *words]
        return str(run_as(user, argv, environment=environment).stdout)

    try:
        csub("up", "--fake-gpus")
        status = json.loads(csub("status", "--format", "json"))
        assert status["running"]
        assert status["directory"] == str(state / "slurm_colloc" / "sandbox")
        assert status["cgroups"]["version"] == 0
        assert [(node["state"], node["gpus"]) for node in status["nodes"]] == [("idle", 2)] * 2
        variables = json.loads(csub("env", "--format", "json"))
        if shutil.which("cc"):
            listed = run_as(user, ["simgpu", "status"], environment={**environment, **variables})
            assert listed.stdout.count("NVIDIA H200  default  0 of") == 4
        out = state / "out"
        script = state / "job.sh"
        script.write_text(
            "#!/bin/sh\n"
            "srun --overlap -n1 sh -c 'id -un; echo $CUDA_VISIBLE_DEVICES'\n"
            "exec 3>/dev/null\n"
            "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' </dev/null >&3 2>&3 &\n"
            "echo ready\n"
            "while :; do sleep 1; done\n"
        )
        argv = ["sbatch", "--parsable", "--gres=gpu:1", "-o", str(out), str(script)]
        run_as(user, argv, environment={**environment, **variables})
        assert wait_until(lambda: out.exists() and "ready" in out.read_text(), 60)
        lines = out.read_text().split()
        assert lines[0] == user
        assert lines[1].isdigit()
    finally:
        csub("down")
    assert find_processes_of(user, state) == []
    assert "Nothing runs" in csub("down")
