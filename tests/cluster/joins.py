"""What the tests of joining share: scripts that say who ran, gates, and looks at whole states."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.job_ids import is_own_number

from ..bed import POLL_S, CsubUser
from ..wait_until import wait_until

DIRECTIVES = "#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=20M --time=10 --output=/dev/null"
NOTE = 'echo "$SLURM_COLLOC_MEMBER" >>"ran/$1"'
"""Each argument has a file of its own, with a line for each time that it ran."""

# Stands before the real scontrol, whose path is put in for @scontrol@. It tells where it is, and
# waits there until it may go on.
SCONTROL = r"""#!/bin/bash
mark() {
    [ -e "@gates@/stop-at-$1" ] || return
    : >"@gates@/$1"
    until [ -e "@gates@/go" ]; do sleep 0.02; done
}
[ "$1" = update ] || exec @scontrol@ "$@"
mark before
@scontrol@ "$@"
status=$?
mark after
exit $status
"""


def write_script(user: CsubUser, name: str = "train.sh", body: str = "") -> Path:
    """A script that notes that it ran; `body` comes after that."""
    folder = user.home / "ran"
    if not folder.exists():
        folder.mkdir()
        os.chown(folder, user.uid, user.gid)
    return user.script(name, f"{NOTE}; {body or ':'}", directives=DIRECTIVES)


def list_runs(user: CsubUser) -> dict[str, list[str]]:
    """Which members ran with each argument, in the order of their runs."""
    runs = {path.name: path.read_text().split() for path in (user.home / "ran").iterdir()}
    names = name_members(user, {name for own in runs.values() for name in own})
    return {argument: [names[name] for name in own] for argument, own in runs.items()}


def block(user: CsubUser, count: int = 1) -> list[str]:
    """Take GPUs; the ids of the jobs that have them, `scancel` gives them back."""
    argv = ["sbatch", "--parsable", "--gres=gpu:1", "-c1", "--mem=20M", "--job-name=blocker",
            "--output=/dev/null", "--wrap=sleep 900"]  # fmt: skip
    ids = [user.run(argv).stdout.strip() for _ in range(count)]
    wait_until(
        lambda: {read_field(user, job_id, "%T") for job_id in ids} == {"RUNNING"}, "they run"
    )
    return ids


def read_field(user: CsubUser, job_id: str, format_: str) -> str:
    """A field of squeue for a job, ended or not."""
    argv = ["squeue", "-h", f"--jobs={job_id}", "--states=all", f"--format={format_}"]
    return user.run(argv, check=False).stdout.strip()


def join(user: CsubUser, *words: str) -> str:
    """Submit so that it joins where it can; the member's name."""
    return name_member(user, user.csub("--join=auto", "--open=never", "--parsable", *words).stdout)


def name_member(user: CsubUser, answer: str) -> str:
    """The member that `--parsable` speaks of: the first of a new pack, or the joiner."""
    text = answer.strip()
    if is_own_number(text):
        return user.find_address(text)
    return text if "/" in text else f"{text}/1"


def name_members(user: CsubUser, answers: Iterable[str]) -> dict[str, str]:
    """As `name_member`, of many: csub is asked once."""
    texts = set(answers)
    numbers = sorted(filter(is_own_number, texts))
    rows = json.loads(user.csub("show", "--json", *numbers).stdout) if numbers else []
    found = {row["job_id"]: row["member"] for row in rows}
    assert sorted(found) == numbers
    assert len(rows) == len(numbers)
    return {text: found.get(text) or name_member(user, text) for text in texts}


def job_of(member: str) -> str:
    """The Slurm job of a member."""
    return member.partition("/")[0]


def show(user: CsubUser, job_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`csub show --json` of many submissions by member, each of which is there once.

    Jobs that have joined the packs of these are there, too.
    """
    ids = list(dict.fromkeys(job_ids))
    if not ids:
        return {}
    wanted = [*ids, *(number for job_id in ids for number in user.list_joined(job_id))]
    rows = json.loads(user.csub("show", "--json", *wanted).stdout)
    names = Counter(row["member"] for row in rows)
    assert set(names.values()) <= {1}, names
    return {row["member"]: row for row in rows}


def list_packs(user: CsubUser) -> dict[str, Path]:
    """The packs of the state by their Slurm jobs, each of which has one."""
    found: dict[str, Path] = {}
    for path in (user.state / "packs").iterdir():
        job_id = (path / "slurm_job_id").read_text().strip()
        assert job_id not in found
        found[job_id] = path
    return found


def list_in_state(user: CsubUser) -> list[str]:
    """All members of the state."""
    return sorted(
        f"{job_id}/{int(folder.name)}"
        for job_id, path in list_packs(user).items()
        for folder in (path / "members").iterdir()
        if (folder / "spec.json").exists() and not (folder / "entry.json").exists()
    )


def check_slurm_has_room(user: CsubUser) -> int:
    """Each pack that waits asks Slurm for what its plan needs; how many wait."""
    count = 0
    for job_id, path in list_packs(user).items():
        state, cpus, comment = read_field(user, job_id, "%T|%C|%k").split("|")
        record = json.loads((path / "pack.json").read_text())
        # A pack that was joined while it waited asks the node's prolog for MPS from then on; so
        # may one whose joiner was killed when it had grown.
        mark = f"[csub-pack={record['submission']}]"
        assert comment in (mark, f"{mark} [csub/1 mps]")
        assert comment != mark or record["mode"] != "mps"
        if state != "PENDING":
            continue
        count += 1
        wants = sorted(
            json.loads(spec.read_text())["plan"]["cpus"]
            for spec in path.glob("members/*/spec.json")
        )
        assert int(cpus) >= sum(wants[-record["degree"] :])
        if record["request"] is not None:
            assert int(cpus) == record["request"]["cpus"]
    return count


def list_unentered(user: CsubUser) -> list[str]:
    """What killed calls of csub have left in the packs: claims and unfinished files."""
    packs = user.state / "packs"
    found = [path.parent for path in packs.glob("*/members/*/entry.json")]
    found += [path for path in packs.glob("*/members/*") if not (path / "spec.json").exists()]
    for pattern in ("*/*.tmp*", "*/members/*/*.tmp*", "*/inbox/*.tmp*"):
        found += packs.glob(pattern)
    return [str(path) for path in found]


def list_leftovers(user: CsubUser) -> list[str]:
    """What must not be left once every pack has ended."""
    open_ = user.state / "open"
    kept = [*(user.state / "packs").glob("*/members/*/env"), *open_.iterdir()]
    return list_unentered(user) + [str(path) for path in kept]


def list_held_locks(user: CsubUser) -> list[str]:
    """Locks of joining that somebody still has."""
    held = []
    for path in (user.state / "joining.lock", *(user.state / "packs").glob("*/lock")):
        with path.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(str(path))
    return held


def finish_all(user: CsubUser, patience_s: float = 120.0) -> None:
    """Wait until Slurm has nothing of the user any more, then let csub look at it."""
    deadline = time.monotonic() + patience_s
    while rest := user.run(["squeue", "-h", "--me", "-o%i %T %r %C %j"], check=False).stdout:
        if time.monotonic() > deadline:
            pytest.fail(f"not ended within {patience_s:g} s:\n{rest}{_describe(user, rest)}")
        time.sleep(POLL_S)
    user.csub("queue")


def _describe(user: CsubUser, rest: str) -> str:
    """What the packs of the first jobs that squeue shows have written."""
    packs = list_packs(user)
    paths = [packs[line.split()[0]] for line in rest.splitlines() if line.split()[0] in packs]
    texts = []
    for path in paths[:2]:
        for name in ("pack.json", "events.jsonl", "pack.log"):
            with contextlib.suppress(FileNotFoundError):
                texts.append(f"--- {path / name}\n{(path / name).read_text()}")
        texts += [str(member) for member in sorted(path.glob("members/*/*"))]
        texts += [str(entry) for entry in sorted(path.glob("inbox/*"))]
    return "\n".join(texts)


@contextlib.contextmanager
def gates(user: CsubUser) -> Iterator[Path]:
    """A folder of gates at which `scontrol update` stops: touch `stop-at-before` or `-after`."""
    folder, program = user.home / "gates", user.home / "bin" / "scontrol"
    for path in (folder, program.parent):
        path.mkdir()
        os.chown(path, user.uid, user.gid)
    text = SCONTROL.replace("@scontrol@", user.find("scontrol")).replace("@gates@", str(folder))
    program.write_text(text)
    program.chmod(0o755)
    before = dict(user.extra)
    user.extra["PATH"] = f"{program.parent}:{user.environment['PATH']}"
    try:
        yield folder
    finally:
        (folder / "go").touch()
        user.extra.clear()
        user.extra.update(before)


def use_processes(user: CsubUser) -> None:
    """Members run as plain processes, which costs less than a job step for each."""
    path = user.home / "settings.toml"
    path.write_text('launcher = "process"\n')
    user.extra["SLURM_COLLOC_SETTINGS"] = str(path)


def read_lines(user: CsubUser, pattern: str) -> list[str]:
    """The lines of all files in the home whose names match."""
    return [line for path in user.home.glob(pattern) for line in path.read_text().splitlines()]


def start_shell(user: CsubUser, script: str) -> subprocess.Popen[str]:
    """Start a shell of the user's that runs a script; nobody reads what it writes."""
    return subprocess.Popen(
        ["bash", "-c", script],
        env=user.environment,
        cwd=user.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        **user.identity,
    )
