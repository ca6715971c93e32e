"""Private directories: made where nobody can interfere, removed whatever is in them."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_colloc.errors import NodeError
from slurm_colloc.host.system.directories import (
    PREFIX,
    Owner,
    list_private_directories,
    make_private_directory,
    open_private_directory,
    remove_directory,
)

NOBODY = 65534
ROOT = Path(__file__).parents[2]
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")


def run_python(code: str, *argv: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python that finds the package, in a process of its own.

    It may set itself limits, under which it must write no bytecode: half a file would stay.
    """
    boot = f"import sys; sys.path.append({str(ROOT)!r})\n{code}"
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        ["/usr/bin/python3", "-IB", "-c", boot, *map(str, argv)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        **options,
    )


@pytest.fixture
def mounted(short_directory: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts small file systems; they are unmounted at the end."""
    if os.geteuid() != 0:
        pytest.skip("needs to be root")
    points: list[Path] = []

    def mount(options: str) -> Path:
        point = short_directory / f"m{len(points)}"
        point.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", point], capture_output=True, check=False
        )
        if done.returncode != 0:
            pytest.skip("file systems cannot be mounted here")
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", "-l", point], check=True)


def test_a_directory_is_its_makers_alone_and_locked(base: Path) -> None:
    made = make_private_directory((str(base),))
    status = Path(made.path).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, os.geteuid())
    assert Path(made.pipe_path).is_dir()
    assert Path(made.log_path).is_dir()
    with pytest.raises(BlockingIOError):
        open_private_directory(made.path)
    made.close()
    again = open_private_directory(made.path)
    assert again.path == made.path
    again.close()


def test_the_umask_of_the_maker_does_not_matter(base: Path) -> None:
    old = os.umask(0o000)
    try:
        made = make_private_directory((str(base),))
    finally:
        os.umask(old)
    assert stat.S_IMODE(Path(made.path).stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(made.pipe_path).stat().st_mode) == 0o700
    made.close()


@pytest.mark.parametrize(("length", "fits"), [(87, True), (88, False)])
def test_the_pipe_path_has_at_most_87_bytes(base: Path, length: int, fits: bool) -> None:
    room = length - len(f"{base}//{PREFIX}12345678/p")
    deep = base / ("x" * room)
    deep.mkdir()
    if fits:
        made = make_private_directory((str(deep),))
        assert len(os.fsencode(made.pipe_path)) == length
        made.close()
    else:
        with pytest.raises(NodeError, match="would have 88 bytes"):
            make_private_directory((str(deep),))
        assert list(deep.iterdir()) == []


def test_bytes_are_counted_and_not_characters(base: Path) -> None:
    deep = base / ("ä" * 40)
    deep.mkdir()
    with pytest.raises(NodeError, match="bytes"):
        make_private_directory((str(deep),))


def test_a_base_that_will_not_do_is_passed_over_with_the_reason(base: Path) -> None:
    unsafe = base / "unsafe"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    made = make_private_directory((str(base / "missing"), str(unsafe), str(base)))
    assert Path(made.path).parent == base
    missing, no_sticky_bit = made.refused
    assert missing == f"{base}/missing: No such file or directory"
    assert no_sticky_bit.endswith("may be written by others and has no sticky bit")
    made.close()


def test_without_any_base_all_reasons_are_told(base: Path) -> None:
    with pytest.raises(NodeError) as caught:
        make_private_directory((str(base / "a"), str(base / "b")))
    assert f"{base}/a: No such file" in caught.value.message
    assert f"{base}/b: No such file" in caught.value.message


def test_a_full_file_system_is_passed_over(mounted: Callable[[str], Path], base: Path) -> None:
    full = mounted("size=64k,mode=1777")
    made = make_private_directory((str(full), str(base)))
    assert Path(made.path).parent == base
    assert made.refused == (f"{full}: No space left on device",)
    assert list(full.iterdir()) == []
    made.close()


def test_a_file_system_without_free_files_is_passed_over(
    mounted: Callable[[str], Path], base: Path
) -> None:
    full = mounted("nr_inodes=3,mode=1777")
    made = make_private_directory((str(full), str(base)))
    assert made.refused == (f"{full}: No space left on device",)
    assert list(full.iterdir()) == []
    made.close()


def test_a_read_only_file_system_is_passed_over(mounted: Callable[[str], Path], base: Path) -> None:
    fixed = mounted("ro,mode=1777")
    made = make_private_directory((str(fixed), str(base)))
    assert made.refused == (f"{fixed}: Read-only file system",)
    made.close()


def test_a_user_at_the_limit_of_what_may_be_written_is_told(base: Path) -> None:
    done = run_python(
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from slurm_colloc.host.system.directories import make_private_directory\n"
        "from slurm_colloc.errors import NodeError\n"
        "try: make_private_directory((sys.argv[1],))\n"
        "except NodeError as error: print(error.message)\n",
        base,
    )
    assert "File too large" in done.stdout, done.stderr
    assert list(base.iterdir()) == []


@is_root
def test_a_base_of_somebody_else_is_not_trusted(base: Path) -> None:
    theirs = base / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    theirs.chmod(0o1777)
    with pytest.raises(NodeError, match=f"belongs to user {NOBODY}"):
        make_private_directory((str(theirs),))
    inner = theirs / "inner"
    inner.mkdir()
    with pytest.raises(NodeError, match=f"theirs belongs to user {NOBODY}"):
        make_private_directory((str(inner),))


def test_a_base_behind_a_link_is_used_by_its_real_name(base: Path) -> None:
    real = base / "real"
    real.mkdir()
    (base / "link").symlink_to(real)
    made = make_private_directory((str(base / "link"),))
    assert Path(made.path).parent == real
    made.close()


@is_root
def test_root_keeps_the_directory_and_gives_only_its_insides_away(base: Path) -> None:
    made = make_private_directory((str(base),), Owner(NOBODY, NOBODY, (NOBODY,)))
    outer, pipe, logs = (Path(p).stat() for p in (made.path, made.pipe_path, made.log_path))
    assert (outer.st_uid, stat.S_IMODE(outer.st_mode)) == (0, 0o711)
    for inner in (pipe, logs):
        assert (inner.st_uid, inner.st_gid, stat.S_IMODE(inner.st_mode)) == (NOBODY, NOBODY, 0o700)
    assert remove_directory(made.path, made.descriptor) == ()
    made.close()


def test_links_and_files_that_are_named_like_a_directory_are_no_directories(base: Path) -> None:
    precious = base / "precious"
    precious.mkdir()
    (precious / "lock").write_text("")
    (base / f"{PREFIX}aaaaaaaa").symlink_to(precious)
    (base / f"{PREFIX}bbbbbbbb").write_text("")
    made = make_private_directory((str(base),))
    assert list(list_private_directories((str(base), str(base)))) == [made.path]
    with pytest.raises((NodeError, OSError)):
        open_private_directory(str(base / f"{PREFIX}aaaaaaaa"))
    made.close()
    assert (precious / "lock").exists()


@is_root
def test_directories_of_other_users_are_not_opened(base: Path) -> None:
    theirs = base / f"{PREFIX}cccccccc"
    theirs.mkdir()
    (theirs / "lock").write_text("")
    os.chown(theirs, NOBODY, NOBODY)
    assert list(list_private_directories((str(base),))) == []
    with pytest.raises(NodeError, match="not a directory that this user's packs have made"):
        open_private_directory(str(theirs))


def test_removal_follows_no_link(base: Path) -> None:
    precious = base / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("")
    made = make_private_directory((str(base),))
    Path(made.pipe_path, "link").symlink_to(precious)
    Path(made.path, "file").symlink_to(precious / "thesis")
    assert remove_directory(made.path, made.descriptor) == ()
    assert not Path(made.path).exists()
    assert (precious / "thesis").exists()
    made.close()


def test_removal_of_a_deep_tree_needs_neither_recursion_nor_descriptors(base: Path) -> None:
    made = make_private_directory((str(base),))
    here = os.open(made.log_path, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(here)
        here = inner
    os.close(here)
    assert remove_directory(made.path, made.descriptor) == ()
    assert not Path(made.path).exists()
    made.close()


def test_another_directory_of_the_same_name_is_not_removed(base: Path) -> None:
    made = make_private_directory((str(base),))
    Path(made.path).rename(f"{made.path}.moved")
    Path(made.path).mkdir()
    (left,) = remove_directory(made.path, made.descriptor)
    assert left.endswith("it is another directory now")
    assert Path(made.path).exists()
    made.close()


def test_removing_what_is_gone_is_no_problem(base: Path) -> None:
    assert remove_directory(str(base / f"{PREFIX}dddddddd")) == ()


@is_root
def test_what_somebody_else_has_left_does_not_keep_the_rest(base: Path) -> None:
    code = (
        "import os; os.setgroups([]); os.setresgid(65534, 65534, 65534)\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "from slurm_colloc.host.system.directories import make_private_directory\n"
        "from slurm_colloc.host.system.directories import remove_directory\n"
        "made = make_private_directory((sys.argv[1],))\n"
        "open(made.pipe_path + '/mine', 'w').close()\n"
        "print(made.path, flush=True)\n"
        "sys.stdin.readline()\n"
        "print(remove_directory(made.path, made.descriptor))\n"
    )
    boot = f"import sys; sys.path.append({str(ROOT)!r})\n{code}"
    child = subprocess.Popen(
        ["/usr/bin/python3", "-IB", "-c", boot, str(base)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    assert child.stdin is not None
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    (path / "p" / "of root").write_text("")
    (path / "kept").mkdir()
    (path / "kept" / "file").write_text("")
    answer, _ = child.communicate("go on\n")
    assert "kept: " in answer
    assert [entry.name for entry in path.iterdir()] == ["kept"]
