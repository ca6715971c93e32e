"""Completion: what the shells are told, and that it says no more than there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from slurm_colloc.cli.command_groups import GROUPS
from slurm_colloc.cli.completion.candidates import OPTIONS, list_candidates
from slurm_colloc.cli.man_page import escape_roff
from slurm_colloc.cli.subcommands import build_app
from slurm_colloc.slurm.options import OWN_OPTIONS
from slurm_colloc.store.all_packs import State

from ..calls import run_csub
from ..report.generated import Truth, make_pack


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / ".local" / "state" / "slurm_colloc"
    path.mkdir(parents=True)
    pack = make_pack(path, [Truth(1, 0, 60, lambda _: 9), Truth(2, 0, 60, lambda _: 9)],
                     names=["train", "train"], job_id="4711")  # fmt: skip
    state = State(path)
    state.prepare()
    record = state.read_pack(pack.name)
    assert record is not None
    state.record_pack_job(record, "4711")
    (path / "open" / pack.name).touch()
    return path


def test_the_options_that_are_completed_are_those_of_the_commands() -> None:
    commands = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]
    assert {name for _, group in GROUPS for name in group} == set(commands)
    for name in OPTIONS.keys() - {"retry"}:
        own = {opt for param in commands[name].params for opt in param.opts}
        longs = {opt for opt in own if opt.startswith("--")} - {
            "--write",
            "--write-mail",
            "--noheader",
        }
        assert set(OPTIONS[name]) == longs, name


def test_commands_options_ids_names_and_states_are_completed(root: Path) -> None:
    assert list_candidates(["re"], root) == ["release", "report", "requeue", "retry"]
    assert "--gres" in list_candidates(["submit", "--g"], root)
    assert {"--port", "--priority"} <= set(list_candidates(["notebook", "--p"], root))
    assert list_candidates(["notebook", "--idle"], root) == ["--idle"]
    assert "--share" in list_candidates(["--sh"], root)
    assert list_candidates(["queue", "--wh"], root) == ["--where"]
    assert list_candidates(["logs", "47"], root) == ["4711"]
    assert list_candidates(["logs", "4711/"], root) == ["4711/1", "4711/2"]
    assert "COMPLETED" in list_candidates(["queue", "--state", ""], root)
    (pack,) = (root / "open").iterdir()
    record = State(root).read_pack(pack.name)
    assert record is not None
    assert list_candidates(["cancel", "--name", record.name[:2]], root) == [record.name]
    assert list_candidates(["config", "degr"], root) == ["degree"]
    assert list_candidates(["train"], root) == []
    assert list_candidates([], None)
    assert list_candidates(["logs", "47"], None) == []


def test_completion_loads_no_command() -> None:
    code = (
        "import sys; sys.argv = ['csub', '--complete-words', 'logs', '']\n"
        "from slurm_colloc.__main__ import run\n"
        "run(sys.argv[1:])\n"
        "heavy = {'typer', 'click', 'rich', 'numpy', 'yaml', 'subprocess'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_written_where_the_shell_looks(tmp_path: Path, shell: str) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.defpath, "SHELL": f"/bin/{shell}"}
    told = run_csub("--install-completion", environment=environment, directory=tmp_path)
    assert told.returncode == 0
    (path,) = (p for p in tmp_path.rglob("*csub*") if p.is_file())
    shown = run_csub("--show-completion", shell, environment=environment, directory=tmp_path)
    assert path.read_text() == shown.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)


def test_an_unknown_shell_is_one_sentence(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.defpath}
    refused = run_csub("--install-completion", "tcsh", environment=environment, directory=tmp_path)
    assert refused.returncode == 2
    assert "there is no completion for tcsh" in refused.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_members(root: Path) -> None:
    folder = Path(sys.executable).parent
    code = (
        'eval "$(csub --show-completion bash)"; COMP_WORDS=(csub logs 4711/); COMP_CWORD=2; _csub; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {"HOME": str(root.parents[2]), "PATH": f"{folder}:{os.defpath}"}
    done = subprocess.run(
        ["bash", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["4711/1", "4711/2"]


def test_the_manual_page_has_each_command_and_option(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.defpath}
    page = run_csub("--man", environment=environment, directory=tmp_path).stdout
    for _, group in GROUPS:
        for name in group:
            assert f".B csub {name}\n" in page
    for option in OWN_OPTIONS:
        assert f".B {escape_roff(f'--{option.name}')}" in page
    assert escape_roff(".a\\b-c") == r"\&.a\eb\-c"
    if shutil.which("man"):
        (tmp_path / "csub.1").write_text(page)
        checked = subprocess.run(
            ["man", "--warnings", "-l", str(tmp_path / "csub.1")],
            env={**environment, "MANWIDTH": "90", "LC_ALL": "C.UTF-8"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert checked.stderr == ""
        assert "csub retry" in checked.stdout
