"""Build what a node needs: one directory that runs from any place, with a Python of its own.

    python3 packaging/node_tree.py DIRECTORY [--system-libraries]

The interpreter that runs this is copied with the part of its standard library that node code can
use, its shared libraries other than the C library, nvidia-ml-py's one module and slurm_colloc. So
it is built for this machine's architecture, and runs where the C library is not older than here.
Standard library only; patchelf makes the libraries be found next to the interpreter.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)

# What no node code can use: tests, graphics, network servers, packaging, and what would need
# further libraries.
LEFT_OUT = {
    "EXTERNALLY-MANAGED", "__pycache__", "_sysconfigdata__linux_x86_64-linux-gnu.py", "curses",
    "dbm", "dist-packages", "distutils", "ensurepip", "idlelib", "lib-dynload", "lib2to3",
    "pydoc_data", "site-packages", "sitecustomize.py", "sqlite3", "test", "tests", "tkinter",
    "turtle.py", "turtledemo", "usercustomize.py", "venv",
}  # fmt: skip
MODULES_LEFT_OUT = re.compile(
    r"_(bz2|codecs_\w+|crypt|ctypes_test|curses\w*|dbm|gdbm|hashlib|lsprof|lzma|multibytecodec|"
    r"sqlite3|ssl|test\w+|tkinter|uuid|xx\w+|zstd)\.|(audioop|nis|ossaudiodev|readline|xx\w+)\."
)
# The C library is the node's own: its look-up of users and groups loads the site's modules.
C_LIBRARY = re.compile(
    r"(linux-vdso|ld-linux|ld64|lib(c|m|dl|pthread|rt|util|nsl|resolv|crypt|gcc_s))[-.]"
)
PACKAGE_LEFT_OUT = shutil.ignore_patterns("__pycache__", "_data")
DATA = ("templates", "hooks", "site-config")


class BuildProblem(Exception):
    """Why nothing can be built, in one sentence."""


def main() -> int:
    """Build the tree; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("directory", type=Path, help="what to make; replaced where it exists")
    parser.add_argument(
        "--system-libraries",
        action="store_true",
        help="leave libz, libexpat and libffi to the node",
    )
    options = parser.parse_args()
    try:
        print(build_tree(options.directory, own_libraries=not options.system_libraries))
    except (BuildProblem, OSError, subprocess.SubprocessError) as problem:
        print(f"node_tree: {problem}", file=sys.stderr)
        return 1
    return 0


def build_tree(directory: Path, *, own_libraries: bool = True) -> str:
    """Build the tree, try it, and describe it.

    Raises:
        BuildProblem: Something is missing, or the result does not run.
    """
    if sys.version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BuildProblem(f"Python {oldest} or newer is needed, this is {release()}")
    if own_libraries and shutil.which("patchelf") is None:
        raise BuildProblem("patchelf is not installed (the package of that name)")
    binding = importlib.util.find_spec("pynvml")
    if binding is None or not binding.origin:
        raise BuildProblem(
            f"nvidia-ml-py is not installed for {sys.executable}: pip install nvidia-ml-py, in a "
            "virtual environment"
        )
    making = directory.with_name(f"{directory.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    library = making / sys.platlibdir / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (making / "bin").mkdir(parents=True)
    python = making / "bin" / "python"
    shutil.copyfile(Path(getattr(sys, "_base_executable", sys.executable)).resolve(), python)
    python.chmod(0o755)
    copy_standard_library(library)
    copy_package(library)
    shutil.copyfile(binding.origin, library / "pynvml.py")
    add_small_files(making)
    if own_libraries:
        copy_libraries(making, [python, *library.glob("lib-dynload/*.so")])
    compile_all(library)
    set_modes(making)
    description = describe(making)
    (making / "BUILT").write_text(description, encoding="utf-8")
    try_tree(making, own_libraries=own_libraries)
    shutil.rmtree(directory, ignore_errors=True)
    making.rename(directory)
    # It ran under another name; now it has to run under this one.
    try_tree(directory, own_libraries=own_libraries)
    return f"{directory}: {description}".strip()


def copy_standard_library(library: Path) -> None:
    """Copy what node code can use of the standard library."""
    source = Path(sysconfig.get_path("stdlib"))

    def ignore(folder: str, names: list[str]) -> set[str]:
        inner = Path(folder) != source
        if not inner:
            return {n for n in names if n in LEFT_OUT or n.startswith(("config-", "LICENSE"))}
        return {n for n in names if n in ("__pycache__", "test", "tests")}

    shutil.copytree(source, library, ignore=ignore, ignore_dangling_symlinks=True)
    modules = Path(sysconfig.get_config_var("DESTSHARED") or source / "lib-dynload")
    (library / "lib-dynload").mkdir()
    for module in sorted(modules.glob("*.so")):
        if not MODULES_LEFT_OUT.match(module.name):
            shutil.copyfile(module, library / "lib-dynload" / module.name)
    for name in ("LICENSE.txt", "LICENSE"):
        if (source / name).is_file():
            shutil.copyfile(source / name, library / "LICENSE-Python.txt")
            break


def copy_package(library: Path) -> None:
    """Copy slurm_colloc where every interpreter looks first, whatever its distribution changed."""
    package = library / "slurm_colloc"
    shutil.copytree(ROOT / "slurm_colloc", package, ignore=PACKAGE_LEFT_OUT)
    for name in DATA:
        shutil.copytree(ROOT / name, package / "_data" / name)


def add_small_files(tree: Path) -> None:
    """Add the command for administrators and the licence."""
    shutil.copyfile(ROOT / "packaging" / "csub-on-nodes.sh", tree / "bin" / "csub")
    shutil.copyfile(ROOT / "LICENSE", tree / "LICENSE")


def copy_libraries(tree: Path, programs: Iterable[Path]) -> None:
    """Put the libraries next to the interpreter, and make it look there."""
    target = tree / "lib"
    target.mkdir(exist_ok=True)
    waiting, done = list(programs), set()
    while waiting:
        program = waiting.pop()
        if program in done:
            continue
        done.add(program)
        for name, path in list_libraries(program):
            if not C_LIBRARY.match(name):
                if not (target / name).exists():
                    shutil.copyfile(path, target / name)
                waiting.append(target / name)
        up = os.path.relpath(target, program.parent)
        run(["patchelf", "--set-rpath", f"$ORIGIN/{up}", str(program)])


def list_libraries(program: Path) -> list[tuple[str, str]]:
    """Names and paths of the libraries that a program loads."""
    found = []
    for line in run(["ldd", str(program)]).splitlines():
        match = re.match(r"\s*(\S+) => (\S+)", line)
        if match and match[2] == "not":
            raise BuildProblem(f"{program.name} needs {match[1]}, which is not on this machine")
        if match:
            found.append((match[1], match[2]))
    return found


def compile_all(library: Path) -> None:
    """Compile once for all: root's interpreter never writes, and must start quickly."""
    ok = compileall.compile_dir(
        library,
        quiet=2,
        stripdir=str(library.parents[1]),
        prependdir="/opt/slurm_colloc",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not ok:
        raise BuildProblem(f"a module of {library} does not compile")


def set_modes(tree: Path) -> None:
    """Readable for all, writable for the owner alone, executable where it is a program."""
    for folder, folders, files in os.walk(tree):
        for name in folders:
            (Path(folder) / name).chmod(0o755)
        for name in files:
            path = Path(folder) / name
            if path.is_symlink():
                continue
            is_program = path.parent == tree / "bin" or (path.suffix == ".sh")
            path.chmod(0o755 if is_program else 0o644)
    tree.chmod(0o755)


def describe(tree: Path) -> str:
    """Say what the tree is and where it runs."""
    sys.path.insert(0, str(ROOT))
    from slurm_colloc import __version__

    sys.path.pop(0)
    size_mb = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) / 1e6
    major, minor = find_c_library(tree)
    return (
        f"slurm_colloc {__version__}, Python {release()}, {platform.machine()}, "
        f"glibc >= {major}.{minor}, {size_mb:.0f} MB\n"
    )


def find_c_library(tree: Path) -> tuple[int, int]:
    """The oldest C library on which everything in the tree can run."""
    needed = {(2, 17)}
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                data = file.read() if file.read(4) == b"\x7fELF" else b""
            for match in re.finditer(rb"GLIBC_(\d+)\.(\d+)", data):
                needed.add((int(match[1]), int(match[2])))
    return max(needed)


def try_tree(tree: Path, *, own_libraries: bool = True) -> None:
    """Run the tree's interpreter with an empty environment: it must use nothing of this machine's.

    Raises:
        BuildProblem: It does.
    """
    code = (
        "import ctypes, grp, pwd, socket, subprocess, sys, tomllib, json, gzip, hashlib\n"
        "import pynvml, slurm_colloc.host.lifecycle, slurm_colloc.runtime.runner\n"
        "from slurm_colloc.host.hooks import epilog, prolog, whole_node\n"
        "import slurm_colloc.cli.admin_command\n"
        "hashlib.sha256(b'').hexdigest()\n"
        "print(sys.prefix, *[p for p in sys.path if not p.startswith(sys.prefix)], sep='\\n')\n"
        "print(*[m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None) "
        "and not m.__file__.startswith(sys.prefix)], sep='\\n')\n"
        "print(*{l.split()[-1] for l in open('/proc/self/maps') if '.so' in l "
        "and not l.split()[-1].startswith(sys.prefix)}, sep='\\n')\n"
    )
    python = str(tree.resolve() / "bin" / "python")
    lines = run(["env", "-i", python, "-I", "-B", "-c", code], cwd="/").split()
    foreign = [
        path
        for path in lines[1:]
        if not C_LIBRARY.match(Path(path).name) and (own_libraries or ".so" not in path)
    ]
    if lines[0] != str(tree.resolve()) or foreign:
        raise BuildProblem(f"the copied interpreter uses {lines[0]} {' '.join(foreign)}")


def release() -> str:
    """This interpreter's release."""
    return ".".join(map(str, sys.version_info[:3]))


def run(argv: list[str], cwd: str | None = None) -> str:
    """Run a program; its output."""
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise BuildProblem(f"{argv[0]} failed: {words[-1] if words else done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
