"""Both ways to Slurm, on recorded answers and on a sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc.slurm.pyslurm_backend import PyslurmAccess, find_pyslurm
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.installation import find_installation
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

from . import scenario

RECORDED = Path(__file__).parent / "recorded"
RELEASES = ("22.05", "24.11", "25.11", "26.05")

# A program that gives back what Slurm's command of that name answered, if it is called as then.
_PLAYER = """#!{python} -IS
import json, os, sys
from pathlib import Path
argv = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
name = Path({chosen!r}).read_text()
text = (Path({folder!r}) / f"{{name}}.txt").read_text()
command, status, rest = text.split("\\n", 2)
if json.loads(command.removeprefix("$ ")) != argv:
    sys.exit(f"recorded was {{command}}, called is {{argv}}")
stdout, _, stderr = rest.removeprefix("--- stdout\\n").partition("--- stderr\\n")
sys.stdout.write(stdout)
sys.stderr.write(stderr)
sys.exit(int(status.removeprefix("exit ")))
"""


@dataclass
class Recording:
    """The recorded answers of one release, and a way to Slurm that gets them."""

    slurm: SlurmAccess
    jobs: dict[str, str]
    chosen: Path

    def play(self, name: str) -> SlurmAccess:
        """Answer the next question with this recording."""
        self.chosen.write_text(name)
        return self.slurm


class PyslurmError(Exception):
    pass


def build_library(rows: list[dict[str, Any]]) -> Any:
    """What the backend uses of pyslurm, with recorded jobs."""
    loaded = {row["id"]: SimpleNamespace(**{**row, "user_id": os.getuid()}) for row in rows}
    return SimpleNamespace(Jobs=SimpleNamespace(load=lambda: loaded), PyslurmError=PyslurmError)


@pytest.fixture(params=[*RELEASES, "25.11 with pyslurm"])
def recording(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Recording:
    release = str(request.param).partition(" ")[0]
    folder = RECORDED / release
    programs = tmp_path / "bin"
    programs.mkdir()
    chosen = tmp_path / "chosen"
    for name in ("squeue", "sinfo", "scontrol", "scancel", "sacct"):
        text = _PLAYER.format(python=sys.executable, folder=str(folder), chosen=str(chosen))
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.defpath}")
    slurm: SlurmAccess = SlurmAccess()
    if "pyslurm" in request.param:
        kept = json.loads((folder / "pyslurm.json").read_text())
        slurm = PyslurmAccess(build_library(kept["jobs"]))
    jobs = json.loads((folder / "jobs.json").read_text())
    return Recording(slurm, jobs, chosen)


@dataclass(frozen=True)
class Live:
    """A sandbox with the jobs of the scenario."""

    sandbox: Sandbox
    jobs: dict[str, str]


@contextlib.contextmanager
def environment_of(variables: Mapping[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A sandbox of the Slurm in PATH, with a hidden partition; this process is its client."""
    try:
        find_installation(os.environ)
    except SlurmUnreachable as problem:
        pytest.skip(str(problem))
    directory = Path(tempfile.mkdtemp(prefix="acc", dir="/var/tmp"))
    directory.chmod(0o755)
    sandbox = Sandbox(directory / "c")
    conf = ("PartitionName=hidden Nodes=ALL Hidden=YES MaxTime=60 State=UP", "MessageTimeout=2")
    try:
        sandbox.up(SandboxSpec(sandbox.directory, nodes=1, fake_gpus=True, extra_conf=conf))
        with environment_of(sandbox.env()):
            yield Live(sandbox, scenario.start_jobs(hidden_partition="hidden"))
    finally:
        sandbox.down(purge=True)
        shutil.rmtree(directory, ignore_errors=True)


def open_pyslurm() -> SlurmAccess:
    """Slurm over pyslurm, for whatever cluster SLURM_CONF names."""
    finding = find_pyslurm(os.environ, "")
    if finding.obstacle:
        pytest.skip(finding.obstacle)
    import pyslurm

    return PyslurmAccess(pyslurm)


@pytest.fixture(params=["commands", "pyslurm"])
def access(request: pytest.FixtureRequest, live: Live) -> SlurmAccess:
    """Each way to Slurm; pyslurm only where it is installed and matches the Slurm in PATH."""
    assert os.environ["SLURM_CONF"] == str(live.sandbox.layout.slurm_conf)
    return SlurmAccess() if request.param == "commands" else open_pyslurm()
