"""What `csub admin verify` says of a node that cannot keep a daemon within its job."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from slurm_colloc.administration.node_files import NodeFile, install_files
from slurm_colloc.administration.slurm_conf import Places
from slurm_colloc.administration.verify_hooks import Verification
from slurm_colloc.cli import admin_hooks
from slurm_colloc.cli.admin_hooks import check_limits, check_tracing
from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.node_policy import NodePolicy
from slurm_colloc.host.system.control_groups import read_hierarchies

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")


def look(policy: NodePolicy, slurm: dict[str, str]) -> tuple[str, str]:
    found = Verification("", "")
    check_limits(found, policy, slurm)
    [check] = found.checks
    return check.outcome, check.detail


@pytest.mark.root
@is_root
def test_what_a_daemon_is_limited_to_is_said() -> None:
    if len(read_hierarchies()) == 0:
        pytest.skip("no cgroup tree here")
    outcome, detail = look(NodePolicy(daemon_memory_mb=333), {})
    if outcome == "note":
        pytest.skip(f"this machine limits less: {detail}")
    assert outcome == "ok"
    assert "333 MiB of host memory" in detail
    assert list(Path(read_hierarchies()[0].mount, "slurm_colloc").glob("verify-*")) == []


@pytest.mark.parametrize(("requires", "outcome"), [(False, "note"), (True, "failed")])
def test_what_cannot_be_limited_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, requires: bool, outcome: str
) -> None:
    monkeypatch.setattr(admin_hooks, "read_hierarchies", lambda: ())
    policy = NodePolicy(require_limits=requires)
    told, detail = look(policy, {"SLURM_VERSION": "24.11.5"})
    assert told == outcome
    assert "devices, host memory, processes cannot be limited" in detail
    assert "mount the cgroup controllers devices, memory and pids" in detail
    assert "PrologFlags=Alloc,Contain,RunInJob" in detail
    # Before 24.05 there is no such flag.
    assert "RunInJob" not in look(policy, {"SLURM_VERSION": "23.11.10"})[1]


def test_hooks_inside_the_job_need_no_limits_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_hooks, "read_hierarchies", lambda: ())
    told = look(NodePolicy(require_limits=True), {"PrologFlags": "Alloc,Contain,RunInJob"})
    assert told[0] == "ok"
    assert "the job's own limits hold" in told[1]


@pytest.mark.parametrize(
    ("scope", "outcome", "words"),
    [
        (None, "note", "this kernel has no Yama"),
        ("0", "note", "sysctl kernel.yama.ptrace_scope=1"),
        ("1", "ok", "ptrace_scope is 1"),
        ("3", "ok", "ptrace_scope is 3"),
    ],
)
def test_yama_is_one_line(tmp_path: Path, scope: str | None, outcome: str, words: str) -> None:
    path = tmp_path / "ptrace_scope"
    if scope is not None:
        path.write_text(f"{scope}\n")
    found = Verification("", "")
    check_tracing(found, str(path))
    [check] = found.checks
    assert check.outcome == outcome
    assert words in check.detail


@pytest.mark.root
@is_root
@pytest.mark.parametrize(("mode", "works"), [(0o775, True), (0o777, False)])
def test_a_log_directory_below_one_of_a_groups(mode: int, works: bool) -> None:
    """Ubuntu's /var/log is root's and the group syslog may write in it."""
    base = Path("/var/tmp") / f"conf{os.getpid()}{mode}"
    log = base / "var" / "log"
    log.mkdir(parents=True)
    for path in (base, base / "var"):
        path.chmod(0o755)
    log.chmod(mode)
    places = Places(base=str(base))
    files = [
        NodeFile(places.etc_path, None, 0o755),
        NodeFile(str(Path(places.log_path).parent), None, 0o750),
    ]
    try:
        if not works:
            with pytest.raises(NodeError, match="may be written by others"):
                install_files(places, files, [])
            return
        install_files(places, files, [])
        assert (log / "slurm_colloc").stat().st_mode & 0o777 == 0o750
    finally:
        shutil.rmtree(base)
