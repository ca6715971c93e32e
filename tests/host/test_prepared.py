"""What a job believes of a setup that root has prepared, and what it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import NodeError
from slurm_colloc.host.keeper.prepared_daemon import (
    PreparedDaemon,
    PreparedSetup,
    adopt_daemon,
    read_prepared,
)
from slurm_colloc.host.mps.mps_state import MpsOptions
from slurm_colloc.runtime.node_daemon import choose_daemon, find_prepared

from .conftest import GPU, write_program

NOBODY = 65534
OTHER_GPU = "GPU-0a41ce45-e82a-a159-ec6f-fe593e0e1c21"
SETUP: dict[str, Any] = {
    "schema": 1,
    "job_id": "11",
    "mode": "mps",
    "reason": "",
    "by": "prolog",
    "gpus": [GPU],
    "daemons": [
        {"gpus": [GPU], "pipe_directory": "/run/x/11/0/p", "control_ms": 18.5, "active_ms": None}
    ],
    "compute_mode": "DEFAULT",
    "notes": [],
}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")


@pytest.fixture
def write(short_directory: Path) -> Callable[..., Path]:
    def write_setup(text: str | None = None, **changes: Any) -> Path:
        path = short_directory / "11" / "setup.json"
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o711)
        path.write_text(json.dumps({**SETUP, **changes}) if text is None else text)
        path.chmod(0o644)
        return path

    return write_setup


def read_as_user(run: Path) -> str:
    """What an ordinary user reads there: the mode, or why nothing is believed."""
    program = (
        "import sys\n"
        "from slurm_colloc.errors import NodeError\n"
        "from slurm_colloc.host.keeper.prepared_daemon import read_prepared\n"
        "try:\n"
        "    found = read_prepared(sys.argv[1], '11')\n"
        "    print('none' if found is None else found.mode)\n"
        "except NodeError as error:\n"
        "    print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", program, str(run)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        pytest.skip(f"ordinary users cannot read this checkout: {ended.stderr[-200:]}")
    return ended.stdout.strip()


def test_roots_setup_is_read(write: Callable[..., Path]) -> None:
    run = write().parent.parent
    setup = read_prepared(str(run), "11")
    assert setup is not None
    assert setup.daemons == (PreparedDaemon((GPU,), "/run/x/11/0/p", 18.5),)
    assert read_prepared(str(run), "12") is None
    assert read_prepared("/nowhere", "11") is None


@pytest.mark.root
@needs_root
def test_a_user_reads_what_root_has_written_and_believes_nobody_else(
    write: Callable[..., Path],
) -> None:
    path = write()
    run = path.parent.parent
    assert read_as_user(run) == "mps"
    path.chmod(0o666)
    assert "not a file that only root can write" in read_as_user(run)
    path.chmod(0o644)
    for changed, words in (
        (path, "not a file that only root can write"),
        (path.parent, "somebody else than root could change"),
        (run, "somebody else than root could change"),
    ):
        os.chown(changed, NOBODY, NOBODY)
        assert words in read_as_user(run)
        os.chown(changed, 0, 0)
    path.parent.chmod(0o777)
    assert "somebody else than root" in read_as_user(run)
    path.parent.chmod(0o711)
    other = run / "other.json"
    path.rename(other)
    assert read_as_user(run) == "none"
    path.symlink_to(other)
    assert "cannot be read" in read_as_user(run)
    path.unlink()
    os.mkfifo(path)
    path.chmod(0o644)
    assert "not a file that only root can write" in read_as_user(run)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", json.dumps({**SETUP, "job_id": "12"}), json.dumps({"schema": 1})],
)
def test_a_damaged_setup_is_told(write: Callable[..., Path], text: str) -> None:
    run = write(text).parent.parent
    with pytest.raises(NodeError, match="damaged"):
        read_prepared(str(run), "11")
    environ = {"SLURM_JOB_ID": "11", "SLURM_COLLOC_RUN": str(run)}
    found = find_prepared(environ, (GPU,))
    assert found.daemon is None
    assert "is damaged" in found.notes[0]


def test_a_newer_setup_is_told(write: Callable[..., Path]) -> None:
    with pytest.raises(NodeError, match="newer version"):
        read_prepared(str(write(schema=2).parent.parent), "11")


def test_why_nothing_was_prepared_is_told(write: Callable[..., Path]) -> None:
    run = write(mode="", reason="NVML is absent", daemons=[]).parent.parent
    environ = {"SLURM_JOB_ID": "11", "SLURM_COLLOC_RUN": f"{run.parent}/%n", "SLURMD_NODENAME": ""}
    environ["SLURMD_NODENAME"] = run.name
    found = find_prepared(environ, (GPU,))
    assert (found.daemon, found.notes) == (None, ("the node has prepared no MPS: NVML is absent",))


def test_where_there_is_no_job_or_no_hook_nothing_is_said() -> None:
    for environ in ({}, {"SLURM_JOB_ID": "11", "SLURM_COLLOC_RUN": "/nowhere"}):
        found = find_prepared(environ, (GPU,))
        assert (found.daemon, found.notes) == (None, ())


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ((GPU,), ""),
        ((), ""),
        ((OTHER_GPU,), "serves exactly the pack's GPUs"),
        ((GPU, OTHER_GPU), "serves exactly the pack's GPUs"),
    ],
)
def test_the_daemon_must_serve_the_packs_gpus(gpus: tuple[str, ...], words: str) -> None:
    daemon = PreparedDaemon((GPU,), "/run/x/11/0/p")
    setup = PreparedSetup("mps", "", (daemon,))
    found, reason = choose_daemon(setup, gpus)
    assert (found is None) is bool(words)
    assert words in reason


def test_a_daemon_that_is_not_there_is_not_adopted(short_directory: Path) -> None:
    for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        write_program(short_directory / name, "#!/bin/sh\nexit 1\n")
    pipe = short_directory / "11" / "0" / "p"
    pipe.mkdir(parents=True)

    def adopt(path: Path) -> None:
        adopt_daemon(MpsOptions(gpus=(GPU,), path=str(short_directory), adopt=str(path)))

    with pytest.raises(NodeError, match="no process listens on the control socket"):
        adopt(pipe)
    with pytest.raises(NodeError, match="is not a pipe directory"):
        adopt(pipe.parent)
    with pytest.raises(NodeError, match="cannot be reached from here"):
        adopt(short_directory / "12" / "0" / "p")
    pipe.parent.chmod(0o777)
    with pytest.raises(NodeError, match="somebody else than root"):
        adopt(pipe)
