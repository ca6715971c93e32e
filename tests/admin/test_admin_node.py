"""`csub admin status` and `recover`: jobs that are gone, and jobs that are not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.__main__ import run
from slurm_colloc.administration.slurm_conf import BASE_VARIABLE, Places
from slurm_colloc.cli.admin_node import (
    describe_policy_state,
    describe_recovered_job,
    render_status,
)
from slurm_colloc.host.hooks import whole_node
from slurm_colloc.host.hooks.hook_job import READY, Checkpoint
from slurm_colloc.host.hooks.hook_report import HookPlace, HookReport
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.mig.kept_modes import keep_mode

GPU = "GPU-11111111-2222-3333-4444-555555555555"
MADE_AT = 1_790_000_000.0


@pytest.fixture
def node(base: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A node with a policy, on which nothing was ever prepared."""
    monkeypatch.setenv(BASE_VARIABLE, str(base))
    monkeypatch.delenv("SLURM_COLLOC_DRIVER", raising=False)
    # `recover` leaves the directory that it was called in, and changes the umask.
    monkeypatch.chdir(Path.cwd())
    umask = os.umask(0o022)
    os.umask(umask)
    monkeypatch.setattr(os, "umask", lambda _: umask)
    places = Places(base=str(base))
    Path(places.etc_path).mkdir(parents=True)
    write_policy(
        places, f'audit_log = "{places.log_path}"\nstate_directory = "{places.state_path}"\n'
    )
    Path(places.log_path).parent.parent.mkdir(parents=True)
    return places


def write_policy(places: Places, text: str) -> None:
    policy = Path(places.policy_path)
    policy.write_text(text)
    policy.chmod(0o644)


def prepare(places: Places, job_id: str, **fields: Any) -> None:
    """Leave what a prolog has prepared for a job of the user nobody."""
    Path(places.run_path).parent.mkdir(exist_ok=True)
    directory = RunDirectory(places.run_path, makes=True)
    values = {"phase": READY, "mode": "mps", "gpus": (GPU,), "made_at": MADE_AT, **fields}
    directory.write(Checkpoint(job_id, 65534, 65534, **values))
    directory.make_directory(job_id)
    directory.close()


def csub(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> tuple[list[str], str]:
    assert run(["admin", *words]) == status
    captured = capsys.readouterr()
    return captured.out.splitlines(), captured.err


@pytest.mark.root
def test_where_nothing_is_prepared_it_says_so(
    node: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, _ = csub(capsys, "status")
    assert lines == ["nothing is prepared", f"policy: {node.policy_path} is enabled"]
    assert csub(capsys, "recover") == (["nothing is prepared"], "")
    value = json.loads(csub(capsys, "status", "--json")[0][0])
    assert (value["jobs"], value["run_directory"]) == ([], node.run_path)


@pytest.mark.root
def test_jobs_are_shown_with_what_they_have(
    node: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(node, "4711")
    prepare(node, "12", boot="another")
    lines, _ = csub(capsys, "status")
    assert lines[0].split() == [
        *("JOB", "USER", "PHASE", "MODE", "GPUS", "DAEMONS", "SINCE", "PROBLEM"),
    ]
    assert lines[1].startswith("12    nobody(65534)  ready  mps   GPU-11111111  -        2026-")
    assert lines[1].endswith("from before the last boot: csub admin recover")
    assert lines[2].startswith("4711  nobody(65534)  ready  mps   GPU-11111111")
    assert lines[2].endswith("  -")
    jobs = json.loads(csub(capsys, "status", "--json")[0][0])["jobs"]
    assert [(job["job_id"], job["is_of_this_boot"]) for job in jobs] == [
        ("12", False),
        ("4711", True),
    ]
    assert {job["made_at"] for job in jobs} == {MADE_AT}
    assert jobs[0]["gpus"] == [GPU]


@pytest.mark.root
def test_the_installed_record_tells_the_run_directory(
    node: Places, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = base / "elsewhere"
    record = {"schema": 1, "run": str(other), "policy": f"{base}/none.toml"}
    Path(node.record_path).write_text(json.dumps(record))
    value = json.loads(csub(capsys, "status", "--json")[0][0])
    assert value["run_directory"] == str(other)
    assert "none.toml cannot be read" in csub(capsys, "status")[0][-1]


@pytest.mark.root
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("enabled = false\n", "has enabled = false: prologs prepare nothing"),
        ("surprise = 1\n", "prologs prepare nothing: the policy"),
        ('"\\u001b[31m" = 1\n', "prologs prepare nothing: the policy"),
    ],
)
def test_the_policy_is_one_line(
    node: Places, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(node, text)
    lines, _ = csub(capsys, "status")
    assert len(lines) == 2
    assert words in lines[-1]
    assert lines[-1].isprintable()


@pytest.mark.root
def test_what_dead_jobs_have_left_is_undone_and_logged(
    node: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(node, "12", boot="another", gpus=())
    prepare(node, "4711", made_at=4_000_000_000.0)
    lines, errors = csub(capsys, "recover")
    assert lines == [
        "job 12: undone: the node has been rebooted",
        "job 4711: left alone: its job may be alive",
    ]
    assert errors == ""
    assert not Path(node.run_path, "12").exists()
    assert Path(node.run_path, "4711").exists()
    (line,) = Path(node.log_path).read_text().splitlines()
    entry = json.loads(line)
    assert (entry["hook"], entry["action"], entry["exit"]) == ("recover", "recovered", 0)
    value = json.loads(csub(capsys, "recover", "--json")[0][0])
    assert value["is_fit"]
    assert [job["job"] for job in value["jobs"]] == ["4711"]


@pytest.mark.root
def test_what_became_of_mig_after_a_reboot_is_said(
    node: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(node.run_path).parent.mkdir()
    Path(node.state_path).parent.mkdir(parents=True)
    keep_mode(node.state_path, GPU, "another boot")
    lines, errors = csub(capsys, "recover")
    # Whether a slurmd runs here or not: there is no such GPU.
    assert GPU in lines[0]
    assert "MIG was on on" in lines[0] or "whether MIG is on on" in lines[0]
    assert (len(lines), errors) == (1, "")
    value = json.loads(csub(capsys, "recover", "--json")[0][0])
    assert (value["is_fit"], value["mig"]) == (True, lines)


@pytest.mark.root
@pytest.mark.usefixtures("node")
def test_a_node_that_is_not_fit_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {
        "job": "7",
        "reason": "the node has been rebooted",
        "undone": False,
        "unsafe": ["process 99 \x1b[2J still uses GPU 0"],
        "left": [],
        "notes": [],
    }

    def find_stuck(_place: HookPlace, _node: str) -> tuple[HookReport, list[dict[str, Any]]]:
        return HookReport("recovered", "stuck", exit_status=1, details={"jobs": [told]}), [told]

    monkeypatch.setattr(whole_node, "run_recover", find_stuck)
    lines, errors = csub(capsys, "recover", status=1)
    assert "not all of it could be undone" in lines[0]
    assert "this node is not fit for jobs: job 7: process 99 \\x1b[2J" in errors
    assert "State=RESUME".upper() in errors.upper()
    assert "\x1b" not in lines[0] + errors
    assert not json.loads(csub(capsys, "recover", "--json", status=1)[0][0])["is_fit"]


@pytest.mark.root
def test_a_run_directory_of_somebody_else_is_not_believed(
    node: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(node, "4711")
    os.chown(node.run_path, 65534, 65534)
    for command in ("status", "recover"):
        lines, errors = csub(capsys, command, status=5)
        assert lines == []
        assert "is not root's alone" in errors
        assert errors.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "recover", "metrics"])
def test_someone_else_than_root_is_told_so(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    lines, errors = csub(capsys, command, status=2)
    assert lines == []
    assert errors.startswith("csub: error: only root can ")
    assert errors.count("\n") == 1


def test_no_control_character_of_a_file_reaches_the_terminal() -> None:
    evil = "a\x1b]0;owned\x07\nb\u202e"
    job = {
        "job_id": "7",
        "uid": 5,
        "phase": evil,
        "mode": evil,
        "gpus": [evil],
        "daemon_pids": [None, 12],
        "is_of_this_boot": True,
        "problem": evil,
        "made_at": None,
    }
    policy = {"path": evil, "enabled": True, "problem": ""}
    text = render_status({"jobs": [job], "policy": policy}, lambda _: evil)
    text += describe_policy_state({**policy, "problem": evil}) + "\n"
    found = {"job": evil, "reason": evil, "undone": True, "notes": [evil], "left": [evil]}
    text += describe_recovered_job(found) + "\n"
    lines = text.split("\n")
    assert len(lines) == 6
    assert all(line.isprintable() for line in lines)
    assert "no answer,12" in lines[1]
