"""hooks/prolog.sh and hooks/epilog.sh: when they start the program, with what, and when not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.comment_token import parse_token

from .conftest import FAILED, HOOKS, STARTED, Installed, install, list_shells

SHELLS = [pytest.param(shell, id=shell[0]) for shell in list_shells()]
TOKENS = (
    b"[csub/1 mps]",
    b"[csub/1 mps gpus=each]",
    b"[csub/1 off]",
    b"[csub/1 off gpus=each]",
    b"[csub/1 mig=7g]",
    b"[csub/1 mps power=40]",
    b"[csub/1 off gpus=each power=9999]",
    b"[csub/1 mig=3g+2g power=450]",
    b"[csub/1 mig=3g+2g+1g+1g]",
    b"[csub/1 mig=1g+1g+1g+1g+1g+1g+1g gpus=each]",
    b"[csub/1 mig=1g.10gb+me+3c.3g.40gb+1g+gfx+2g.120gb+me.all+1g.5gb-me+1g+1g]",
)
COMMANDS = (
    b"$(touch MARK)", b"`touch MARK`", b";touch MARK;", b"'; touch MARK; '", b'"; touch MARK; "',
    b"\ntouch MARK\n", b"|touch MARK", b"&&touch MARK", b"${IFS}", b"*", b"?", b"[!a]", b"~root",
    b"\\", b"-e", b"--", b"=", b"\x1b[2J", b"\xff\xfe", b"\r", b"../../../etc/passwd", b"%s%n",
)  # fmt: skip
HOSTILE_COMMENTS = (
    b"", b"]", b"[csub/1 ]", b"[csub/1 mps", b"[csub/1 mps] ", b"[csub/1 mps]\n", b"x[csub/1 mps]",
    b"\t[csub/1 mps]", b"[csub/1  mps]", b"[csub/2 mps]", b"[CSUB/1 MPS]", b"[csub/1 mps]]",
    b"[csub/1 mig=]", b"[csub/1 mig=+]", b"[csub/1 mig=1g+]", b"[csub/1 mig=9g]",
    b"[csub/1 mig=1g+1g+1g+1g+1g+1g+1g+1g]", b"[csub/1 mig=[12347]g]", b"[csub/1 mig=*]",
    b"[csub/1 mig=1g+me+me]", b"[csub/1 mig=me]", b"[csub/1 mig=1g-me+me]", b"[csub/1 mig=3g.*gb]",
    b"[csub/1 mps power=]", b"[csub/1 mps power=4]", b"[csub/1 mps power=04]",
    b"[csub/1 mps power=99999]", b"[csub/1 mps power=-40]", b"[csub/1 mps power=4e9]",
    b"[csub/1 mps power=40 power=40]", b"[csub/1 mps power=40 gpus=each]", b"[csub/1 power=40]",
    b"[csub/1 mps] power=40]", b"[csub/1 mps power=\xd9\xa34]", b"[csub/1 mps power=4\n0]",
    b"[csub/1 mig=1g.10gb+]", b"[csub/1 mig=1g+ME]", b"[csub/1 mig=8c.7g]", b"[csub/1 mig=1g.0gb]",
    b"[csub/1 mig=" + b"+".join([b"1g"] * 300) + b"]", b"[csub/1 mig=1g.10gb.20gb]",
    b"[csub/1 *]", b"[csub/1 ?ps]", b"[csub/1 m[p]s]", b"[csub/1 mps gpus=all]",
    b"[csub-pack=20260101-000000-0a0b0c0d]", b"[csub/1 mps] [csub-pack=x]",
    b"x" * 1100 + b" [csub/1 mps]", b"\xc3\xbc" * 506 + b" [csub/1 mps]",
    b"[csub/1 mig=" * 80 + b"1g]", b"[csub/1 " * 128 + b"]", b" [csub/1 mps" * 9000 + b"]",
    *(b"[csub/1 " + words + b"]" for words in COMMANDS),
    *(b"[csub/1 mig=1g" + words + b"]" for words in COMMANDS),
    *(b"[csub/1 mps power=40" + words + b"]" for words in COMMANDS),
    *(b"[csub/1 mps]" + words for words in COMMANDS),
    *(words + b"[csub/1 mps]" for words in COMMANDS if not words.endswith(b" ")),
)  # fmt: skip
HOSTILE_IDS = (
    b"", b" ", b"-1", b"+1", b"1 ", b" 1", b"1\n", b"\n1", b"1;2", b"0x10", b"1e3", b"1.5", b"/",
    b".", b"..", b"../1", b"1/../1", b"1/..", b"*", b"?", b"[0-9]", b"12345678901", b"1" * 5000,
    b"\xd9\xa3", b"\xff", b"4711_2", b"1+1", *COMMANDS,
)  # fmt: skip
PIECES = st.sampled_from(
    [*COMMANDS, *TOKENS, b"[csub/1 ", b"]", b"mps", b"off", b"mig=", b"1g", b"+", b"3g+4g", b" ",
     b"me", b".all", b"-me", b"gfx", b"2c.", b".10gb", b".", b"c",
     b" gpus=each", b" power=", b"450", b"\n", b"\xc3\xbc"]
)  # fmt: skip
ANY_COMMENT = st.one_of(
    st.lists(PIECES | st.binary(max_size=4), max_size=6).map(b"".join),
    st.tuples(st.binary(max_size=20), st.sampled_from(TOKENS)).map(b" ".join),
    st.binary(max_size=40).map(lambda text: b"[csub/1 " + text + b"]"),
    st.tuples(st.sampled_from([b"x", b"\xc3\xbc"]), st.integers(990, 1030)).map(
        lambda pair: (pair[0] * pair[1])[: pair[1]] + b" [csub/1 mps]"
    ),
).filter(lambda text: b"\0" not in text)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_hostile_comment_never_starts_the_program(
    shared: Installed, shell: tuple[str, ...], tmp_path: Path
) -> None:
    # A slurmd may have a locale, in which a character is not a byte.
    fixed = {b"SLURM_JOB_ID": b"4711", b"LC_ALL": b"C.UTF-8", b"LANG": b"C.UTF-8"}
    for comment in HOSTILE_COMMENTS:
        environment = {**fixed, b"SLURM_JOB_COMMENT": comment}
        ended = shared.run("prolog", environment, shell, cwd=tmp_path)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b""), comment[:200]
    assert list(tmp_path.iterdir()) == []
    assert not shared.record.exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_hostile_job_id_never_starts_the_program(
    installed: Installed, shell: tuple[str, ...], tmp_path: Path
) -> None:
    # What a path made of such an id would find.
    for place in (installed.jobs, installed.jobs.parent, installed.root):
        for name in (".json", "1.json", "10.json", "*.json", "-1.json", "4711_2.json"):
            (place / name).touch()
    work = tmp_path / "work"
    work.mkdir()
    for job_id in HOSTILE_IDS:
        for name in ("prolog", "epilog"):
            environment = {b"SLURM_JOB_ID": job_id, b"SLURM_JOB_COMMENT": b"[csub/1 mps]"}
            ended = installed.run(name, environment, shell, cwd=work)
            assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b""), job_id[:200]
    assert installed.run("epilog", {}, shell).returncode == 0
    assert installed.run("prolog", {b"SLURM_JOB_COMMENT": TOKENS[0]}, shell).returncode == 0
    assert list(work.iterdir()) == []
    assert not installed.record.exists()


@pytest.mark.long
@settings(max_examples=1500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(comment=ANY_COMMENT)
def test_the_shell_and_the_program_agree_on_what_a_token_is(
    shared_started: Installed, comment: bytes
) -> None:
    ended = shared_started.run("prolog", {b"SLURM_JOB_ID": b"7", b"SLURM_JOB_COMMENT": comment})
    expected = FAILED if parse_token(os.fsdecode(comment)) else 0
    assert (ended.returncode, ended.stderr) == (expected, b"")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(comment=ANY_COMMENT)
def test_no_comment_starts_the_epilog_without_a_checkpoint(
    shared: Installed, comment: bytes
) -> None:
    ended = shared.run("epilog", {b"SLURM_JOB_ID": b"7", b"SLURM_JOB_COMMENT": comment})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


@pytest.fixture(scope="session")
def shared_started(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Hooks whose program starts as quickly as a shell."""
    made = install(tmp_path_factory.mktemp("started"))
    (made.root / "opt/bin/python").write_text(f"#!/bin/sh\nexit {STARTED}\n")
    return made


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("token", TOKENS)
def test_a_token_starts_the_prologs_program(
    shared_started: Installed, shell: tuple[str, ...], token: bytes
) -> None:
    for comment in (token, b"for [me], it's \xff " + token, b"two\nlines " + token):
        environment = {b"SLURM_JOB_ID": b"4711", b"SLURM_JOB_COMMENT": comment}
        assert shared_started.run("prolog", environment, shell).returncode == FAILED


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_the_program_gets_what_it_is_to_know_and_nothing_else(
    installed: Installed, shell: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    (installed.jobs / "4711.json").touch()
    planted = tmp_path / "planted"
    planted.mkdir()
    for program in ("env", "python", "python3", "sh", "test", "[", "cd"):
        (planted / program).write_text(f"#!/bin/sh\n: >'{tmp_path}/ran'\n")
        (planted / program).chmod(0o755)
    passed = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_UID": "1000; reboot",
        "SLURM_JOB_GID": "",
        "SLURM_JOB_USER": "$(id)",
        "SLURM_JOB_COMMENT": 'it\'s "mine" `id` * \n\t [csub/1 mps]',
        "SLURM_JOB_PARTITION": "-i",
        "SLURM_JOB_ACCOUNT": "A=B C=D",
        "SLURM_JOB_GPUS": "0,1",
        "CUDA_VISIBLE_DEVICES": "*",
        "SLURMD_NODENAME": "node1",
        "SLURM_CLUSTER_NAME": "c",
        "SLURM_JOB_RESTART_COUNT": "2",
    }
    hostile = {
        "PATH": str(planted), "HOME": str(planted), "LD_LIBRARY_PATH": str(planted),
        "PYTHONPATH": str(planted), "PYTHONSTARTUP": str(planted / "x"), "IFS": "4_",
        "SPANK_X": "1", "SLURM_JOB_EXTRA": "x", "SLURM_JOB_WORK_DIR": "/", "CDPATH": str(planted),
        "SLURM_COLLOC_DRIVER": str(planted), "SLURM_COLLOC_RUN": str(planted),
        "SLURM_COLLOC_POLICY": str(planted), "prefix": str(planted), "run": str(planted),
        "policy": str(planted), "driver": str(planted), "job": "1", "comment": "x",
    }  # fmt: skip
    both = {os.fsencode(key): os.fsencode(value) for key, value in {**hostile, **passed}.items()}
    opened = 'exec 3</etc/passwd 5</etc/passwd 9</etc/passwd; exec "$@"'
    outer = ("/bin/sh", "-c", opened, "sh", *(shutil.which(word) or word for word in shell))
    ended = installed.run(name, both, outer, cwd=planted)
    status = FAILED if name == "prolog" else STARTED
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, b"", b"")
    seen = installed.seen()
    fixed = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    assert seen["env"] == {**passed, **fixed}
    assert seen["argv"][1:] == [
        "-I", "-B", "-m", "slurm_colloc.host.lifecycle", name,
        "--run-directory", str(installed.root / "run"),
        "--policy", str(installed.root / "node.toml"),
    ]  # fmt: skip
    assert (seen["cwd"], seen["umask"]) == ("/", 0o077)
    assert seen["fds"]["0"] == "/dev/null"
    assert not [fd for fd in seen["fds"] if 3 <= int(fd) <= 9 and seen["fds"][fd] == "/etc/passwd"]
    assert not (tmp_path / "ran").exists()


def test_what_slurm_did_not_set_is_not_set(tmp_path: Path) -> None:
    installed = install(tmp_path, {"driver": "/var/tmp/gpus"})
    (installed.jobs / "8.json").touch()
    # As for a job that the controller does not know any more: no comment, no user.
    assert installed.run("epilog", {b"SLURM_JOB_ID": b"8"}).returncode == STARTED
    assert installed.seen()["env"] == {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C",
        "SLURM_JOB_ID": "8",
        "SLURM_COLLOC_DRIVER": "/var/tmp/gpus",
    }


def test_the_epilog_asks_the_checkpoint_and_not_the_comment(installed: Installed) -> None:
    (installed.jobs / "8.json").touch()
    for comment in (b"", b"changed meanwhile", b"[csub/1 off]", b"x" * 5000):
        environment = {b"SLURM_JOB_ID": b"8", b"SLURM_JOB_COMMENT": comment}
        assert installed.run("epilog", environment).returncode == STARTED
        environment[b"SLURM_JOB_ID"] = b"9"
        assert installed.run("epilog", environment).returncode == 0


@pytest.mark.parametrize("status", [0, 1, 2, 9, 11, 137, 255])
def test_a_broken_installation_drains_no_node_before_a_job(
    installed: Installed, status: int
) -> None:
    (installed.root / "opt/bin/python").write_text(f"#!/bin/sh\nexit {status}\n")
    environment = {b"SLURM_JOB_ID": b"8", b"SLURM_JOB_COMMENT": b"[csub/1 mps]"}
    assert installed.run("prolog", environment).returncode == 0


@pytest.mark.parametrize(
    ("status", "phase", "mig", "is_unfit"),
    [
        (137, "preparing", [{"gpu": "GPU-0"}], True),
        (143, "undoing", [{"gpu": "GPU-0"}], True),
        (1, "preparing", [{"gpu": "GPU-0"}], False),
        (137, "ready", [{"gpu": "GPU-0"}], False),
        (137, "preparing", [], False),
    ],
)
def test_a_program_killed_over_a_gpu_that_it_divides_lets_no_job_start(
    installed: Installed, status: int, phase: str, mig: list[object], is_unfit: bool
) -> None:
    (installed.root / "opt/bin/python").write_text(f"#!/bin/sh\nexit {status}\n")
    value = {"schema": 1, "job_id": "8", "phase": phase, "mig": mig, "sluid": ""}
    (installed.jobs / "8.json").write_text(json.dumps(value))
    environment = {b"SLURM_JOB_ID": b"8", b"SLURM_JOB_COMMENT": b"[csub/1 mig=3g]"}
    for shell in list_shells():
        ended = installed.run("prolog", environment, shell)
        assert (ended.returncode, ended.stderr) == (int(is_unfit), b""), shell


def test_without_the_program_jobs_run_and_what_cannot_be_undone_is_said(
    installed: Installed,
) -> None:
    environment = {b"SLURM_JOB_ID": b"8", b"SLURM_JOB_COMMENT": b"[csub/1 mps]"}
    (installed.root / "opt/bin/python").chmod(0o644)
    assert installed.run("prolog", environment).returncode == 0
    shutil.rmtree(installed.root / "opt")
    ended = installed.run("prolog", environment)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert installed.run("epilog", environment).returncode == 0
    (installed.jobs / "8.json").touch()
    ended = installed.run("epilog", environment)
    assert ended.returncode == 1
    assert b"8.json waits for" in ended.stderr
    assert b"which is missing" in ended.stderr


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_a_foreign_job_starts_no_process(shared: Installed, name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    calls = "execve,fork,vfork,clone,clone3"
    for shell in list_shells():
        ended = subprocess.run(
            ["strace", "-f", "-qq", f"-etrace={calls}", f"-o{trace}", *shell, shared.hook(name)],
            env={"SLURM_JOB_ID": "7", "SLURM_JOB_COMMENT": "[csub-pack=x]", "PATH": os.defpath},
            check=False,
        )
        assert ended.returncode == 0
        lines = trace.read_text().splitlines()
        # The shell itself; where it is not in the first folder of PATH, strace looks for it itself.
        assert len(lines) == 1, lines
        assert "execve(" in lines[0]


def test_the_hooks_are_programs_that_only_their_owner_writes() -> None:
    for name in ("prolog.sh", "epilog.sh"):
        path = HOOKS / name
        assert path.stat().st_mode & 0o111 == 0o111
        assert path.read_text().startswith("#!/bin/sh\n")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_a_hook_stays_with_the_tree_that_it_began_with(
    tmp_path: Path, shell: tuple[str, ...], name: str
) -> None:
    """An upgrade exchanges a link; a hook that runs then still loads from the old tree."""
    installed = install(tmp_path, {"prefix": str(tmp_path / "current")})
    (tmp_path / "current").symlink_to("opt")
    (installed.jobs / "7.json").touch()
    environment = {b"SLURM_JOB_ID": b"7", b"SLURM_JOB_COMMENT": TOKENS[0], b"CDPATH": b"/usr"}
    installed.run(name, environment, shell)
    assert installed.seen()["argv"][0] == str(tmp_path / "opt" / "bin" / "python")
