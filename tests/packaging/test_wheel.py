"""The wheel and the sdist carry what `csub` needs, and an installed wheel works from anywhere."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA_FOLDERS = ("templates", "hooks", "site-config")
# Planted in the copy that is built, so that there is an executable to look at in every folder.
PLANTED = "planted-executable.sh"
PLANTED_TEXT = "#!/bin/sh\nexit 0\n"


@dataclass(frozen=True)
class Built:
    """A copy of the source tree, and what was built from it."""

    source: Path
    wheel: Path
    sdist: Path
    lab: Path
    lab_sdist: Path


@dataclass(frozen=True)
class Entry:
    """One file of an archive."""

    content: bytes
    mode: int


def run(argv: list[str], *, cwd: Path) -> str:
    """Run a command and return its output; fail the test with all of it where it fails."""
    done = subprocess.run(
        argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{argv} in {cwd}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(kind: str, source: Path, into: Path) -> Path:
    """Build `kind` ("wheel" or "sdist") of a source tree and return the archive."""
    argv = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(into)]
    run([*argv, str(source)], cwd=source)
    (archive,) = into.iterdir()
    return archive


def read_wheel(wheel: Path) -> dict[str, Entry]:
    """Read every file of a wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            info.filename: Entry(archive.read(info), stat.S_IMODE(info.external_attr >> 16))
            for info in archive.infolist()
            if not info.is_dir()
        }


def read_sdist(sdist: Path) -> dict[str, Entry]:
    """Read every file of an sdist, by its name below the top folder."""
    entries = {}
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None:
                entries[member.name.split("/", 1)[1]] = Entry(file.read(), member.mode)
    return entries


def data_files(source: Path) -> dict[str, bytes]:
    """Read every file of the data folders, by its path below the source tree."""
    return {
        path.relative_to(source).as_posix(): path.read_bytes()
        for folder in DATA_FOLDERS
        for path in (source / folder).rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build wheel and sdist from a copy of the tree that has no git and nothing ignored."""
    top = tmp_path_factory.mktemp("build")
    source = top / "source"
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", ".matrix", "build", "dist"
    )
    shutil.copytree(ROOT, source, ignore=unwanted)
    for folder in DATA_FOLDERS:
        planted = source / folder / PLANTED
        planted.write_text(PLANTED_TEXT)
        planted.chmod(0o755)
    return Built(
        source=source,
        wheel=build("wheel", source, top / "wheel"),
        sdist=build("sdist", source, top / "sdist"),
        lab=build("wheel", source / "lab", top / "lab"),
        lab_sdist=build("sdist", source / "lab", top / "lab-sdist"),
    )


@pytest.fixture(scope="module")
def installed_bin(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel, with what it depends on, in an empty environment; return its bin."""
    environment = tmp_path_factory.mktemp("installed")
    venv.create(environment, with_pip=True)
    pip = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet"]
    run([*pip, str(built.wheel)], cwd=environment)
    return environment / "bin"


@pytest.fixture(scope="module")
def lab_bin(built: Built, installed_bin: Path) -> Iterator[Path]:
    """The same environment with the lab's wheel in it."""
    pip = [str(installed_bin / "python"), "-m", "pip"]
    run([*pip, "install", "--quiet", "--no-deps", str(built.lab)], cwd=installed_bin)
    yield installed_bin
    run([*pip, "uninstall", "--quiet", "--yes", "slurm-colloc-lab"], cwd=installed_bin)


def test_the_wheel_holds_every_data_file_inside_the_package(built: Built) -> None:
    wheel = read_wheel(built.wheel)
    expected = data_files(built.source)
    in_wheel = {
        name.removeprefix("slurm_colloc/_data/"): entry.content
        for name, entry in wheel.items()
        if name.startswith("slurm_colloc/_data/")
    }
    assert in_wheel == expected
    assert {name.split("/")[0] for name in expected} == set(DATA_FOLDERS)


def test_the_wheel_holds_every_module_and_nothing_else_of_the_tree(built: Built) -> None:
    modules = {
        path.relative_to(built.source).as_posix()
        for folder in ("slurm_colloc", "hydra_plugins")
        for path in (built.source / folder).rglob("*")
        if path.is_file()
    }
    in_wheel = {
        name
        for name in read_wheel(built.wheel)
        if not name.startswith("slurm_colloc/_data/") and ".dist-info/" not in name
    }
    assert in_wheel == modules


def test_the_labs_wheel_holds_its_package_of_the_same_version(built: Built) -> None:
    files = {
        path.relative_to(built.source / "lab").as_posix()
        for path in (built.source / "lab" / "slurm_colloc_lab").rglob("*")
        if path.is_file()
    }
    assert {name for name in read_wheel(built.lab) if ".dist-info/" not in name} == files
    assert built.lab.name.split("-")[1] == built.wheel.name.split("-")[1]


def test_the_sdist_holds_every_data_file_at_its_place(built: Built) -> None:
    sdist = read_sdist(built.sdist)
    for name, content in data_files(built.source).items():
        assert sdist[name].content == content


def test_the_sdist_holds_everything_that_a_user_sees_at_the_top(built: Built) -> None:
    at_top = {name.split("/")[0] for name in read_sdist(built.sdist)}
    visible = {path.name for path in built.source.iterdir() if not path.name.startswith(".")}
    assert visible - at_top == set()
    assert ".ci" in at_top


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_executables_keep_their_mode_in_both_archives(built: Built, folder: str) -> None:
    in_wheel = read_wheel(built.wheel)[f"slurm_colloc/_data/{folder}/{PLANTED}"]
    in_sdist = read_sdist(built.sdist)[f"{folder}/{PLANTED}"]
    assert (in_wheel.mode, in_sdist.mode) == (0o755, 0o755)


@pytest.mark.parametrize("of", ["csub", "the lab"])
def test_a_wheel_built_from_the_sdist_is_the_same_wheel(
    built: Built, tmp_path: Path, of: str
) -> None:
    sdist, wheel = {
        "csub": (built.sdist, built.wheel),
        "the lab": (built.lab_sdist, built.lab),
    }[of]
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    run(["tar", "-xzf", str(sdist)], cwd=unpacked)
    (source,) = unpacked.iterdir()
    second = build("wheel", source, tmp_path / "wheel")
    assert second.name == wheel.name
    assert read_wheel(second) == read_wheel(wheel)


def test_the_wheels_have_the_licences_of_what_is_in_them(built: Built) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    uplot = "slurm_colloc/report/page/uplot/LICENSE"
    wanted = {"LICENSE": licence, uplot: (ROOT / uplot).read_bytes()}
    assert read_licences(built.wheel) == wanted
    assert read_licences(built.lab) == {"LICENSE": licence}


def read_licences(wheel: Path) -> dict[str, bytes]:
    """The texts of licences, by where they lie in the source tree."""
    return {
        name.partition(".dist-info/licenses/")[2]: entry.content
        for name, entry in read_wheel(wheel).items()
        if ".dist-info/licenses/" in name
    }


@pytest.mark.long
def test_an_installed_csub_tells_its_version_anywhere(built: Built, installed_bin: Path) -> None:
    version = built.wheel.name.split("-")[1]
    printed = run(["env", "-i", str(installed_bin / "csub"), "--version"], cwd=Path("/"))
    assert version in printed.split()


@pytest.mark.long
def test_an_installed_csub_says_that_there_is_no_slurm_and_writes_nothing_where_it_lies(
    installed_bin: Path, tmp_path: Path
) -> None:
    # A site's environment is root's, and users have the commands of its csub alone.
    before = set(installed_bin.parent.rglob("*"))
    done = subprocess.run(
        ["env", "-i", "PATH=/nowhere", f"HOME={tmp_path}", str(installed_bin / "csub"), "doctor"],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "there is no Slurm here: sinfo is not installed or not in PATH" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("csub does not work properly here")
    assert set(installed_bin.parent.rglob("*")) == before


@pytest.mark.long
def test_an_installed_csub_prints_its_help_anywhere(installed_bin: Path) -> None:
    printed = run(["env", "-i", str(installed_bin / "csub"), "--help"], cwd=Path("/"))
    assert "csub" in printed
    assert "--help" in printed


@pytest.mark.parametrize("folder", DATA_FOLDERS)
@pytest.mark.long
def test_an_installed_package_finds_its_data_with_its_mode(
    installed_bin: Path, folder: str
) -> None:
    code = (
        f"from slurm_colloc.resources import data_path; print(data_path({folder!r}, {PLANTED!r}))"
    )
    python = str(installed_bin / "python")
    printed = run(["env", "-i", python, "-I", "-c", code], cwd=Path("/"))
    found = Path(printed.strip())
    assert found.is_relative_to(installed_bin.parent)
    assert found.read_text() == PLANTED_TEXT
    assert stat.S_IMODE(found.stat().st_mode) == 0o755


@pytest.mark.long
def test_an_installed_csub_has_no_sandbox(installed_bin: Path) -> None:
    done = subprocess.run(
        ["env", "-i", str(installed_bin / "csub"), "sandbox", "--help"],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "slurm-colloc-lab, which is not installed" in done.stderr


@pytest.mark.long
def test_with_the_lab_it_has_one(lab_bin: Path) -> None:
    printed = run(["env", "-i", str(lab_bin / "csub"), "sandbox", "--help"], cwd=Path("/"))
    assert "A private Slurm cluster on this machine" in printed


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.long
def test_an_installed_lab_simulates_a_gpu(lab_bin: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from slurm_colloc_lab.simgpu import gpu_models, install; "
        f"install.make_simulation(Path({str(tmp_path / 'sim')!r}), {{'n': [gpu_models.H200]}})"
    )
    bare = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", f"HOME={tmp_path}"]
    run([*bare, str(lab_bin / "python"), "-I", "-c", code], cwd=Path("/"))
    simgpu = str(tmp_path / "sim" / "bin" / "simgpu")
    assert "NVIDIA H200" in run([*bare, simgpu, "status"], cwd=Path("/"))
    printed = run([*bare, simgpu, "run", "--steps", "2", "--report"], cwd=Path("/"))
    assert printed.splitlines()[-1] == "step 2 rate 10.000"
