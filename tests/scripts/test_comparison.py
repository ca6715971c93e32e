"""The comparison of two runs notices every difference that nobody has allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..bed import CsubUser
from . import script_runs
from .catalogue import CASES, HERE, Case
from .comparison import (
    Allowance,
    Entry,
    Run,
    find_differences,
    find_unused,
    mask_run,
    read_tree,
)

BASE = {
    "slurm-JOB.out": Entry("file", 0o644, b"loss 0.5\nepoch 2\n"),
    "runs": Entry("folder", 0o755),
    "runs/latest": Entry("link", 0, b"model.txt"),
}
EXPECTED = Run(0, 0, BASE)

CHANGED = {
    "another exit code": (Run(1, 0, BASE), "exit: sbatch 0:0, csub 1:0"),
    "a signal": (Run(0, 9, BASE), "exit: sbatch 0:0, csub 0:9"),
    "another line": (
        Run(0, 0, BASE | {"slurm-JOB.out": Entry("file", 0o644, b"loss 0.5\nepoch 3\n")}),
        "slurm-JOB.out: line 2: sbatch b'epoch 2', csub b'epoch 3'",
    ),
    "a line more": (
        Run(0, 0, BASE | {"slurm-JOB.out": Entry("file", 0o644, b"loss 0.5\nepoch 2\nx\n")}),
        "slurm-JOB.out: line 3: sbatch b'', csub b'x'",
    ),
    "no line break at the end": (
        Run(0, 0, BASE | {"slurm-JOB.out": Entry("file", 0o644, b"loss 0.5\nepoch 2")}),
        "slurm-JOB.out: 17 bytes by sbatch, 16 by csub",
    ),
    "other permissions": (
        Run(0, 0, BASE | {"slurm-JOB.out": Entry("file", 0o600, b"loss 0.5\nepoch 2\n")}),
        "slurm-JOB.out: sbatch file 644, csub file 600",
    ),
    "another link": (
        Run(0, 0, BASE | {"runs/latest": Entry("link", 0, b"other.txt")}),
        "runs/latest: line 1: sbatch b'model.txt', csub b'other.txt'",
    ),
    "a file for a folder": (
        Run(0, 0, BASE | {"runs": Entry("file", 0o755)}),
        "runs: sbatch folder 755, csub file 755",
    ),
    "a file more": (Run(0, 0, BASE | {"core": Entry("file", 0o600)}), "core: only csub wrote it"),
    "a file less": (
        Run(0, 0, {name: entry for name, entry in BASE.items() if name != "runs/latest"}),
        "runs/latest: only sbatch wrote it",
    ),
}


def test_equal_runs_do_not_differ() -> None:
    assert find_differences(EXPECTED, Run(0, 0, dict(BASE))) == []


@pytest.mark.parametrize("what", CHANGED)
def test_every_kind_of_difference_is_named(what: str) -> None:
    changed, said = CHANGED[what]
    assert find_differences(EXPECTED, changed) == [said]


def test_what_is_allowed_may_differ_and_nothing_beside_it() -> None:
    stamp = Allowance(r"(at )\d+ s", "the time")
    runs = [
        mask_run(Run(0, 0, {f"log.{text[3:5]}": Entry("file", 0o644, text.encode())}), [stamp])
        for text in ("at 12 s: 5", "at 12 s: 6")
    ]
    assert find_differences(*runs) == ["log.12: line 1: sbatch b'~at ~: 5', csub b'~at ~: 6'"]
    runs = [
        mask_run(Run(0, 0, {"log": Entry("file", 0o644, text)}), [stamp])
        for text in (b"at 12 s: 5", b"at 13 s: 5")
    ]
    assert find_differences(*runs) == []


def test_an_allowance_for_one_file_holds_in_no_other() -> None:
    stamp = Allowance(r"\d+", "the time", files=r"a\.log")
    runs = [
        mask_run(
            Run(0, 0, {"a.log": Entry("file", 0o644, text), "b.log": Entry("file", 0o644, text)}),
            [stamp],
        )
        for text in (b"1", b"2")
    ]
    assert find_differences(*runs) == ["b.log: line 1: sbatch b'1', csub b'2'"]


def test_files_whose_names_may_differ_are_still_counted() -> None:
    stamp = Allowance(r"\d+", "the time")
    one = mask_run(Run(0, 0, {"a1": Entry("file", 0o644)}), [stamp])
    two = mask_run(Run(0, 0, {f"a{n}": Entry("file", 0o644) for n in (5, 6)}), [stamp])
    assert find_differences(one, two) == ["a~ (one more): only csub wrote it"]


def test_an_allowance_that_allows_nothing_is_found() -> None:
    idle = Allowance("never", "no reason")
    assert find_unused([idle, Allowance("loss", "it matters")], [EXPECTED]) == [idle]


def test_a_tree_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "inside").touch()
    (tmp_path / "runs").mkdir(mode=0o750)
    (tmp_path / "runs" / "model").write_bytes(b"\0\xff")
    (tmp_path / "runs" / "model").chmod(0o640)
    (tmp_path / "link").symlink_to("runs/model")
    assert read_tree(tmp_path, leave_out=["given"]) == {
        "link": Entry("link", 0, b"runs/model"),
        "runs": Entry("folder", 0o750),
        "runs/model": Entry("file", 0o640, b"\0\xff"),
    }


def test_every_script_of_the_folder_is_in_the_catalogue() -> None:
    ours = {"script_runs.py", "catalogue.py", "comparison.py", "conftest.py", "mpi.py"}
    scripts = {
        path.name
        for path in HERE.iterdir()
        if path.suffix in (".sh", ".py")
        and path.name not in ours
        and not path.name.startswith("test_")
    }
    assert {case.name for case in CASES} == scripts
    assert len(CASES) >= 30


@pytest.mark.slurm
def test_a_script_that_sees_where_it_runs_is_found_out(
    scripts_user: CsubUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: a script that prints what only a member has does differ."""
    (tmp_path / "differs.sh").write_text(
        "#!/bin/bash\n#SBATCH --time=1\n"
        'echo "member ${SLURM_COLLOC_MEMBER:-none}"; exit ${SLURM_COLLOC_MEMBER:+3}\n'
    )
    (tmp_path / "differs.sh").chmod(0o755)
    monkeypatch.setattr(script_runs, "HERE", tmp_path)
    monkeypatch.setattr("tests.scripts.catalogue.HERE", tmp_path, raising=True)
    submitted = script_runs.submit(Case("differs.sh", "member"), scripts_user)
    script_runs.wait_for_all(scripts_user, [submitted])
    expected = script_runs.read_expected(submitted, scripts_user)
    for number, run in enumerate(script_runs.read_actual(submitted, scripts_user), start=1):
        assert find_differences(expected, run) == [
            "exit: sbatch 0:0, csub 3:0",
            f"slurm-JOB.out: line 1: sbatch b'member none', csub b'member JOB/{number}'",
        ]
