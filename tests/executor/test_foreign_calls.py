"""Calls in a folder in which others write, too: to load what they have put there is to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_colloc.errors import MemberFailed, NotFound
from slurm_colloc.executor import run_call
from slurm_colloc.executor.calls import (
    PythonCall,
    find_calls,
    note_submitted,
    read_result,
    write_calls,
)
from slurm_colloc.executor.function_executor import Job

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user"),
]

OTHER = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which everybody may write, and all the way to it can be walked."""
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path.name.startswith(("pytest", tmp_path.name)):
            path.chmod(0o755)
    folder = tmp_path / "group"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def as_other(program: str, folder: Path) -> None:
    """Run a program as another user, in the folder."""
    subprocess.run(
        ["/usr/bin/env", "python3", "-c", textwrap.dedent(program)],
        user=OTHER,
        group=OTHER,
        extra_groups=[],
        cwd=folder,
        check=True,
        env={"PATH": "/usr/bin:/bin", "PYTHON": run_call.OWN_PYTHON},
    )


PLANT = """
    import json, os, pickle
    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {os.getcwd()}/was-run",)
    os.makedirs("NAME", mode=0o755)
    with open("NAME/submitted.json", "w") as file:
        json.dump({"schema": 1, "job_id": "4711", "numbers": [1]}, file)
    head = {"schema": 1, "python": os.environ["PYTHON"], "outcome": "value", "path": []}
    for ending in ("result", "call"):
        with open(f"NAME/0.{ending}", "wb") as file:
            file.write(json.dumps(head).encode() + b"\\n" + pickle.dumps(Payload()))
"""


def write_own(folder: Path) -> Path:
    directory = write_calls(folder, [PythonCall(abs, (-1,), {})], name="own", script=b"")
    note_submitted(directory, "4711", [1])
    head = {"schema": 1, "python": run_call.OWN_PYTHON, "outcome": "value"}
    (directory / "0.result").write_bytes(json.dumps(head).encode() + b"\nI1\n.")
    return directory


def test_a_directory_of_another_user_that_claims_the_id_is_passed_over(folder: Path) -> None:
    as_other(PLANT.replace("NAME", "a"), folder)
    with pytest.raises(NotFound, match=r"holds no call of job 4711"):
        Job("4711", folder)
    own = write_own(folder)
    as_other(PLANT.replace("NAME", "z"), folder)
    assert find_calls(folder, "4711", None) == (own, 0, 1)
    assert Job("4711", folder).result(timeout=20) == 1
    assert not (folder / "was-run").exists()


def test_links_to_directories_and_files_are_not_followed(folder: Path) -> None:
    own = write_own(folder)
    (folder / "0-link").symlink_to(own)
    assert find_calls(folder, "4711", 1)[0] == own
    as_other(PLANT.replace("NAME", "z"), folder)
    (own / "0.result").unlink()
    (own / "0.result").symlink_to(folder / "z" / "0.result")
    found = read_result(own, 0, "4711/1")
    assert found is not None
    assert isinstance(found[1], MemberFailed)
    assert "0.result: it is a link, no file" in str(found[1])
    assert not (folder / "was-run").exists()


def test_a_directory_that_was_exchanged_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_own(folder)
    directory, place, _ = find_calls(folder, "4711", 1)
    # In a folder without a sticky bit anybody may.
    as_other(f"import os; os.rename('{own.name}', 'away')", folder)
    as_other(PLANT.replace("NAME", own.name), folder)
    found = read_result(directory, place, "4711/1")
    assert found is not None
    assert "it belongs to nobody, not to root" in str(found[1])
    monkeypatch.setenv(run_call.VARIABLE, str(directory / "0"))
    with pytest.raises(run_call.Refused, match="is a directory of another user"):
        run_call.main()
    assert not (folder / "was-run").exists()


def test_own_calls_into_which_others_may_write_are_refused_with_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_own(folder)
    own.chmod(0o770)
    with pytest.raises(NotFound) as caught:
        find_calls(folder, "4711", 1)
    assert caught.value.hint == (f"{own} is passed over: others may write into it (chmod go-w)")
    monkeypatch.setenv(run_call.VARIABLE, str(own / "0"))
    with pytest.raises(run_call.Refused, match=f"others may write into {own}"):
        run_call.main()
    own.chmod(0o750)
    assert find_calls(folder, "4711", 1)[0] == own


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("make", [make_pipe, make_directory])
@pytest.mark.parametrize("name", ["submitted.json", "0.result", "0.call"])
def test_a_pipe_keeps_nobody_waiting(
    folder: Path, name: str, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_own(folder)
    make(own / name)
    program = """
        import sys
        from pathlib import Path
        from slurm_colloc.errors import NotFound
        from slurm_colloc.executor.calls import find_calls, read_result
        try:
            directory, place, _ = find_calls(Path(sys.argv[1]), "4711", 1)
            print(read_result(directory, place, "4711/1"))
        except NotFound as problem:
            print(problem)
    """
    # In a process of its own, which can be given up.
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told = {
        "submitted.json": "holds no call of job 4711",
        "0.result": "is not loaded: ",
        "0.call": "(1, None)",
    }
    assert told[name] in ended.stdout
    if name == "0.call":
        monkeypatch.setenv(run_call.VARIABLE, str(own / "0"))
        with pytest.raises(run_call.Refused, match=r"0.call is no file, and is not run"):
            run_call.main()
