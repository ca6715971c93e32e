"""A sandbox that keeps accounts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox import accounting
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_command import main
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

from ..accounting.accounting_sandbox import require_accounting
from ..wait_until import wait_until


def ask_sacct(sandbox: Sandbox, job_id: str) -> list[str]:
    ended = subprocess.run(
        ["sacct", "-n", "-P", "-X", "-o", "jobid,state", "-j", job_id],
        env=sandbox.env(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ended.stdout.split()


@pytest.mark.slurm
def test_ended_jobs_are_known_also_after_the_sandbox_was_down(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    require_accounting()
    spec = SandboxSpec(sandbox.directory, nodes=1, fake_gpus=True, simgpu=False, accounting=True)
    started = sandbox.up(spec).started
    assert started[:4] == ("munged", "database", "slurmdbd", "slurmctld")
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nexit 3\n")
    ended = subprocess.run(
        ["sbatch", "--parsable", "--wait", "--mem=50M", "--output=/dev/null", script],
        env=sandbox.env(), capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    job_id = ended.stdout.strip()
    wait_until(lambda: ask_sacct(sandbox, job_id) == [f"{job_id}|FAILED"], "it is accounted")
    # One that dies is brought back by itself.
    (pid,) = [d.pid for d in sandbox.status().daemons if d.name == "slurmdbd"]
    assert pid is not None
    subprocess.run(["kill", "-9", str(pid)], check=True)
    wait_until(lambda: not sandbox.status().running, "slurmdbd is gone")
    assert sandbox.up().started == ("slurmdbd",)
    sandbox.down()
    assert [daemon for daemon in sandbox.status().daemons if daemon.alive] == []
    sandbox.up(spec)
    assert ask_sacct(sandbox, job_id) == [f"{job_id}|FAILED"]
    # Its passwordless database is for its owner alone.
    assert sandbox.layout.accounts.stat().st_mode & 0o777 == 0o700
    sandbox.down(purge=True)
    assert not sandbox.directory.exists()


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        ((), "no slurmdbd and MariaDB server on this machine"),
        (("mariadbd",), "no slurmdbd on this machine"),
        (("slurmdbd",), "no MariaDB server on this machine"),
    ],
)
def test_what_it_needs_is_named_in_a_sentence(  # noqa: PLR0917 - fixtures
    sandbox: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    programs: tuple[str, ...],
    words: str,
) -> None:
    real = accounting.find_accounting_programs
    tables = tmp_path / "tables.sql"
    tables.touch()
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(accounting, "DAEMON_DIRECTORIES", ())
    monkeypatch.setattr(accounting, "_TABLES", (tables,))
    monkeypatch.setattr(
        "slurm_colloc_lab.sandbox.start_sandbox.find_accounting_programs",
        lambda _: real({"PATH": str(tmp_path)}),
    )
    status = main(["up", "--dir", str(sandbox.directory), "--fake-gpus", "--accounting"])
    told = capsys.readouterr().err
    assert status == 4
    assert told.startswith(f"csub: error: {words}, and --accounting needs")
    assert "Debian, Ubuntu: slurmdbd mariadb-server-core" in told
