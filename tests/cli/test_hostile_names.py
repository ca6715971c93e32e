"""Names that would steer a terminal: every command shows them by their numbers, on one line."""

from __future__ import annotations

import ast
import csv
import dataclasses
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc import cli, session
from slurm_colloc.cli.subcommands import build_app
from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import SharingReasons
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.store.member_states import read_state, write_state
from slurm_colloc.store.pack_directory import read_pack, read_spec, write_record, write_spec

from ..calls import run_csub
from ..report.generated import Truth, make_pack

EVIL = "x\x1b]0;evil\x07\nline2\u202e\x7f\x9b31m\u2028y\r"
SHOWN = r"x\x1b]0;evil\x07\nline2\u202e\x7f\x9b31m\u2028y\r"

TRIED: dict[str, Sequence[Sequence[str]]] = {
    "queue": (
        ("queue", "--all", "--format", "%i %j %o %R"), ("queue", "-o", EVIL), ("queue",),
        ("queue", "--all"), ("queue", EVIL), ("queue", "--name", EVIL),
    ),
    "history": (("history", "--since=99w"), ("history", "4711")),
    "show": (("show", "4711"), ("show", "4711/1"), ("show", "4711/9"), ("show", EVIL)),
    "why": (("why", "4711"), ("why", "4712")),
    "explain": (("explain", "4711/1", "4712/1"), ("explain", EVIL)),
    "logs": (("logs", "4711/1"), ("logs", "4711"), ("logs", "4712/1", "4712/1")),
    "report": (
        ("report", "4711"), ("report", "4712"), ("report", "4711", "--csv"),
        ("report", "4711", "--detail"), ("report", "4711", "--html"),
        ("report", "4711", "--html", f"{EVIL}.html"),
        ("report", "--since=99w"), ("report", "--since=99w", "--csv"), ("report", "--by", EVIL),
    ),
    "compare": (("compare", "4711", "4712"), ("compare", "4711/1", EVIL)),
    "track": (("track", "--to", EVIL), ("track", EVIL, "--to=wandb", "--offline")),
    "top": (("top", "--once"), ("top", "--once", "--name", EVIL)),
    "profile": (
        ("profile", "list"), ("profile", "show", EVIL), ("profile", "show", "no\x1b[1m"),
        ("profile", "forget", EVIL), ("profile", "import", EVIL),
    ),
    "shell": (("shell", "4711/1"), ("shell", EVIL)),
    "cancel": (("cancel", "4711"), ("cancel", EVIL), ("cancel", "--name", EVIL)),
    "hold": (("hold", "4711"), ("hold", "--name", EVIL)),
    "release": (("release", "4711"),),
    "requeue": (("requeue", "4711"),),
    "wait": (("wait", "4711"), ("wait", EVIL)),
    "config": (("config",), ("config", EVIL), ("config", "state_dir", EVIL), ("config",)),
    "clean": (("clean", "--older-than=1s", "--dry-run"), ("clean", "--older-than", EVIL)),
    "submit": (("submit", EVIL), ("submit", "--job-name", EVIL, "--dry-run", f"./{EVIL}.sh")),
    "pack": (("pack", EVIL), ("pack", "--dry-run", f"./{EVIL}.sh", f"./{EVIL}.sh")),
    "probe": (("probe", EVIL), ("probe", f"./{EVIL}.sh")),
    "plan": (
        ("plan", EVIL), ("plan", "--local", "--explain", f"./{EVIL}.sh"),
        ("plan", "--what-if", EVIL, f"./{EVIL}.sh"),
        ("plan", "--local", "--explain", "pack", f"./{EVIL}.sh", f"./{EVIL}.sh"),
    ),
    "sweep": (
        ("sweep", EVIL), ("sweep", "--dry-run", f"./{EVIL}.sh", f"{EVIL}=1,2"),
        ("sweep", f"--from={EVIL}", f"./{EVIL}.sh"),
        ("sweep", "--local", f"./{EVIL}.sh", EVIL, "1,2"),
    ),
    "batch": (("batch", EVIL), ("batch", f"./{EVIL}.sh"), ("batch", "--resume", f"./{EVIL}.sh")),
    "retry": (("retry", "4711"), ("retry", EVIL), ("retry", "4711", f"--{EVIL}"),
              ("retry", "4711", "--where", EVIL), ("retry", "--dry-run", "4711/1")),
    "check": (("check", EVIL), ("check", f"./{EVIL}.sh")),
    "calibrate": (("calibrate", "--gpu", EVIL), ("calibrate", EVIL)),
    "doctor": (("doctor", "--no-job", "--partition", EVIL),),
}  # fmt: skip
"""What is called of each command, in order."""

OTHERS = {"sandbox", "admin", "notebook", "tutorial"}
"""Commands that show nothing that another user has written, and those of other programs."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one pack that has ended and one that runs; all in them is hostile."""
    state = tmp_path / ".local" / "state" / "slurm_colloc"
    state.mkdir(parents=True)
    (tmp_path / f"{EVIL}.sh").write_text(
        f"#!/bin/sh\n#SBATCH --gres=gpu:1 --job-name='x\x1b[1m'\npython tr\x1bain.py --out {EVIL}\n"
    )
    for job_id, is_running in (("4711", False), ("4712", True)):
        path = make_pack(
            state,
            [Truth(1, 0, 120, lambda _: 20), Truth(2, 60, 120, lambda _: 9)],
            names=[EVIL, EVIL],
            job_id=job_id,
            submission=f"s{job_id}",
            running=is_running,
        )
        poison(path)
        if not is_running:
            learn_from_pack(path)
    return tmp_path


def poison(path: Path) -> None:
    """Put the name wherever a file of a pack holds a text."""
    record = read_pack(path)
    assert record is not None
    write_record(
        path,
        dataclasses.replace(
            record,
            name=EVIL,
            reasons=(EVIL,),
            sharing=SharingReasons(EVIL, full=EVIL, opened=EVIL, not_opened=EVIL),
            refusals=(EVIL,),
            closed=EVIL,
            submit_host=EVIL,
            slurm_options=("--comment", EVIL),
        ),
    )
    for number in (1, 2):
        spec = read_spec(path, number)
        job = dataclasses.replace(
            spec.job, script_name=EVIL, arguments=(EVIL,), directory=f"/tmp/{EVIL}", output=EVIL,
            parameters=((EVIL, EVIL),), row=EVIL, retry_of=EVIL, snapshot=EVIL,
        )  # fmt: skip
        write_spec(path / "members" / f"{number:04d}", dataclasses.replace(spec, job=job))
        state = read_state(path, number, 1)
        assert state is not None
        final = MemberState.FAILED if state.state is MemberState.COMPLETED else state.state
        told = dataclasses.replace(
            state, state=final, node=EVIL, reason=EVIL, evidence=(EVIL,), gpus=(EVIL,), step=EVIL
        )
        write_state(path, number, told)
    (path / "degree.json").write_text("{")
    event = {"event": "fallback", "reason": EVIL}
    (path / "events.jsonl").write_text(f"{json.dumps(event)}\n")


def call(home: Path, words: Sequence[str], *, terminal: bool = False) -> str:
    """All that a command says; its standard output may be a terminal."""
    folder = home / "bin"
    if not folder.exists():
        folder.mkdir()
        # A Slurm that answers in the same way.
        (folder / "says").write_bytes(b"#!/bin/sh\nprintf '" + EVIL.encode() + b"' >&2\nexit 1\n")
        (folder / "says").chmod(0o755)
        for name in ("squeue", "sbatch", "scontrol", "sinfo", "sacct", "sacctmgr", "scancel"):
            (folder / name).symlink_to("says")
    environment = {
        "HOME": str(home), "PATH": f"{folder}:{os.defpath}", "LC_ALL": "C.UTF-8", "COLUMNS": "250",
        "TERM": "xterm-256color",
    }  # fmt: skip
    if not terminal:
        done = run_csub(*words, environment=environment, directory=home)
        return done.stdout + done.stderr
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "slurm_colloc", *words],
        env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(writer)
        said = b""
        try:
            while part := os.read(reader, 65536):
                said += part
        except OSError:
            pass
        os.close(reader)
        _, err = process.communicate(timeout=60)
        # What the terminal itself makes of the end of a line.
        return (said.replace(b"\r\n", b"\n") + err).decode()


@pytest.mark.parametrize("command", sorted(TRIED))
def test_no_command_prints_what_steers_a_terminal(home: Path, command: str) -> None:
    for words in TRIED[command]:
        said = call(home, words)
        assert "Traceback" not in said, words
        lines = said.split("\n")
        assert all(line.isprintable() for line in lines), (words, said)
        assert not any(line.startswith("line2") for line in lines), (words, said)
        assert said.strip() or command in ("config", "logs", "wait"), words


def test_the_names_are_shown_by_their_numbers(home: Path) -> None:
    for words in (("queue", "--all"), ("history", "4711"), ("show", "4711"), ("report", "4711"),
                  ("top", "--once")):  # fmt: skip
        assert SHOWN in call(home, words), words
    assert SHOWN in call(home, ("why", "4711"))
    assert f"job steps: {SHOWN}" in call(home, ("show", "4711/1"))


@pytest.mark.parametrize("words", [("report", "4711"), ("profile", "list"), ("doctor", "--no-job")])
def test_on_a_terminal_only_csubs_own_styles_are_escape_sequences(
    home: Path, words: Sequence[str]
) -> None:
    said = call(home, words, terminal=True)
    for own in ("\x1b[1m", "\x1b[0m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m"):
        said = said.replace(own, "")
    assert all(line.isprintable() for line in said.split("\n")), said


def test_what_programs_read_has_a_record_on_each_line(home: Path) -> None:
    for words in (
        ("queue", "--all", "--json"), ("history", "--json", "4711"), ("show", "--json", "4711"),
        ("why", "--json", "4711"), ("report", "--json", "4711"),
    ):  # fmt: skip
        bare = {"HOME": str(home), "PATH": os.defpath}
        said = run_csub(*words, environment=bare, directory=home).stdout
        assert said.isascii()
        assert said.count("\n") == 1
        rows = json.loads(said)
        if words[0] in ("queue", "history", "show"):
            assert rows[0]["name"] == EVIL, "as it is: JSON has escapes of its own"
    rows = list(csv.DictReader(io.StringIO(read_records(home, ("report", "4711", "--csv")))))
    assert [row["member"] for row in rows] == ["4711/1", "4711/2"]
    table = read_records(home, ("history", "4711")).splitlines()
    assert [line.split()[0] for line in table] == ["MEMBER", "4711/1", "4711/2"]


def read_records(home: Path, words: Sequence[str]) -> str:
    """What a command says, without what it notes on standard error."""
    lines = call(home, words).split("\n")
    return "\n".join(line for line in lines if not line.startswith("csub: "))


def test_a_new_command_is_tried_too() -> None:
    commands = set(typer.main.get_command(build_app()).commands)  # type: ignore[attr-defined]
    assert commands == set(TRIED) | OTHERS


def find_writers(path: Path) -> set[tuple[str, str]]:
    """The functions of a module that use a standard stream themselves."""
    found = set()
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                is_print = isinstance(node, ast.Name) and node.id == "print"
                is_write = (
                    isinstance(node, ast.Attribute)
                    and node.attr in ("write", "buffer", "writelines")
                    and ast.unparse(node.value) in ("sys.stdout", "sys.stderr")
                )
                is_echo = isinstance(node, ast.Attribute) and node.attr in ("echo", "secho")
                if is_print or is_write or is_echo:
                    found.add((path.stem, function.name))
    return found


def test_only_one_place_writes_for_people() -> None:
    folders = [Path(str(package.__file__)).parent for package in (cli, session)]
    # Administrators' commands have their own, and their own tests.
    modules = [
        path
        for folder in folders
        for path in folder.rglob("*.py")
        if not path.stem.startswith("admin")
    ]
    found = set().union(*map(find_writers, modules))
    assert found == {
        ("session", "say"),
        ("session", "note"),
        # The question, after a table that `say` has written.
        ("cancel_and_requeue", "ask"),
        # The output of members, byte by byte.
        ("logs_and_shell", "print_new"),
        ("logs_and_shell", "_print_lines"),
        ("logs_and_shell", "end_lines"),
        # Candidates, of which none steers a terminal, and csub's own scripts.
        ("complete", "run_completion"),
        # A line that is written anew: numbers alone.
        ("hold_and_wait", "show"),
        ("hold_and_wait", "clear"),
        # A page of lines that were harmless before.
        ("top_command", "_write"),
        # In the place of squeue and sacct: to programs the bytes that those would write.
        ("tasks_listed", "write_rows"),
    }


@pytest.mark.parametrize("is_terminal", [True, False])
def test_rows_in_place_of_slurms_are_harmless_on_a_terminal_alone(is_terminal: bool) -> None:
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    program = "import sys; from slurm_colloc.cli.tasks_listed import write_rows; "
    subprocess.run(
        [sys.executable, "-c", f"{program}write_rows(sys.argv[1:])", EVIL, "b\udcff"],
        stdout=theirs,
        check=True,
    )
    os.close(theirs)
    said = os.read(ours, 4096)
    os.close(ours)
    if is_terminal:
        assert said.decode() == f"{SHOWN}\r\nb\\udcff\r\n"
    else:
        assert said == f"{EVIL}\n".encode() + b"b\xff\n"


@given(st.text(), st.sampled_from(["", "\n", "\n\t"]))
def test_what_is_escaped_can_be_printed_and_nothing_is_lost(text: str, keep: str) -> None:
    escaped = escape_controls(text, keep=keep)
    assert all(letter.isprintable() or letter in keep for letter in escaped)
    assert len(escaped.split("\n")) == (text.count("\n") + 1 if "\n" in keep else 1)
    assert escape_controls(escaped, keep=keep) == escaped
    if "\\" not in text:
        restored = escaped.encode("latin-1", "backslashreplace").decode("unicode_escape")
        assert restored.encode("utf-8", "surrogatepass") == text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    "letter", ["\0", "\x1b", "\x7f", "\x80", "\x9b", "\u200f", "\u202a", "\u202e", "\u2028",
               "\u2029", "\u2066", "\u2069", "\ufeff", "\udc80", "\r", "\n", "\t"],
)  # fmt: skip
def test_letters_that_steer_or_deceive_are_shown_by_their_numbers(letter: str) -> None:
    assert escape_controls(f"a{letter}b") == f"a{letter.encode('unicode_escape').decode()}b"
