"""A pack that travels: in the batch script, and members' environments as Slurm keeps them."""

from __future__ import annotations

import base64
import dataclasses
import fcntl
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.store.pack_directory import write_pack
from slurm_colloc.submission.packs.submit_batch import (
    CARRIED_PREFIX,
    build_archive,
    build_carried_environment,
)

from ..packs import build_pack
from .test_render import render

SECRET = b"API_KEY=hunter2\0MORE=" + os.urandom(200_000).hex().encode()


@pytest.fixture
def packs(tmp_path: Path) -> Path:
    folder = tmp_path / "packs"
    folder.mkdir()
    pack = build_pack("s")
    members = tuple(dataclasses.replace(m, environment=SECRET) for m in pack.members)
    write_pack(folder / "s.0", dataclasses.replace(pack, members=members))
    return folder


def list_names(text: str) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(text))) as archive:
        return {Path(name).name for name in archive.getnames()}


def run(packs: Path, root: Path, *, python: str = "") -> subprocess.CompletedProcess[str]:
    """Run the batch script with a Python that shows what it finds."""
    program = root / "python"
    program.write_text(
        "#!/bin/bash\n"
        'cd "${@: -1}" && find . -type f | sort; cat members/*/env | md5sum; env\n'
        "flock -n ../../lock true && echo free; ls ../..; exit 3\n"
    )
    program.chmod(0o755)
    script = root / "batch"
    script.write_text(
        render("s", archive=build_archive(packs, ["s.0"]), python=python or str(program))
    )
    (root / "tmp").mkdir(exist_ok=True)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(root / "tmp"),
                   **build_carried_environment(packs, ["s.0"])}  # fmt: skip
    return subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, check=False
    )


def test_the_script_holds_no_environment_and_the_variables_hold_nothing_else(packs: Path) -> None:
    assert "env" not in list_names(build_archive(packs, ["s.0"]))
    carried = build_carried_environment(packs, ["s.0"])
    assert len(carried) > 1, "it takes more than one variable"
    assert max(map(len, carried.values())) < 128 * 1024
    assert list_names("".join(carried[name] for name in sorted(carried))) == {
        "s.0", "env", "0001", "0002", "members", "inbox", "control",
    }  # fmt: skip


def test_on_the_node_the_pack_is_whole_and_the_variables_are_gone(
    packs: Path, tmp_path: Path
) -> None:
    ended = run(packs, tmp_path)
    assert ended.returncode == 3, ended.stderr
    whole = {str(p.relative_to(packs / "s.0")) for p in (packs / "s.0").rglob("*") if p.is_file()}
    assert {line[2:] for line in ended.stdout.splitlines() if line.startswith("./")} == whole
    wanted = subprocess.run(["md5sum"], input=SECRET * 2, capture_output=True, check=True).stdout
    assert wanted.decode() in ended.stdout
    assert CARRIED_PREFIX not in ended.stdout
    # Its runner holds the lock for as long as it lives.
    assert "free" not in ended.stdout


def test_what_a_killed_pack_has_left_goes_with_the_next_and_nothing_else(
    packs: Path, tmp_path: Path
) -> None:
    run(packs, tmp_path)
    [killed] = (tmp_path / "tmp").iterdir()
    living = tmp_path / "tmp" / "csub-pack.living"
    other = tmp_path / "tmp" / "csub-pack.other"
    living.mkdir()
    other.mkdir()
    with (living / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(packs, tmp_path)
    left = set((tmp_path / "tmp").iterdir())
    assert killed not in left
    assert {living, other} < left
    assert len(left) == 3


def test_a_script_that_ends_before_its_runner_leaves_nothing(packs: Path, tmp_path: Path) -> None:
    ended = run(packs, tmp_path, python="/nowhere/python3")
    assert ended.returncode == 5
    assert list((tmp_path / "tmp").iterdir()) == []


def test_environments_that_no_job_can_have_are_refused(packs: Path) -> None:
    (packs / "s.0" / "members" / "0001" / "env").write_bytes(os.urandom(1_000_000))
    with pytest.raises(UsageProblem, match="too much to travel in the environment of a batch job"):
        build_carried_environment(packs, ["s.0"])


@pytest.mark.parametrize("size", [1, 90_000, 200_000])
def test_an_archive_is_lines_of_120_signs_and_nothing_is_lost(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "packs"
    (folder / "s.0").mkdir(parents=True)
    content = os.urandom(size)
    (folder / "s.0" / "script").write_bytes(content)
    lines = build_archive(folder, ["s.0"]).split("\n")
    assert {len(line) for line in lines[:-1]} <= {120}
    assert 0 < len(lines[-1]) <= 120
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode("".join(lines)))) as archive:
        member = archive.extractfile("packs/s.0/script")
        assert member is not None
        assert member.read() == content


def test_an_archive_is_cut_and_not_wrapped_as_words_are(tmp_path: Path) -> None:
    """textwrap copies what is left at each line, which takes minutes for megabytes."""
    (tmp_path / "s.0").mkdir()
    (tmp_path / "s.0" / "script").write_bytes(os.urandom(1000))
    code = (
        "import pathlib, sys\n"
        # Whatever measures the tests may have loaded it.
        "before = set(sys.modules)\n"
        "from slurm_colloc.submission.packs.submit_batch import build_archive\n"
        "assert len(build_archive(pathlib.Path(sys.argv[1]), ['s.0'])) > 1000\n"
        "sys.exit('textwrap' in set(sys.modules) - before)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert ended.returncode == 0
