"""Root's hooks against what a job's user can put in their way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from slurm_colloc.host.lifecycle import UNSAFE_PROLOG

from .hook_node import (
    NOBODY,
    OTHER,
    PATIENCE_S,
    HookNode,
    check_clean,
)

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]


def test_links_that_a_user_has_planted_are_not_followed(bed: HookNode) -> None:
    secret = bed.home / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    kept = bed.home / "kept"
    (kept / "inside").mkdir(parents=True)
    (kept / "inside" / "file").write_text("stays")
    bed.prolog()
    for name in ("p", "l"):
        place = bed.run / "11" / "0" / name
        (place / "control.log").unlink(missing_ok=True)
        (place / "control.log").symlink_to(secret)
        # The job's own file system takes no link to a file elsewhere.
        with pytest.raises(OSError, match="cross-device"):
            os.link(secret, place / "server.log")
        (place / "directory").symlink_to(kept)
        (place / "deep").mkdir()
        (place / "deep" / "up").symlink_to("/")
        for path in (place, *place.rglob("*")):
            if not path.is_symlink():
                os.chown(path, NOBODY, NOBODY)
    ended = bed.epilog()
    assert ended.status == 0
    assert secret.read_text() == "of root"
    assert (kept / "inside" / "file").read_text() == "stays"
    assert secret.stat().st_uid == 0
    check_clean(bed)


def test_a_run_directory_that_a_user_has_made_beforehand_is_not_used(bed: HookNode) -> None:
    bed.run.mkdir()
    os.chown(bed.run, NOBODY, NOBODY)
    ended = bed.prolog()
    assert (ended.status, ended.audit["action"]) == (0, "none")
    assert "is not root's alone" in ended.audit["outcome"]
    assert bed.epilog().status == 0
    assert list(bed.run.iterdir()) == []
    bed.write_policy(strict=True)
    assert bed.prolog().status == UNSAFE_PROLOG


@pytest.mark.parametrize("kind", ["directory", "link", "file"])
def test_something_in_the_place_of_a_jobs_directory(bed: HookNode, kind: str) -> None:
    target = bed.home / "target"
    target.mkdir()
    (target / "file").write_text("stays")
    bed.prolog("12")
    bed.epilog("12")
    place = bed.run / "11"
    if kind == "link":
        place.symlink_to(target)
    elif kind == "file":
        place.write_text("x")
    else:
        (place / "0" / "p").mkdir(parents=True)
        os.chown(place / "0" / "p", OTHER, OTHER)
    ended = bed.prolog()
    assert ended.status == 0
    assert ended.audit["action"] == "prepared"
    assert (target / "file").read_text() == "stays"
    assert bed.epilog().status == 0
    assert bed.list_programs() == []


def test_another_user_listens_where_the_daemon_should(bed: HookNode) -> None:
    bed.prolog()
    os.kill(bed.peer().pid, signal.SIGKILL)
    pipe = bed.run / "11" / "0" / "p"
    (pipe / "control").unlink()
    program = (
        "import socket, sys, time\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind(sys.argv[1]); s.listen(); print('up', flush=True); time.sleep(600)\n"
    )
    impostor = subprocess.Popen(
        [sys.executable, "-c", program, str(pipe / "control")],
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    try:
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == b"up\n"
        ended = bed.epilog()
        # It is no daemon of ours: left alone, and waited for no longer than any other.
        assert ended.status == 0
        assert impostor.poll() is None
        check_clean(bed)
    finally:
        impostor.kill()
        impostor.wait()
        assert impostor.stdout is not None
        impostor.stdout.close()


@pytest.mark.parametrize("size_kb", [4, 16, 64, 200, 264, 300])
def test_a_full_run_directory_costs_the_job_nothing(bed: HookNode, size_kb: int) -> None:
    bed.run.mkdir()
    both = (
        f"mount -t tmpfs -o size={size_kb}k,mode=755 tmpfs {bed.run} || exit 99\n"
        f"head -c {max(0, size_kb - 12)}k /dev/zero > {bed.run}/notes\n"
        f"{_quote(bed.argv('prolog'))} || exit 98\n"
        f"{_quote(bed.argv('epilog'))} || exit 97\n"
        f"rm {bed.run}/notes; ls -A {bed.run} {bed.run}/jobs\n"
    )
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", both],
        env=bed.environment("11"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if ended.returncode == 1 and "unshare" in ended.stderr:
        pytest.skip("no mount namespaces here")
    assert ended.returncode in (0, 2), (ended.returncode, ended.stderr, bed.read_audit())
    first = bed.read_audit()[0]
    assert first["exit"] == 0
    # What the daemon writes has a place of its own; only root's own files need this one.
    assert (first["action"] == "prepared") is not bool(first["outcome"])
    assert "11" not in ended.stdout.split()
    assert "11.json" not in ended.stdout
    assert bed.list_programs() == []


def _quote(argv: list[str]) -> str:
    return " ".join(f"'{word}'" for word in argv)
