"""Pack the nodes' tree: as an archive, a Debian package or an RPM package.

    python3 packaging/node_package.py tar|deb|rpm TREE OUTPUT_DIRECTORY

All three put the tree at /opt/slurm_colloc and nothing anywhere else; what belongs in /etc is
written by `csub admin install-hooks --node`. The packages refuse to be removed while hooks are
installed, because Slurm would then call scripts that lead nowhere. Standard library only.
"""

from __future__ import annotations

import argparse
import gzip
import io
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NAME = "slurm_colloc-node"
PREFIX = "opt/slurm_colloc"
SUMMARY = "Prolog and epilog of slurm_colloc, with a Python of their own"
RECORD = "/etc/slurm_colloc/installed.json"
# dpkg names the directory that stands for / where that is another; elsewhere it is empty.
REFUSAL = f"""if [ -e "${{DPKG_ROOT-}}{RECORD}" ]; then
    echo "slurm_colloc's hooks are installed: first csub admin uninstall" >&2
    exit 1
fi
"""


class PackageProblem(Exception):
    """Why nothing can be packed, in one sentence."""


def main() -> int:
    """Pack the tree; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("kind", choices=("tar", "deb", "rpm"))
    parser.add_argument("tree", type=Path, help="what node_tree.py made")
    parser.add_argument("output", type=Path, help="the directory for the result")
    options = parser.parse_args()
    make = {"tar": make_tar, "deb": make_deb, "rpm": make_rpm}[options.kind]
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        print(make(options.tree, options.output.resolve(), *read_built(options.tree)))
    except (PackageProblem, OSError, subprocess.SubprocessError) as problem:
        print(f"node_package: {problem}", file=sys.stderr)
        return 1
    return 0


def read_built(tree: Path) -> tuple[str, str]:
    """The version and the C library of a tree.

    Raises:
        PackageProblem: It is no such tree.
    """
    try:
        text = (tree / "BUILT").read_text(encoding="utf-8")
    except OSError as error:
        raise PackageProblem(f"{tree} was not made by node_tree.py") from error
    match = re.match(r"slurm_colloc (\S+), .* glibc >= ([\d.]+),", text)
    if match is None:
        raise PackageProblem(f"{tree}/BUILT says nothing that can be read: {text.strip()}")
    return match[1], match[2]


def make_tar(tree: Path, output: Path, version: str, _c_library: str) -> Path:
    """An archive whose members begin with opt/slurm_colloc; equal trees give equal bytes."""
    result = output / f"{NAME}-{version}-{platform.machine()}.tar.gz"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in (tree, *sorted(tree.rglob("*"))):
            entry = archive.gettarinfo(str(path), str(Path(PREFIX, path.relative_to(tree))))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = "root"
            if entry.isreg():
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
    with result.open("wb") as written, gzip.GzipFile("", "wb", 9, written, mtime=0) as packed:
        packed.write(data.getvalue())
    return result


def make_deb(tree: Path, output: Path, version: str, c_library: str) -> Path:
    """A Debian package, by dpkg-deb."""
    architecture = run(["dpkg", "--print-architecture"]).strip()
    version = to_package_version(version)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        root.mkdir()
        root.chmod(0o755)
        shutil.copytree(tree, root / PREFIX, symlinks=True)
        control = root / "DEBIAN"
        control.mkdir()
        (control / "control").write_text(
            f"Package: {NAME.replace('_', '-')}\nVersion: {version}\n"
            f"Architecture: {architecture}\nDepends: libc6 (>= {c_library})\n"
            f"Section: admin\nPriority: optional\nMaintainer: {find_maintainer()}\n"
            f"Installed-Size: {measure_kib(tree)}\nDescription: {SUMMARY}\n"
        )
        prerm = control / "prerm"
        prerm.write_text(f'#!/bin/sh\nset -e\n[ "$1" = remove ] || exit 0\n{REFUSAL}')
        prerm.chmod(0o755)
        result = output / f"{NAME.replace('_', '-')}_{version}_{architecture}.deb"
        # gzip: every dpkg reads it, and it takes a tenth of xz's time.
        run(["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(root), str(result)])
    return result


def make_rpm(tree: Path, output: Path, version: str, c_library: str) -> Path:
    """An RPM package, by rpmbuild."""
    version = to_package_version(version)
    with tempfile.TemporaryDirectory() as scratch:
        spec = Path(scratch, "node.spec")
        spec.write_text(
            f"%global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\n"
            f"%global _build_id_links none\nName: {NAME}\nVersion: {version}\nRelease: 1\n"
            f"Summary: {SUMMARY}\nLicense: Apache-2.0 and PSF-2.0 and BSD-3-Clause\n"
            f"AutoReqProv: no\nRequires: glibc >= {c_library}\n%description\n{SUMMARY}.\n"
            f"%install\nmkdir -p %{{buildroot}}/opt\n"
            f"cp -a '{tree.resolve()}' %{{buildroot}}/{PREFIX}\n"
            f'%preun\n[ "$1" = 0 ] || exit 0\n{REFUSAL}'
            f"%files\n%defattr(-,root,root)\n/{PREFIX}\n"
        )
        topdir = Path(scratch, "rpm")
        run(["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {topdir}", str(spec)])
        (built,) = topdir.rglob("*.rpm")
        result = output / built.name
        shutil.move(str(built), result)
    return result


def to_package_version(version: str) -> str:
    """A version that sorts before the release it leads to: 0.2.0.dev1 as 0.2.0~dev1."""
    return re.sub(r"[.]?(dev|a|b|rc)", r"~\1", version, count=1)


def find_maintainer() -> str:
    """Who builds it; packages have to say."""
    return f"the administrators of {platform.node() or 'this site'} <root@localhost>"


def measure_kib(tree: Path) -> int:
    """What the tree takes."""
    return sum(path.lstat().st_size for path in tree.rglob("*")) // 1024


def run(argv: list[str]) -> str:
    """Run a program; its output."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PackageProblem(f"{argv[0]} is not installed") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise PackageProblem(f"{argv[0]} failed: {words[-1] if words else done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
