"""Completion: what the shells are told, and that it says no more than there is."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import typer

from slurm_colloc.cli.command_groups import GROUPS
from slurm_colloc.cli.complete import OPTIONS, list_candidates
from slurm_colloc.cli.man_page import escape_roff
from slurm_colloc.cli.subcommands import build_app
from slurm_colloc.report.state_meanings import explain_word
from slurm_colloc.slurm.options import OWN_OPTIONS
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.pack_directory import read_spec, write_spec

from ..calls import UserWithoutSlurm
from ..report.generated import Truth, make_pack
from ..wait_until import wait_until


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
    assert {name for group in GROUPS.values() for name in group} == set(commands)
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
    user = UserWithoutSlurm(tmp_path, SHELL=f"/bin/{shell}")
    told = user.csub("--install-completion")
    assert told.returncode == 0
    (path,) = (p for p in tmp_path.rglob("*csub*") if p.is_file())
    shown = user.csub("--show-completion", shell)
    assert path.read_text() == shown.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True)


def test_an_unknown_shell_is_one_sentence(tmp_path: Path) -> None:
    refused = UserWithoutSlurm(tmp_path).csub("--install-completion", "tcsh")
    assert refused.returncode == 2
    assert "there is no completion for tcsh" in refused.stderr


def test_values_behind_an_equals_sign_are_completed_however_the_shell_divides(root: Path) -> None:
    assert list_candidates(["queue", "--state=RE"], root) == ["--state=REQUEUED"]
    assert list_candidates(["queue", "--state", "=", "RE"], root) == ["REQUEUED"]
    assert "RUNNING" in list_candidates(["queue", "--state", "="], root)
    assert list_candidates(["queue", "--state=PENDING,RE"], root) == ["--state=PENDING,REQUEUED"]
    assert list_candidates(["queue", "-t", "PENDING,RE"], root) == ["PENDING,REQUEUED"]
    assert list_candidates(["submit", "--share=time"], root) == ["--share=timeslice"]
    assert list_candidates(["train.sh", "lr", "=", "0"], root) == []


def test_parameters_are_completed_name_by_name_and_then_by_their_values(root: Path) -> None:
    (pack,) = (root / "packs").iterdir()
    for number, value in ((1, "0.10"), (2, "0.2")):
        spec = read_spec(pack, number)
        job = dataclasses.replace(spec.job, parameters=(("lr", value), ("bs", "32")))
        folder = pack / "members" / f"{number:04d}"
        write_spec(folder, dataclasses.replace(spec, job=job))
    assert list_candidates(["queue", "--where", ""], root) == ["bs=", "lr="]
    assert list_candidates(["report", "4711", "--where", "lr=0.1"], root) == ["lr=0.10"]
    assert list_candidates(["queue", "--where=l"], root) == ["--where=lr="]
    # As bash divides it.
    assert list_candidates(["queue", "--where", "lr", "=", "0"], root) == ["0.10", "0.2"]
    assert list_candidates(["queue", "--where", "="], root) == ["bs=", "lr="]
    assert list_candidates(["report", "99", "--where", "l"], root) == ["lr="]
    (pack / "members" / "0001" / "spec.json").write_text("{")
    assert list_candidates(["queue", "--where", "lr="], root) == ["lr=0.2"]


def test_the_words_that_are_explained_are_completed(root: Path) -> None:
    assert {"STP", "STATE", "STEPS/S"} <= set(list_candidates(["explain", "ST"], root))
    assert {"stp", "state"} <= set(list_candidates(["explain", "st"], root))
    assert list_candidates(["explain", "Qos"], root) == []
    assert "Resources" in list_candidates(["explain", "Res"], root)
    for word in list_candidates(["explain", ""], root):
        if word not in ("last", "all") and not word[:1].isdigit():
            assert explain_word(word)


TYPED = {
    "logs 4711/": ["4711/1", "4711/2"],
    "queue --state=RUNN": ["RUNNING"],
    "explain fairn": ["fairness"],
    "canc": ["cancel"],
}
"""What is typed behind `csub`, and what then stands in place of its last word."""


def build_shell_environment(root: Path, shell: str) -> dict[str, str]:
    """The user's environment, with completion installed as it is said to be."""
    folder = Path(sys.executable).parent
    environment = {"HOME": str(root.parents[2]), "PATH": f"{folder}:{os.defpath}", "TERM": "xterm"}
    subprocess.run(["csub", "--install-completion", shell], env=environment, check=True,
                   capture_output=True)  # fmt: skip
    return environment


def own_terminal() -> None:
    """Have the terminal on standard input control this new session: a shell edits lines so."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_what_is_typed(root: Path, typed: str) -> None:
    environment = build_shell_environment(root, "zsh")
    home = root.parents[2]
    (home / ".zshrc").write_text(
        "fpath=(~/.local/share/zsh/site-functions $fpath); autoload -Uz compinit; compinit -u\n"
        "PS1='ready> '\n"
    )
    ours, theirs = pty.openpty()
    shown = ""

    def read_until(words: list[str]) -> None:
        nonlocal shown

        def is_there() -> bool:
            nonlocal shown
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 4096).decode(errors="replace")
            return all(word in shown for word in words)

        wait_until(is_there, f"zsh shows {words}")
        shown = ""

    zsh = subprocess.Popen(["zsh", "-i"], env=environment, cwd=home, start_new_session=True,
                           stdin=theirs, stdout=theirs, stderr=theirs,
                           preexec_fn=own_terminal)  # fmt: skip
    try:
        read_until(["ready> "])
        os.write(ours, f"csub {typed}\t".encode())
        read_until(TYPED[typed])
    finally:
        zsh.kill()
        zsh.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_what_is_typed(root: Path, typed: str) -> None:
    environment = build_shell_environment(root, "fish")
    done = subprocess.run(
        ["fish", "-c", f'complete -C "csub {typed}"'],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    words = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert [word.rpartition("=")[2] for word in words] == TYPED[typed], done


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
    user = UserWithoutSlurm(tmp_path)
    page = user.csub("--man").stdout
    for group in GROUPS.values():
        for name in group:
            assert f".B csub {name}\n" in page
    for option in OWN_OPTIONS:
        assert f".B {escape_roff(f'--{option.name}')}" in page
    assert escape_roff(".a\\b-c") == r"\&.a\eb\-c"
    if shutil.which("man"):
        (tmp_path / "csub.1").write_text(page)
        checked = subprocess.run(
            ["man", "--warnings", "-l", str(tmp_path / "csub.1")],
            env={**user.environment, "MANWIDTH": "90"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert checked.stderr == ""
        assert "csub retry" in checked.stdout
