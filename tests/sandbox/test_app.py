from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_command import main


@pytest.mark.smoke
@pytest.mark.slurm
def test_the_commands_tell_the_life_of_a_sandbox(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--dir", str(sandbox.directory)]

    def csub(*words: str) -> str:
        assert main([*words, *where]) == 0
        return capsys.readouterr().out

    answer = csub("up", "--nodes", "1", "--gpus-per-node", "1", "--fake-gpus", "--gpu-type", "a100")
    assert "is up" in answer
    command = answer.splitlines()[-1].removeprefix("Use it with: ")
    assert command == f'eval "$(csub sandbox env --dir {sandbox.directory})"'
    assert "nothing to do" in csub("up", "--nodes", "1")
    text = csub("status")
    assert "state    up" in text
    assert f"{sandbox.node_names[0]}" in text
    status = json.loads(csub("status", "--format", "json"))
    assert [node["gpus"] for node in status["nodes"]] == [1]
    assert {daemon["alive"] for daemon in status["daemons"]} == {True}
    exports = csub("env")
    ended = subprocess.run(
        ["bash", "-c", f"{exports}\nsinfo -h -o %G"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split()[0].startswith("gpu:a100:1")
    sandbox.kill_node(sandbox.node_names[0])
    assert "2 of 3 daemons run" in csub("status")
    assert f"whole again; started slurmd.{sandbox.node_names[0]}" in csub("up")
    assert "is down" in csub("down")
    assert "state    down" in csub("status")
    assert "Nothing runs" in csub("down", "--purge")
    assert not sandbox.directory.exists()


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["env", "--dir", "/var/tmp/no/such/sandbox"], 7, "start one with 'csub sandbox up'"),
        (["up", "--dir", "/var/tmp/" + "x" * 100], 2, "choose a shorter one with --dir"),
        (["up", "--dir", "/var/tmp/sb-none", "--nodes", "0"], 2, "--nodes is 0"),
        (["up", "--dir", "/proc/none"], 6, "cannot be made"),
    ],
)
@pytest.mark.slurm
def test_problems_are_one_sentence_and_an_exit_status(
    slurm: None,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    sentence: str,
) -> None:
    assert slurm is None
    assert main(words) == status
    captured = capsys.readouterr()
    assert captured.err.startswith("csub: error: ")
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.slurm
def test_a_directory_that_is_named_comes_before_the_sandbox_that_the_shell_uses(
    slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slurm is None
    used, named = tmp_path / "used", tmp_path / "named"
    (used / "etc").mkdir(parents=True)
    (used / "etc" / "slurm.conf").touch()
    (used / "sandbox.json").touch()
    monkeypatch.setenv("SLURM_CONF", str(used / "etc" / "slurm.conf"))
    for words, other, meant in (
        (["env"], named, used),
        (["env", "--dir", str(named)], used, named),
        (["down", "--dir", str(named)], used, named),
    ):
        main(words)
        told = "".join(capsys.readouterr())
        assert str(meant) in told, words
        assert str(other) not in told, words


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sideways"]) == 2
    assert "sideways" in capsys.readouterr().err
