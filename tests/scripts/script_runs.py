"""Runs every script by sbatch, and by csub four at a time."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..bed import CsubUser
from .catalogue import HERE, PROGRAMS, Case
from .comparison import Entry, Run, read_tree
from .mpi import find_mpich

MEMBERS = 4
SEARCH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
PATIENCE_S = 420.0
POLL_S = 0.3


@dataclass(frozen=True)
class Submitted:
    """A case on its way: the two jobs, and where each run works."""

    case: Case
    sbatch_job: str
    csub_job: str
    expected: Path
    actual: tuple[Path, ...]


def find_missing(case: Case) -> str:
    """What this machine lacks for a case, empty if nothing."""
    for module in case.modules:
        if importlib.util.find_spec(module) is None:
            return f"the Python module {module}; pip install -e '.[scripts]'"
    for command in case.commands:
        if shutil.which(command, path=SEARCH) is None and not Path(command).is_file():
            return f"the program {command}"
    if case.uses_mpi and find_mpich(SEARCH) is None:
        return "mpicc and mpirun of MPICH, which srun can start; pip install -e '.[scripts]'"
    return ""


def build_environment(case: Case, user: CsubUser) -> dict[str, str]:
    """What is added to the environment of a case at its submission."""
    mpi = find_mpich(SEARCH) if case.uses_mpi else None
    path = {} if mpi is None else {"PATH": f"{mpi}:{user.environment['PATH']}"}
    return {**path, **case.environment}


def submit(case: Case, user: CsubUser, more: Sequence[str] = ()) -> Submitted:
    """Submit a case by sbatch, and four times by csub into one pack.

    Args:
        case: The script.
        user: Who submits.
        more: Options for csub alone.
    """
    folder = user.home / "".join((case.name.replace(".", "_"), *more))
    expected = folder / "sbatch" / "work"
    if case.is_array:
        actual = [folder / "csub" / "work"]
    else:
        actual = [folder / f"csub{number}" / "work" for number in range(1, MEMBERS + 1)]
    for directory in (expected, *actual):
        lay_out(case, user, directory)
    environment = build_environment(case, user)
    options = [f"--{name}" for name in ("gres=gpu:1",)] + list(case.options)
    script = f"./{case.name}"
    if case.is_array:
        answer = user.run(
            ["sbatch", "--parsable", *options, script, *case.arguments],
            directory=expected,
            environment=environment,
        )
        sbatch_job = answer.stdout.strip()
        answer = user.run(
            ["csub", "--parsable", *more, *options, script, *case.arguments],
            directory=actual[0],
            environment=environment,
        )
        return Submitted(case, sbatch_job, answer.stdout.strip(), expected, tuple(actual))
    # All are submitted from one directory; each works in its own.
    answer = user.run(
        [
            "sbatch",
            "--parsable",
            f"--chdir={expected}",
            *options,
            str(expected / case.name),
            *case.arguments,
        ],
        directory=folder,
        environment=environment,
    )
    sbatch_job = answer.stdout.strip()
    for directory in actual:
        add_directive(directory / case.name, f"--chdir={directory}")
    words = [shell_words([str(directory / case.name), *case.arguments]) for directory in actual]
    answer = user.run(
        ["csub", "pack", "--parsable", *more, *options, *words],
        directory=folder,
        environment=environment,
    )
    return Submitted(case, sbatch_job, answer.stdout.strip(), expected, tuple(actual))


def shell_words(words: Sequence[str]) -> str:
    """Words as one word of csub pack; a path alone is taken as it is."""
    import shlex

    return words[0] if len(words) == 1 else shlex.join(words)


def add_directive(script: Path, option: str) -> None:
    """Add an option to the first #SBATCH line of a script; its lines keep their numbers."""
    text, count = re.subn(r"(?m)^(#SBATCH .*)$", rf"\1 {option}", script.read_text(), count=1)
    assert count == 1
    script.write_text(text)


def lay_out(case: Case, user: CsubUser, directory: Path) -> None:
    """Make a working directory with the script and what lies next to it."""
    directory.mkdir(parents=True)
    shutil.copy(HERE / case.name, directory)
    for name in case.companions:
        source = PROGRAMS / name
        if name == "md":
            compiled = user.home / "md"
            if not compiled.exists():
                compile_md(compiled, user)
            shutil.copy(compiled, directory)
        elif source.is_dir():
            shutil.copytree(source, directory / name)
        else:
            shutil.copy(source, directory)
    for name in case.directories:
        (directory / name).mkdir()
    for path in (directory.parent.parent, directory.parent, directory, *directory.rglob("*")):
        os.chown(path, user.uid, user.gid)


def compile_md(target: Path, user: CsubUser) -> None:
    """Compile the MPI program."""
    mpi = find_mpich(SEARCH)
    assert mpi is not None
    subprocess.run(
        [str(mpi / "mpicc"), "-O1", "-o", str(target), str(PROGRAMS / "md.c")],
        env={**os.environ, "PATH": user.environment["PATH"]},
        check=True,
        capture_output=True,
    )
    target.chmod(0o755)


def wait_for_all(user: CsubUser, submitted: Sequence[Submitted]) -> None:
    """Wait until Slurm runs nothing of the user any more."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        queue = user.run(["squeue", "-h", "-u", user.name, "-o", "%i %j %T %r"]).stdout
        if not queue.strip():
            return
        assert time.monotonic() < deadline, f"{len(submitted)} scripts; still there:\n{queue}"
        time.sleep(POLL_S)


def read_expected(entry: Submitted, user: CsubUser) -> Run:
    """What the sbatch run left; of an array, the largest exit code."""
    shown = user.run(["scontrol", "show", "job", "-o", entry.sbatch_job]).stdout
    codes = [
        (int(code), int(number)) for code, number in re.findall(r" ExitCode=(\d+):(\d+)", shown)
    ]
    assert len(codes) == (MEMBERS if entry.case.is_array else 1), shown
    tree = _read(entry.case, entry.expected, entry.sbatch_job)
    return Run(*max(codes), tree)


def read_actual(entry: Submitted, user: CsubUser) -> list[Run]:
    """What each member left; of an array, all members' tree and the largest exit code."""
    rows = user.members(entry.csub_job)
    assert len(rows) == MEMBERS
    packs = {row["slurm_job_id"] for row in rows.values()}
    assert len(packs) == 1, f"they were to share one pack: {packs}"
    codes = []
    for number in sorted(rows):
        code = rows[number]["exit_code"]
        assert code is not None, (
            f"{entry.case.name}: {rows[number]}\n{user.describe(entry.csub_job)}"
        )
        codes.append((int(code["code"]), int(code["signal"])))
    # Each member but the first has a number of its own, as each has an id by sbatch.
    own_ids = {number: rows[number]["job_id"] or entry.csub_job for number in rows}
    ids = dict.fromkeys((entry.csub_job, *own_ids.values()))
    if entry.case.is_array:
        [directory] = entry.actual
        return [Run(*max(codes), _read(entry.case, directory, *ids))]
    runs = []
    for number, (directory, code) in enumerate(zip(entry.actual, codes, strict=True), start=1):
        tree = _rename_outputs(_read(entry.case, directory, *ids), entry.case.outputs, number)
        runs.append(Run(*code, tree))
    return runs


def _read(case: Case, directory: Path, *job_ids: str) -> dict[str, Entry]:
    """The tree with the two things that are the harness's own made equal: job id and directory."""
    given, ids = {case.name, *case.companions}, f"(?:{'|'.join(job_ids)})"
    place, job = str(directory).encode(), re.compile(rb"(?<![\w.])%s(?![\d.])" % ids.encode())
    name_job = re.compile(rf"(?<!\d){ids}(?!\d)")
    tree = {}
    for name, entry in read_tree(directory, leave_out=sorted(given)).items():
        content = job.sub(b"JOB", entry.content.replace(place, b"DIRECTORY"))
        if any(re.fullmatch(pattern, name) for pattern, _ in case.unread):
            content = b""
        tree[name_job.sub("JOB", name)] = Entry(entry.kind, entry.permissions, content)
    return tree


def _rename_outputs(
    tree: dict[str, Entry], outputs: Sequence[str], number: int
) -> dict[str, Entry]:
    """Take the member's number out of the names of its output files, and only of those."""
    renamed = dict(tree)
    for name in outputs:
        stem, dot, suffix = name.rpartition(".")
        member = f"{stem}_{number}{dot}{suffix}"
        if member in renamed and name not in renamed:
            renamed[name] = renamed.pop(member)
    return renamed


def describe(run: Run, limit: int = 2000) -> str:
    """A run's output, for a failing test."""
    return json.dumps(
        {
            name: entry.content[:limit].decode("utf-8", "backslashreplace")
            for name, entry in run.tree.items()
            if entry.kind == "file"
        },
        indent=1,
    )
