"""Making the roots: a small Debian with its Slurm and Python, and what the tests import."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .releases import PACKAGES, TOOLS, Release

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE = CHECKOUT / ".matrix"
_HERE = Path(__file__).parent
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_TARGETS = "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)|$(CREATED_BY)"


class MatrixImpossible(Exception):
    """The roots cannot be made here; the message says why."""


@dataclass(frozen=True)
class Root:
    """One root and what is kept with it.

    Args:
        release: What it is for.
        home: Its folder in the cache.
    """

    release: Release
    home: Path

    @property
    def tree(self) -> Path:
        """The root itself."""
        return self.home / "root"

    @property
    def log(self) -> Path:
        """What making it printed."""
        return self.home / "making.log"

    @property
    def output(self) -> Path:
        """What the tests printed."""
        return self.home / "tests.log"


def find_root(release: Release) -> Root:
    """Where the root of a release lies."""
    return Root(release, CACHE / release.slurm)


def find_program(name: str) -> str | None:
    """A program's path; an ordinary user's PATH may lack sbin."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_SBIN)))


def choose_privilege(*, is_root: bool, has_sudo: bool) -> tuple[str, ...]:
    """The words that come before what only root may do."""
    if is_root:
        return ()
    if has_sudo:
        return ("sudo", "-n")
    raise MatrixImpossible("making and entering roots needs root, and sudo is not installed")


def find_privilege() -> tuple[str, ...]:
    """Become able to act as root, or say why not.

    Raises:
        MatrixImpossible: This user cannot.
    """
    words = choose_privilege(is_root=os.geteuid() == 0, has_sudo=find_program("sudo") is not None)
    if words and subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        raise MatrixImpossible(
            "making and entering roots needs root, and sudo would ask for a password"
        )
    return words


def build_namespace_argv(privilege: Sequence[str], command: Sequence[str]) -> list[str]:
    """A command in namespaces of its own, which end when this program lets go of its input."""
    # debootstrap needs the network; enter.sh is given none (see build_entry_argv).
    return [
        *privilege,
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-IB",
        str(_HERE / "lifeline.py"),
        *command,
    ]


def build_entry_argv(
    privilege: Sequence[str], root: Root, access: str, command: Sequence[str]
) -> list[str]:
    """A command inside a root, without a network; `access` is `ro` or `rw`."""
    entry = ["sh", str(_HERE / "enter.sh"), str(root.tree), str(CHECKOUT), access, *command]
    return build_namespace_argv(privilege, ["unshare", "--net", "--uts", "--ipc", *entry])


def choose_mirror(targets: str) -> str | None:
    """The archive that the machine's own apt uses, where that is Debian's; else debootstrap's.

    Args:
        targets: What `apt-get indextargets` says, in the format above.
    """
    for line in targets.splitlines():
        origin, label, component, address, kind = (*line.split("|"), "", "", "", "", "")[:5]
        if (origin, label, component, kind) == ("Debian", "Debian", "main", "Packages"):
            return address.rstrip("/")
    return None


def find_mirror() -> str | None:
    """The archive to take packages from: CSUB_MATRIX_MIRROR, or as `choose_mirror` says."""
    if wanted := os.environ.get("CSUB_MATRIX_MIRROR"):
        return wanted
    if find_program("apt-get") is None:
        return None
    asked = subprocess.run(
        ["apt-get", "indextargets", "--format", _TARGETS],
        capture_output=True,
        text=True,
        check=False,
    )
    return choose_mirror(asked.stdout)


def build_debootstrap_argv(
    program: str, suite: str, tree: Path, *, mirror: str | None, known: Iterable[str]
) -> list[str]:
    """debootstrap's words; a suite that is younger than debootstrap is made as `sid` is."""
    argv = [program, "--variant=minbase", f"--include={','.join(PACKAGES)}", suite, str(tree)]
    if suite in known:
        return [*argv, mirror] if mirror else argv
    # The script comes after the mirror; an empty one means debootstrap's own choice.
    return [*argv, mirror or "", str(_SCRIPTS / "sid")]


def make_root(root: Root, privilege: Sequence[str]) -> bool:
    """Make a root where there is none that is complete; whether it had to.

    Raises:
        MatrixImpossible: It cannot be made.
    """
    key = _build_key(root.release.suite, *PACKAGES)
    made = root.home / "made"
    root.home.mkdir(parents=True, exist_ok=True)
    if _read(made) == key and root.tree.is_dir():
        return False
    program = find_program("debootstrap")
    if program is None:
        raise MatrixImpossible("debootstrap is not installed (Debian and Ubuntu: debootstrap)")
    made.unlink(missing_ok=True)
    (root.home / "python").unlink(missing_ok=True)
    run_logged([*privilege, "rm", "-rf", str(root.tree)], root.log)
    argv = build_debootstrap_argv(
        program,
        root.release.suite,
        root.tree,
        mirror=find_mirror(),
        known=[path.name for path in _SCRIPTS.glob("*")],
    )
    run_logged(build_namespace_argv(privilege, argv), root.log)
    # enter.sh brings the machine's own; a tool that copies the checkout must find no devices in it.
    devices = ["find", str(root.tree / "dev"), "-mindepth", "1", "-delete"]
    run_logged([*privilege, *devices], root.log)
    for folder in ("src", "opt/wheels"):
        run_logged([*privilege, "mkdir", "-p", str(root.tree / folder)], root.log)
    made.write_text(key)
    return True


def prepare_python(root: Root, privilege: Sequence[str]) -> None:
    """Make the root's virtual environment, with the project as editable installs.

    The machine's own pip fetches the packages, as it is configured; the root has no network.

    Raises:
        MatrixImpossible: A package has no wheel for this Python, or there is no network.
    """
    project = (CHECKOUT / "pyproject.toml").read_text()
    lab = (CHECKOUT / "lab" / "pyproject.toml").read_text()
    python = read_python_version(root)
    prepared = root.home / "python"
    key = _build_key(project, lab, python, (_HERE / "enter.sh").read_text())
    if _read(prepared) == key:
        return
    prepared.unlink(missing_ok=True)
    wanted = choose_requirements(project)
    wheels = root.home / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    run_logged(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--python-version", python, "--only-binary=:all:", "--dest", str(wheels)),
            *wanted,
        ],
        root.log,
    )
    run_logged(
        [*privilege, "rm", "-rf", str(root.tree / "opt/csub"), str(root.tree / "opt/wheels")],
        root.log,
    )
    run_logged([*privilege, "cp", "-r", str(wheels), str(root.tree / "opt/wheels")], root.log)
    pip = "/opt/csub/bin/pip install --quiet --no-index --find-links /opt/wheels"
    steps = (
        "set -e; python3 -m venv /opt/csub; "
        f"{pip} {shlex.join(wanted)}; "
        f"{pip} --no-build-isolation --no-deps -e /src -e /src/lab"
    )
    run_logged(build_entry_argv(privilege, root, "rw", ["sh", "-c", steps]), root.log)
    prepared.write_text(key)


def choose_requirements(project: str) -> list[str]:
    """What the tests in a root import, from the text of pyproject.toml."""
    table = tomllib.loads(project)["project"]
    tools = [
        requirement
        for requirement in table["optional-dependencies"]["dev"]
        if re.split(r"[^\w-]", requirement)[0] in TOOLS
    ]
    # hatchling needs editables for an editable install, and does not say so.
    return [*table["dependencies"], *tools, "editables"]


def read_python_version(root: Root) -> str:
    """The minor release of the root's Python, such as `3.13`."""
    found = (root.tree / "usr/bin/python3").readlink().name
    return found.removeprefix("python")


def run_logged(argv: Sequence[str], log: Path) -> None:
    """Run a program, with what it prints at the end of a file.

    Raises:
        MatrixImpossible: It failed.
    """
    with (
        log.open("ab") as file,
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True
        ) as process,
    ):
        process.wait()
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        words = shlex.join(argv)
        raise MatrixImpossible(f"{words} failed with {process.returncode}:\n{tail}")


def _build_key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None
