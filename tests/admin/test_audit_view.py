from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from slurm_colloc.__main__ import run
from slurm_colloc.administration.verify_hooks import (
    AuditFilter,
    Verification,
    check_policy,
    is_ok,
    read_entries,
)
from slurm_colloc.errors import NotFound
from slurm_colloc.host.hooks.audit_log import write_audit
from slurm_colloc.host.hooks.node_policy import REMOVED_KEYS

PROLOG = {
    "hook": "prolog", "job": "7", "uid": 0, "node": "n1", "mode": "mps", "action": "prepared",
    "outcome": "", "ms": 20.5, "exit": 0,
}  # fmt: skip
EPILOG = {**PROLOG, "hook": "epilog", "action": "undone"}
TOLD = {**PROLOG, "job": "8", "uid": 1234, "action": "told", "outcome": "the node has no MPS"}
STUCK = {**EPILOG, "job": "9", "outcome": "not fit for the next job", "exit": 1}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log as the hooks write it, once rotated."""
    path = tmp_path / "logs" / "hooks.log"
    for entry in (PROLOG, EPILOG, TOLD, STUCK):
        assert write_audit(str(path), entry, syslog=str(tmp_path / "none")) == ""
    lines = path.read_text().splitlines(keepends=True)
    with gzip.open(f"{path}.2.gz", "wt") as file:
        file.write(lines[0])
    Path(f"{path}.1").write_text(lines[1] + "half a li\n")
    path.write_text("".join(lines[2:]))
    Path(f"{path}.offset").write_text("{}")
    return path


def show(log: Path, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> list[str]:
    assert run(["admin", "log", "--file", str(log), *words]) == status
    return capsys.readouterr().out.splitlines()


def test_rotated_files_are_read_too_oldest_first(log: Path) -> None:
    entries, damaged = read_entries(str(log), AuditFilter())
    assert [entry["job"] for entry in entries] == ["7", "7", "8", "9"]
    assert damaged == 1


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        ((), "7789"),
        (("--job", "7"), "77"),
        (("--user", "root"), "779"),
        (("--user", "1234"), "8"),
        (("--hook", "epilog"), "79"),
        (("--outcome", "ok"), "77"),
        (("--outcome", "problem"), "89"),
        (("--outcome", "failed"), "9"),
        (("--outcome", "told"), "8"),
        (("--outcome", "undone"), "79"),
        (("--outcome", "undone", "--last", "1"), "9"),
        (("--job", "7", "--outcome", "failed"), ""),
    ],
)
def test_lines_are_filtered(
    log: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], jobs: str
) -> None:
    lines = show(log, capsys, "--json", *words)
    assert "".join(json.loads(line)["job"] for line in lines) == jobs


def test_people_get_a_table(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = show(log, capsys, "--job", "8")
    assert lines[0].split()[:4] == ["TIME", "HOOK", "JOB", "UID"]
    assert lines[1].endswith("the node has no MPS")
    assert show(log, capsys, "--job", "7")[1].endswith("ok")


def test_a_users_text_does_not_reach_the_terminal_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "l" / "hooks.log"
    write_audit(str(log), {**TOLD, "outcome": "a\x1b[31m\nb\u202e"}, syslog="/nowhere")
    assert show(log, capsys)[1].endswith("a?[31m?b?")


def test_no_log_yet_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFound):
        read_entries(str(tmp_path / "none"), AuditFilter())
    assert run(["admin", "log", "--file", str(tmp_path / "none")]) == 7
    assert capsys.readouterr().err.count("\n") == 1


def test_a_hook_that_says_nothing_and_ends_with_1_is_not_ok() -> None:
    assert not is_ok({"outcome": "", "exit": 1})
    assert is_ok({"outcome": "", "exit": 0})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["install-hooks"], "say which part"),
        (["install-hooks", "--node", "--slurm-conf", "/x"], "goes with --controller"),
        (["install-hooks", "--dry-run", "--slurm-config", "/none"], "cannot read /none"),
        (["install-hooks", "--dry-run", "--prefix", "a b"], "cannot be used"),
        (["uninstall"], "say which part"),
        (["log", "--last", "0"], "must be at least 1"),
        (["log", "--last", "x"], "invalid int value"),
        (["log", "--user", "no-such-user"], "no user 'no-such-user'"),
        (["log", "--outcome", "maybe"], "invalid choice"),
        (["sideways"], "invalid choice"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["admin", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("csub: error: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_without_a_policy_the_configuration_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["admin", "show-config", "--policy", str(tmp_path / "none")]) == 6
    assert "cannot be read" in capsys.readouterr().err


def test_the_configuration_names_the_line_of_each_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "node.toml"
    policy.write_text('# words\naccounts = ["a", "b"]\n')
    policy.chmod(0o644)
    assert run(["admin", "show-config", "--policy", str(policy), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["policy"]}
    assert rows["accounts"] == {
        "name": "accounts",
        "value": ["a", "b"],
        "source": str(policy),
        "line": 2,
    }
    assert (rows["enabled"]["source"], rows["enabled"]["line"]) == ("built-in", None)
    assert run(["admin", "show-config", "--policy", str(policy)]) == 0
    assert '["a", "b"]' in capsys.readouterr().out


def test_a_removed_key_is_said_where_the_configuration_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "node.toml"
    policy.write_text("max_gpus = 2\nmig_change = true\n")
    policy.chmod(0o644)
    assert run(["admin", "show-config", "--policy", str(policy)]) == 0
    shown = capsys.readouterr()
    assert shown.err.count(f"{policy}: {REMOVED_KEYS['mig_change']}") == 1
    assert "mig_change" not in shown.out


def test_verifying_notes_a_removed_key(tmp_path: Path) -> None:
    policy = tmp_path / "node.toml"
    policy.write_text("mig_change = true\n")
    policy.chmod(0o644)
    found = Verification("", "")
    assert check_policy(found, str(policy)) is not None
    assert found.passed
    notes = [check.detail for check in found.checks if check.outcome == "note"]
    assert notes == [f"{policy}: {REMOVED_KEYS['mig_change']}"]
