from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import StateError
from slurm_colloc.store import atomic_files
from slurm_colloc.store.atomic_files import make_directory, read_json, write_atomic, write_json


def test_a_file_is_private_and_holds_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"\0\xff\n")
    assert path.read_bytes() == b"\0\xff\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_a_directory_is_private_and_may_exist_already(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    make_directory(path)
    make_directory(path)
    assert path.stat().st_mode & 0o777 == 0o700


_WRITE_UNDER_A_LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import write_atomic
try:
    write_atomic(sys.argv[1], b"x" * 10_000)
except StateError as error:
    print(error)
"""


def test_a_write_that_breaks_off_in_the_middle_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    ended = subprocess.run(
        # No bytecode of the package: under this limit half a file would stay.
        [sys.executable, "-B", "-c", _WRITE_UNDER_A_LIMIT, path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout == f"cannot write {path}: File too large\n"
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A directory on a file system of 64 kB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if os.geteuid() != 0 or probe.returncode != 0:
        pytest.skip("only root can mount a small file system")
    return disk


@pytest.mark.root
def test_a_full_disk_is_told_with_what_to_do(small_disk: Path) -> None:
    program = (
        "import os, sys\n"
        "from slurm_colloc.errors import StateError\n"
        "from slurm_colloc.store.atomic_files import write_atomic\n"
        "try:\n"
        "    write_atomic(sys.argv[1] + '/file', b'x' * 200_000)\n"
        "except StateError as error:\n"
        "    print(error)\n"
        "print(os.listdir(sys.argv[1]))\n"
    )
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c",
         'mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1"',
         "sh", small_disk, sys.executable, program],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout == (
        f"cannot write {small_disk}/file: No space left on device: the disk is full: make room, "
        "then try again; nothing was left half-submitted\n[]\n"
    )


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"cannot write .*/none/file.*: No such file or directory"):
        write_atomic(tmp_path / "none" / "file", b"")


@given(value=st.dictionaries(st.text(max_size=5).filter(lambda key: key != "schema"),
                             st.integers() | st.text() | st.none()))  # fmt: skip
def test_json_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "value.json"
    write_json(path, value)
    assert read_json(path) == {**value, "schema": 1}


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None
    (tmp_path / "file").touch()
    assert read_json(tmp_path / "file" / "none.json") is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"3", b"null", b"{}", b'{"schema": "x"', b"\xff\xfe"]
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(content)
    with pytest.raises(StateError) as problem:
        read_json(path)
    assert problem.value.message.startswith(f"{path} is damaged (")
    assert problem.value.hint == "move it away; the Slurm job is not touched"


@pytest.mark.parametrize("schema", [0, 2, "one"])
def test_a_file_of_another_version_is_refused(tmp_path: Path, schema: object) -> None:
    path = tmp_path / "value.json"
    path.write_text(json.dumps({"schema": schema}))
    with pytest.raises(StateError) as problem:
        read_json(path)
    assert str(problem.value) == (
        f"{path} is of another version (schema {schema}, this one reads 1): "
        "use the csub that submitted it"
    )


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int, __: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file", b"x")
    assert list(tmp_path.iterdir()) == []


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("make", [make_pipe, link_to_a_device, make_huge])
def test_what_is_no_small_file_is_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(StateError, match=rf"cannot read {path}: (it is a .*, no file$|File too)"):
        read_json(path)


@pytest.mark.parametrize("text", ["[" * 200_000 + "]" * 200_000, "1" * 5000, "1e999"])
def test_no_json_is_too_odd_to_be_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(StateError, match="is damaged"):
        read_json(path)


def test_a_file_that_is_larger_than_it_says_is_not_read_on_and_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As one that grows while it is read: its size is said to be 0.
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    assert atomic_files.read_bytes(path)
    monkeypatch.setattr(atomic_files, "_BYTES_MOST", 10)
    with pytest.raises(OSError, match="File too large"):
        atomic_files.read_bytes(path)
