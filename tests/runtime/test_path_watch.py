"""A member whose programs do not find csub's own commands is noticed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.path_shims import PathWatch, find_shims, write_shims

from ..wait_until import wait_until
from .stepped_runner import SteppedRunner

Run = Callable[[str], list[dict[str, object]]]


@pytest.fixture
def run(bed: SteppedRunner, tmp_path: Path) -> Iterator[Run]:
    """Runs a script as member 1 and looks at it; what the log says."""
    (member,) = bed.adopt(1)
    member.prefix = str(bed.folder(1) / "run.1.1")
    write_shims(bed.pack, "/usr/bin/python3")
    shims = find_shims(bed.folder(1))
    Path(shims).symlink_to("../../bin")
    real = tmp_path / "real"
    real.mkdir()
    (real / "scancel").write_text("#!/bin/sh\n")
    (real / "scancel").chmod(0o755)
    started: list[subprocess.Popen[bytes]] = []

    def run_script(text: str) -> list[dict[str, object]]:
        ready = tmp_path / "ready"
        script = text.replace("REAL", str(real)).replace("READY", f"touch {ready}; exec sleep 60")
        process = subprocess.Popen(
            ["/bin/sh", "-c", script], env={"PATH": f"{shims}:{real}:/usr/bin:/bin"}
        )
        started.append(process)
        wait_until(ready.exists, "it runs")
        member.pid = process.pid
        journal = Journal(tmp_path)
        watch = PathWatch(journal, (0.0, 0.0))
        for _ in range(3):
            watch.look([member])
        path = tmp_path / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    yield run_script
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "script",
    [
        "export PATH=REAL:/usr/bin:/bin; sh -c 'READY' & wait",
        "PATH=REAL:$PATH sh -c 'READY' & wait",
    ],
)
def test_a_program_that_reaches_slurm_s_own_command_is_named(run: Run, script: str) -> None:
    events = run(script)
    assert {(event["event"], event["member"]) for event in events} == {("path_lost", 1)}
    # sh becomes sleep meanwhile; nothing is said twice.
    named = [program for event in events for program in cast(list[str], event["programs"])]
    assert set(named) <= {"sh", "sleep"}
    assert len(named) == len(set(named))


@pytest.mark.parametrize(
    "script",
    [
        "READY",
        "export PATH=/usr/bin/nowhere:$PATH; sh -c 'READY' & wait",
    ],
)
def test_a_program_that_does_not_is_not(run: Run, script: str) -> None:
    assert run(script) == []
