"""Scripts as people submit them, once by sbatch and once by csub under that name."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ..bed import CsubUser
from .conftest import put_csub_in_place

pytestmark = [pytest.mark.slurm, pytest.mark.long]

PATIENCE_S = 400
_ID = re.compile(r"(?:Submitted batch job |^)(\d+)$", re.MULTILINE)
_NODE = re.compile(r"\bn[0-9a-f]+-\d\b")
_MOMENT = re.compile(r"(?<=CANCELLED AT )[\d:T-]{19}")
_GONE = re.compile(r"slurmstepd.* failed signal 18 pid .*No such process\n")
"""By chance: a process that is to continue (CONT) has just ended of the signal before it."""


HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=200M --time=5\n"


@dataclass(frozen=True)
class SbatchCall:
    """One script and how it is submitted.

    Attributes:
        lines: What is run in bash, in a directory of its own.
        files: What lies there; text that begins without `#!` gets HEAD before it.
        says: A line of some output file, so that a script that does nothing is noticed.
        states: Of all tasks, sorted; empty where nothing is submitted.
    """

    lines: str
    files: dict[str, str] = field(default_factory=dict)
    says: str = ""
    states: tuple[str, ...] = ("COMPLETED",)


DONE, FAILED = "COMPLETED", "FAILED"
TWO = {"a.sh": "echo first | tee seen; sleep 1\n", "b.sh": "cat seen\necho second\n"}

CALLS = {
    "plain": SbatchCall("sbatch a.sh", {"a.sh": "echo hello\n"}, "hello"),
    "exit code": SbatchCall("sbatch a.sh", {"a.sh": "echo a\nexit 3\n"}, "a", (FAILED,)),
    "set -e": SbatchCall(
        "sbatch a.sh", {"a.sh": "set -euo pipefail\necho a\nfalse\necho b\n"}, "a", (FAILED,)
    ),
    "a signal": SbatchCall("sbatch a.sh", {"a.sh": "echo a\nkill -9 $$\n"}, "a", (FAILED,)),
    "python": SbatchCall(
        "sbatch a.py one 'two words'",
        {
            "a.py": "#!/usr/bin/env python3\n#SBATCH --gres=gpu:1 --mem=200M -t 5\n"
            "import sys\nprint(sys.argv[1:])\n"
        },
        "['one', 'two words']",
    ),
    "here-document": SbatchCall(
        "sbatch <<'EOF'\n#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=200M\n"
        "#SBATCH -J here\necho $SLURM_JOB_NAME\nEOF",
        says="here",
    ),
    "standard input": SbatchCall("cat a.sh | sbatch -J piped", {"a.sh": "echo in\n"}, "in"),
    "wrap": SbatchCall(
        "sbatch --gres=gpu:1 --mem=200M --wrap='echo \"$PWD\" | tr -d / | wc -l'", says="1"
    ),
    "array with a limit": SbatchCall(
        "sbatch --array=0-3%2 -o %A_%a.txt a.sh",
        {"a.sh": "echo $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT\n"},
        "3 of 4",
        (DONE,) * 4,
    ),
    "array with steps": SbatchCall(
        "sbatch -a 1-5:2 a.sh",
        {"a.sh": "echo $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP\nexit $SLURM_ARRAY_TASK_ID\n"},
        "5 2",
        (FAILED,) * 3,
    ),
    "names of output files": SbatchCall(
        "mkdir logs\nsbatch -J 'my job' -o logs/%j-%x-%u.out -e 'logs/%x %N.err' a.sh",
        {"a.sh": "echo out\necho err >&2\n"},
        "err",
    ),
    "padding": SbatchCall("sbatch -o 'x%8j%%.out' a.sh", {"a.sh": "echo out\n"}, "out"),
    "open mode": SbatchCall(
        "echo old >log\nsbatch --open-mode=append -o log a.sh", {"a.sh": "echo new\n"}, "old"
    ),
    "truncated": SbatchCall(
        "echo old >log\nsbatch --open-mode=truncate -o log a.sh", {"a.sh": "echo new\n"}, "new"
    ),
    "no output": SbatchCall("sbatch -o /dev/null a.sh", {"a.sh": "echo new | tee seen\n"}, "new"),
    "chdir": SbatchCall(
        "mkdir sub\nsbatch --chdir=sub a.sh", {"a.sh": "basename $PWD; touch here\n"}, "sub"
    ),
    "export NONE": SbatchCall(
        "export MINE=1\nsbatch --export=NONE a.sh", {"a.sh": "echo [${MINE:-none}]\n"}, "[none]"
    ),
    "export values": SbatchCall(
        "export MINE=1 OTHER=2\nsbatch --export=MINE,NEW='a b' a.sh",
        {"a.sh": "echo [$MINE][${OTHER:-none}][$NEW]\n"},
        "[1][none][a b]",
    ),
    "export ALL": SbatchCall(
        "export MINE='é \"'\nsbatch --export=ALL,NEW=n a.sh",
        {"a.sh": "echo [$MINE][$NEW]\n"},
        '[é "][n]',
    ),
    "variables for sbatch": SbatchCall(
        "SBATCH_JOB_NAME=fromenv sbatch a.sh", {"a.sh": "echo $SLURM_JOB_NAME\n"}, "fromenv"
    ),
    "mail": SbatchCall(
        "sbatch --mail-type=END,FAIL --mail-user=one@example.org a.sh",
        {"a.sh": "echo m\n"},
        "m",
    ),
    "begin": SbatchCall("sbatch --begin=now+2 a.sh", {"a.sh": "echo later\n"}, "later"),
    "comment and nice": SbatchCall(
        "sbatch --comment='a b' --nice=10 a.sh", {"a.sh": "echo nice\n"}, "nice"
    ),
    "quiet": SbatchCall("sbatch -Q -J quiet a.sh", {"a.sh": "echo q\n"}, "q"),
    "wait": SbatchCall("sbatch --wait a.sh", {"a.sh": "exit 4\n"}, "", (FAILED,)),
    "afterok": SbatchCall(
        "id=$(sbatch --parsable a.sh)\nsbatch -d afterok:$id b.sh", TWO, "second", (DONE, DONE)
    ),
    "afterany": SbatchCall(
        "id=$(sbatch --parsable a.sh)\nsbatch --dependency=afterany:$id b.sh",
        {**TWO, "a.sh": "echo first | tee seen\nexit 1\n"},
        "second",
        (DONE, FAILED),
    ),
    "afternotok": SbatchCall(
        "id=$(sbatch --parsable a.sh)\nsbatch -d afternotok:$id b.sh",
        {**TWO, "a.sh": "echo first | tee seen\nexit 1\n"},
        "second",
        (DONE, FAILED),
    ),
    "afterok of an array": SbatchCall(
        "id=$(sbatch --parsable --array=1-3 a.sh)\nsbatch -d afterok:$id b.sh",
        {
            "a.sh": "echo first >done.$SLURM_ARRAY_TASK_ID; sleep 1\n",
            "b.sh": "cat done.*\necho second\n",
        },
        "second",
        (DONE,) * 4,
    ),
    "aftercorr": SbatchCall(
        "id=$(sbatch --parsable --array=1-3 a.sh)\nsbatch -d aftercorr:$id --array=1-3 b.sh",
        {"a.sh": "echo a >done.$SLURM_ARRAY_TASK_ID\n", "b.sh": "cat done.$SLURM_ARRAY_TASK_ID\n"},
        "a",
        (DONE,) * 6,
    ),
    "singleton": SbatchCall(
        "sbatch -J one -o 1.out a.sh 1\nsbatch -J one -d singleton -o 2.out a.sh 2",
        {"a.sh": "echo $1 >>order\nsleep 1\n"},
        "2",
        (DONE, DONE),
    ),
    "steps": SbatchCall(
        "sbatch -n1 a.sh",
        {"a.sh": "srun -n1 echo step $SLURM_NTASKS\nsrun -n1 false || echo status $?\n"},
        "status 1",
    ),
    "a job that submits": SbatchCall(
        "sbatch a.sh",
        {"a.sh": "sbatch --parsable -o inner.out b.sh | wc -w\n", "b.sh": "echo inner\n"},
        "inner",
        (DONE, DONE),
    ),
    "requeue": SbatchCall(
        "sbatch --requeue --open-mode=append a.sh",
        {
            "a.sh": "echo restart ${SLURM_RESTART_COUNT:-none}\n"
            '[ -n "${SLURM_RESTART_COUNT:-}" ] || { scontrol requeue $SLURM_JOB_ID; sleep 30; }\n'
        },
        "restart 1",
    ),
    "a signal before the limit": SbatchCall(
        "sbatch --signal=B:USR1@50 --time=1 a.sh",
        {"a.sh": "trap 'echo caught; exit 0' USR1\nsleep 70 &\nwait\n"},
        "caught",
    ),
    "arguments": SbatchCall(
        "sbatch a.sh -x 'two words' '' 'é*' --array=1-2",
        {"a.sh": "printf '<%s>' \"$@\"; echo\n"},
        "<-x><two words><><é*><--array=1-2>",
    ),
    "a name that is not ASCII": SbatchCall(
        "sbatch -J 'Grüße 世界' -o %x.out a.sh", {"a.sh": "echo $SLURM_JOB_NAME\n"}, "Grüße 世界"
    ),
    "modules": SbatchCall(
        "sbatch a.sh",
        {
            "a.sh": "if [ -e /etc/profile.d/modules.sh ]; then . /etc/profile.d/modules.sh\n"
            "module use $PWD; module load tool; fi\necho tool ${TOOL:-here}\n",
            "tool": "#%Module1.0\nsetenv TOOL here\n",
        },
        "tool here",
    ),
    "a login shell": SbatchCall(
        "sbatch a.sh",
        {"a.sh": "#!/bin/bash -l\n#SBATCH --gres=gpu:1 --mem=200M -t 5\necho in $0 | wc -w\n"},
        "2",
    ),
    "Windows line ends": SbatchCall(
        "sbatch a.sh", {"a.sh": "#!/bin/bash\r\n#SBATCH --mem=200M\r\necho a\r\n"}, states=()
    ),
    "no first line": SbatchCall("sbatch bare", {"bare": "raw:echo a\n"}, states=()),
    "an empty script": SbatchCall("sbatch bare", {"bare": "raw:"}, states=()),
    "no such script": SbatchCall("sbatch gone.sh", states=()),
    "a directory": SbatchCall("sbatch .", states=()),
    "a wrong option": SbatchCall("sbatch --no-such-option a.sh", {"a.sh": "true\n"}, states=()),
    "a wrong time": SbatchCall("sbatch --time=soon a.sh", {"a.sh": "true\n"}, states=()),
    "a wrong directive": SbatchCall(
        "sbatch a.sh", {"a.sh": "#!/bin/bash\n#SBATCH --nodes=many\ntrue\n"}, states=()
    ),
}


@dataclass
class Outcome:
    """What a call has answered and left behind.

    Attributes:
        is_refused: It ended with a status above 0 and submitted nothing.
        status: Its exit status; None where it was refused.
        answer: Its standard output, without ids.
        complains: It wrote to standard error.
        files: Contents by name, without ids and names of nodes.
    """

    is_refused: bool
    status: int | None
    answer: str
    complains: bool
    files: dict[str, str]


@dataclass
class Called:
    """A call that was made."""

    folder: Path
    given: frozenset[str]
    status: int
    answer: str
    complaint: str

    @property
    def ids(self) -> list[str]:
        """The ids that it has printed."""
        return _ID.findall(self.answer)


def call(
    user: CsubUser, name: str, how: str, path: str, *, shell: str = "bash", begin: str = ""
) -> Called:
    folder = user.home / how / re.sub(r"\W", "_", name)
    folder.mkdir(parents=True)
    for file, text in CALLS[name].files.items():
        has_head = text.startswith(("#!", "#%", "raw:"))
        place = folder / file
        place.write_text(text.removeprefix("raw:") if has_head else HEAD + text, newline="")
        place.chmod(0o755)
    # A file, of which shells read one line after the other: an alias holds from the next one on.
    lines = folder.with_suffix(".lines")
    lines.write_text(begin + CALLS[name].lines + "\n")
    for place in (folder.parent, folder, *folder.iterdir()):
        os.chown(place, user.uid, user.gid)
    done = user.run(
        [*shell.split(), str(lines)],
        directory=folder,
        environment={"PATH": path},
        check=False,
    )
    given = frozenset(CALLS[name].files)
    return Called(folder, given, done.returncode, done.stdout, done.stderr)


def wait_for_all(user: CsubUser) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while queue := user.run(["squeue", "-h", "-u", user.name, "-o", "%i %j %T %r"]).stdout:
        assert time.monotonic() < deadline, queue
        time.sleep(1)


def read_outcome(done: Called) -> Outcome:
    ids = sorted(every_id(done), key=int)

    def mask(text: str) -> str:
        for index, number in enumerate(ids):
            text = re.sub(rf"(?<!\d)0*{number}(?!\d)", f"JOB{index}", text)
        return _GONE.sub("", _MOMENT.sub("MOMENT", _NODE.sub("NODE", text)))

    files = {
        mask(str(place.relative_to(done.folder))): mask(place.read_text())
        for place in done.folder.rglob("*")
        if place.is_file() and place.name not in done.given
    }
    is_refused = done.status > 0 and not done.ids
    return Outcome(
        is_refused,
        None if is_refused else done.status,
        mask(done.answer),
        bool(done.complaint) and is_refused,
        files,
    )


def every_id(done: Called) -> set[str]:
    """Ids that it has printed, and those in the names of output files."""
    names = " ".join(place.name for place in done.folder.rglob("*"))
    return {*done.ids, *re.findall(r"slurm-(\d+)", names)}


@pytest.fixture(scope="module")
def home(clients_user: CsubUser) -> dict[str, tuple[Called, Called]]:
    """All calls, first by sbatch, then by csub under its name."""
    path = clients_user.environment["PATH"]
    links = put_csub_in_place(clients_user)
    assert shutil.which("sbatch", path=path) != shutil.which("sbatch", path=f"{links}:{path}")
    by_sbatch = {name: call(clients_user, name, "by-sbatch", path) for name in CALLS}
    by_csub = {name: call(clients_user, name, "by-csub", f"{links}:{path}") for name in CALLS}
    wait_for_all(clients_user)
    return {name: (by_sbatch[name], by_csub[name]) for name in CALLS}


def read_states(user: CsubUser, done: Called, *, by_csub: bool) -> tuple[str, ...]:
    """States of all tasks that a call has submitted."""
    states: list[str] = []
    for job_id in done.ids:
        if by_csub:
            states += [str(row["state"]) for row in user.members(job_id).values()]
        else:
            words = ["squeue", "-h", "-r", "--states=all", "-j", job_id, "-o", "%T"]
            states += user.run(words).stdout.split()
    return tuple(sorted(states))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_same_outcome_by_csub_under_the_name_sbatch(
    home: dict[str, tuple[Called, Called]], clients_user: CsubUser, name: str
) -> None:
    wanted: SbatchCall = CALLS[name]
    by_sbatch, by_csub = home[name]
    expected, found = read_outcome(by_sbatch), read_outcome(by_csub)
    assert expected.is_refused == (not wanted.states), by_sbatch
    lines = "\n".join(expected.files.values()).splitlines()
    assert not wanted.says or wanted.says in lines, expected
    assert found == expected, (by_sbatch, by_csub)
    if by_sbatch.ids:
        # A job's own submissions, and quiet ones, have printed no id here.
        states = read_states(clients_user, by_sbatch, by_csub=False)
        assert states == wanted.states[: len(states)]
        assert read_states(clients_user, by_csub, by_csub=True) == states


WAYS = {
    "alias": ("bash", "shopt -s expand_aliases\nalias sbatch=csub\n"),
    "alias, interactive": ("bash --norc -i", "alias sbatch=csub\n"),
    "function": ("bash", 'sbatch() { csub "$@"; }\n'),
    "alias in zsh": ("zsh -f", "alias sbatch=csub\n"),
    "function in zsh": ("zsh -f", 'sbatch() { csub "$@" }\n'),
}
BY_OTHER_WAYS = (
    "plain", "here-document", "standard input", "wrap", "array with a limit", "export values",
    "quiet", "wait", "afterok", "aftercorr", "singleton", "arguments", "no such script",
    "a wrong option", "Windows line ends",
)  # fmt: skip


@pytest.fixture(scope="module")
def by_other_ways(
    home: dict[str, tuple[Called, Called]], clients_user: CsubUser
) -> dict[str, dict[str, Called]]:
    """Some calls by each other way in which csub comes under the name; nothing of `home` runs."""
    assert home
    path = clients_user.environment["PATH"]
    made = {
        way: {
            name: call(clients_user, name, re.sub(r"\W", "_", way), path, shell=shell, begin=begin)
            for name in BY_OTHER_WAYS
        }
        for way, (shell, begin) in WAYS.items()
        if shutil.which(shell.split()[0])
    }
    wait_for_all(clients_user)
    return made


@pytest.mark.parametrize("way", WAYS)
def test_an_alias_and_a_function_do_what_the_link_does(
    home: dict[str, tuple[Called, Called]],
    by_other_ways: dict[str, dict[str, Called]],
    clients_user: CsubUser,
    way: str,
) -> None:
    if way not in by_other_ways:
        pytest.skip("zsh is not installed")
    for name, done in by_other_ways[way].items():
        link = home[name][1]
        found, expected = read_outcome(done), read_outcome(link)
        assert found == expected, (name, done, link)
        states = read_states(clients_user, done, by_csub=True)
        assert states == read_states(clients_user, link, by_csub=True), name
