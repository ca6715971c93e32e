from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from slurm_colloc import __version__

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "opt/slurm_colloc"
C_LIBRARY = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "libutil.so.1",
    "librt.so.1",
)


def pack(kind: str, tree: Path, output: Path) -> Path:
    packer = ROOT / "packaging" / "node_package.py"
    done = subprocess.run(
        [sys.executable, "-B", packer, kind, tree, output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def run(*argv: object, status: int = 0) -> str:
    done = subprocess.run(
        [str(word) for word in argv],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def list_files(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()}


@pytest.mark.root
def test_the_tree_runs_on_a_machine_that_has_the_c_library_and_nothing_else(
    node_tree: Path, base: Path
) -> None:
    if shutil.which("patchelf") is None:
        pytest.skip("patchelf is not installed")
    shutil.copytree(node_tree, base / PREFIX, symlinks=True)
    loaded = run("ldd", node_tree / "bin" / "python").split()
    loader = next(word for word in loaded if "/ld-linux" in word)
    (base / loader[1:]).parent.mkdir()
    shutil.copy(loader, base / loader[1:])
    library = base / "usr" / "lib"
    library.mkdir(parents=True)
    (found,) = {str(Path(word).parent) for word in loaded if word.endswith("/libc.so.6")}
    for name in C_LIBRARY:
        if Path(found, name).exists():
            shutil.copy(Path(found, name), library / name)
    program = f"/{PREFIX}/bin/python"
    (base / "proc").mkdir()
    script = 'mount -t proc none "$0/proc" && exec chroot "$0" "$@"'
    chroot = ("unshare", "--mount", "sh", "-c", script, base, program, "-I", "-B")
    status = run(*chroot, "-m", "slurm_colloc.host.lifecycle", "status")
    assert '"jobs": []' in status
    assert "usage: csub admin" in run(*chroot, "-m", "slurm_colloc", "admin", "--help")
    answer = run(
        *chroot,
        f"/{PREFIX}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/slurm_colloc/host/nvml/nvml_child.py",
    )
    # The binding is there; the driver is not.
    assert "NVML cannot be used" in answer


def test_the_tree_runs_wherever_it_lies(node_tree: Path, tmp_path: Path) -> None:
    moved = tmp_path / "some where"
    shutil.copytree(node_tree, moved, symlinks=True)
    code = "import sys; print(sys.prefix, sys.executable, sep='\\n')"
    lines = run("env", "-i", moved / "bin" / "python", "-I", "-B", "-c", code).splitlines()
    assert lines == [str(moved), str(moved / "bin" / "python")]
    link = tmp_path / "csub"
    link.symlink_to(moved / "bin" / "csub")
    assert run(link, "--version").strip() == f"csub {__version__}"
    assert "which has csub admin alone" in run(link, "queue", status=2)
    assert "usage: csub admin" in run(link, "admin", "--help")


def test_nobody_but_the_owner_may_write_the_tree(node_tree: Path) -> None:
    writable = [
        path
        for path in (node_tree, *node_tree.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o022
    ]
    assert writable == []


def test_the_tree_holds_what_nodes_need_and_no_login_side_of_others(node_tree: Path) -> None:
    files = list_files(node_tree)
    (package,) = node_tree.glob("lib*/python*/slurm_colloc")
    inside = package.relative_to(node_tree).as_posix()
    for name in ("host/lifecycle.py", "runtime/runner.py", "_data/hooks/prolog.sh"):
        assert f"{inside}/{name}" in files
    assert not any("site-packages" in name or "dist-packages" in name for name in files)
    assert "glibc >= 2." in (node_tree / "BUILT").read_text()


def test_equal_trees_make_equal_archives_of_roots(node_tree: Path, tmp_path: Path) -> None:
    first = pack("tar", node_tree, tmp_path / "first")
    copied = tmp_path / "copied"
    shutil.copytree(node_tree, copied, symlinks=True)
    second = pack("tar", copied, tmp_path / "second")
    assert first.name == f"slurm_colloc-node-{__version__}-{os.uname().machine}.tar.gz"
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        members = archive.getmembers()
    assert {(entry.uid, entry.gid) for entry in members} == {(0, 0)}
    names = {entry.name for entry in members if not entry.isdir()}
    assert names == {f"{PREFIX}/{name}" for name in list_files(node_tree)}


@pytest.mark.root
def test_the_debian_package_is_not_removed_while_hooks_are_installed(
    node_tree: Path, tmp_path: Path
) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb")
    package = pack("deb", node_tree, tmp_path)
    root = tmp_path / "root"
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "var/lib/dpkg/updates").mkdir()
    (root / "var/lib/dpkg/status").touch()
    dpkg = (
        "dpkg",
        f"--root={root}",
        "--force-script-chrootless",
        "--force-depends",
        "--log=/dev/null",
    )
    run(*dpkg, "--install", package)
    assert list_files(root / PREFIX) == list_files(node_tree)
    assert "host.lifecycle" not in run(root / PREFIX / "bin/csub", "--version")
    record = root / "etc/slurm_colloc/installed.json"
    record.parent.mkdir(parents=True)
    record.touch()
    refused = run(*dpkg, "--remove", "slurm-colloc-node", status=1)
    assert "first csub admin uninstall" in refused
    assert (root / PREFIX / "bin/python").exists()
    record.unlink()
    run(*dpkg, "--remove", "slurm-colloc-node")
    assert not (root / PREFIX).exists()


def test_the_rpm_package_holds_the_same_files(node_tree: Path, tmp_path: Path) -> None:
    if shutil.which("rpmbuild") is None:
        pytest.skip("there is no rpmbuild")
    package = pack("rpm", node_tree, tmp_path)
    names = set(run("rpm", "-qpl", package).split("\n")) - {""}
    assert {f"/{PREFIX}/{name}" for name in list_files(node_tree)} <= names
    assert all(name == f"/{PREFIX}" or name.startswith(f"/{PREFIX}/") for name in names)
    assert "glibc >= 2." in run("rpm", "-qp", "--requires", package)
    assert "/etc/slurm_colloc/installed.json" in run("rpm", "-qp", "--scripts", package)


def test_what_is_no_tree_is_one_sentence(tmp_path: Path) -> None:
    packer = ROOT / "packaging" / "node_package.py"
    done = subprocess.run(
        [sys.executable, "-B", packer, "tar", tmp_path, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"node_package: {tmp_path} was not made by node_tree.py\n"
