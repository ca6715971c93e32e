"""Making, using and removing a simulation."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
from pathlib import Path

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc_lab.simgpu.gpu_models import A30, A100_40, H100_80, H200, MODELS, choose_model
from slurm_colloc_lab.simgpu.install import (
    list_nodes,
    make_simulation,
    remove,
    simulation_environment,
    snapshot,
)
from slurm_colloc_lab.simgpu.nvml import build_library
from slurm_colloc_lab.simgpu.nvml.build_library import (
    _HEADERS,
    _SOURCES,
    NoCompiler,
    install_library,
)

from .conftest import Simulation

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def build_environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home)}


@needs_compiler
def test_the_library_is_compiled_once(tmp_path: Path) -> None:
    environment = build_environment(tmp_path)
    install_library(tmp_path / "first.so", environment)
    (cached,) = (tmp_path / ".cache" / "slurm_colloc").iterdir()
    assert cached.read_bytes() == (tmp_path / "first.so").read_bytes()
    # No compiler is needed any more.
    install_library(tmp_path / "second.so", {**environment, "PATH": "/nowhere"})
    assert (tmp_path / "second.so").read_bytes() == cached.read_bytes()
    assert stat.S_IMODE((tmp_path / "second.so").stat().st_mode) == 0o755


@pytest.mark.long
@needs_compiler
def test_another_source_is_compiled_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = build_environment(tmp_path)
    install_library(tmp_path / "first.so", environment)
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in (*_SOURCES, *_HEADERS):
        text = (Path(build_library.__file__).parent / name).read_text()
        (sources / name).write_text(text.replace('"Unknown Error"', '"Newer"'))
    monkeypatch.setattr("slurm_colloc_lab.simgpu.nvml.build_library._HERE", sources)
    install_library(tmp_path / "second.so", environment)
    assert b"Newer" in (tmp_path / "second.so").read_bytes()
    assert b"Newer" not in (tmp_path / "first.so").read_bytes()


@pytest.mark.long
@needs_compiler
def test_a_cached_library_that_others_could_write_is_not_used(tmp_path: Path) -> None:
    environment = build_environment(tmp_path)
    install_library(tmp_path / "first.so", environment)
    (cached,) = (tmp_path / ".cache" / "slurm_colloc").iterdir()
    cached.write_bytes(b"hostile")
    cached.chmod(0o777)
    install_library(tmp_path / "second.so", environment)
    assert (tmp_path / "second.so").read_bytes() == (tmp_path / "first.so").read_bytes()


@pytest.mark.long
@needs_compiler
def test_without_a_home_it_is_compiled_where_it_is_needed(tmp_path: Path) -> None:
    install_library(tmp_path / "lib.so", {"PATH": os.environ["PATH"], "HOME": "/proc/nothing"})
    assert [entry.name for entry in tmp_path.iterdir()] == ["lib.so"]


@needs_compiler
def test_the_source_compiles_without_a_warning(tmp_path: Path) -> None:
    wrapper = tmp_path / "cc"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("cc")} -Werror "$@"\n')
    wrapper.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    install_library(tmp_path / "lib.so", {"PATH": path, "HOME": str(tmp_path)})
    assert (tmp_path / "lib.so").stat().st_size > 0


def test_no_compiler_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoCompiler) as caught:
        install_library(tmp_path / "lib.so", {"PATH": "/nowhere", "HOME": str(tmp_path)})
    assert str(caught.value) == (
        "the simulated NVML library needs a C compiler, and PATH has no cc: install gcc (Debian "
        "and Ubuntu: packages gcc and libc6-dev)"
    )


def test_a_broken_compiler_is_told_with_its_first_error(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(
        "#!/bin/sh\necho warning: odd >&2\necho 'x.h: error: no headers' >&2\nexit 1"
    )
    compiler.chmod(0o755)
    with pytest.raises(NoCompiler, match=r"does not compile with .*/cc \(x.h: error: no headers\)"):
        install_library(tmp_path / "lib.so", {"PATH": f"{tmp_path}:/bin", "HOME": str(tmp_path)})
    assert not (tmp_path / "lib.so").exists()


def test_making_it_again_keeps_gpus_modes_and_processes(simulation: Simulation) -> None:
    process = simulation.start("--seconds", "60")
    gpu = simulation.node.read_gpus()[1]
    simulation.node.write_gpu(dataclasses.replace(gpu, compute_mode=3))
    before, born = simulation.snapshot(), (simulation.directory / "driver").read_text()
    make_simulation(simulation.directory, {"n1": [H200, A100_40], "n2": [H200]})
    assert simulation.snapshot() == before
    assert (simulation.directory / "driver").read_text() == born
    assert simulation.pids == [process.pid]


def test_nodes_and_gpus_can_change(simulation: Simulation) -> None:
    make_simulation(simulation.directory, {"n1": [H200], "n3": [A30, H100_80]})
    assert [node.name for node in list_nodes(simulation.directory)] == ["n1", "n3"]
    seen = """
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
answer = [n.nvmlDeviceGetName(handle) for handle in handles]
"""
    assert simulation.ask(seen, extra={"SLURMD_NODENAME": "n3"}) == [A30.name, H100_80.name]
    assert simulation.ask(seen, extra={"SLURMD_NODENAME": "n1"}) == [H200.name]


def test_everybody_can_use_it_and_only_the_owner_can_change_it(simulation: Simulation) -> None:
    for path in simulation.directory.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.name == "processes":
            assert mode == 0o1777
        elif path.name == "totals":
            assert mode == 0o666
        else:
            is_program = path.is_dir() or path.parent.name in ("bin", "lib")
            assert mode == (0o755 if is_program else 0o644), path


def test_another_user_works_on_it(simulation: Simulation, stranger: int) -> None:
    ended = simulation.run("run", "--steps", "3", "--rate", "100", "--report", uid=stranger)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert simulation.node.read_totals()[simulation.uuids[0]]["work"] >= 3
    assert not list((simulation.node.directory / "processes").iterdir())


def test_remove_leaves_nothing(simulation: Simulation) -> None:
    remove(simulation.directory)
    assert not simulation.directory.exists()
    assert snapshot(simulation.directory) == {}
    remove(simulation.directory)


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot be made"):
        make_simulation(tmp_path / "file" / "sim", {"n": [H200]})


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, stranger: int) -> None:
    (tmp_path / "sim").mkdir()
    os.chown(tmp_path / "sim", stranger, stranger)
    with pytest.raises(StateError, match="belongs to somebody else"):
        make_simulation(tmp_path / "sim", {"n": [H200]})


def test_its_environment_goes_before_the_given_one() -> None:
    base = {"PATH": "/a:/sim/bin:/b", "LD_LIBRARY_PATH": "/c", "OTHER": "x"}
    assert simulation_environment(Path("/sim"), base) == {
        "SIMGPU_ROOT": "/sim",
        "SLURM_COLLOC_DRIVER": "/sim",
        "PATH": "/sim/bin:/a:/b",
        "LD_LIBRARY_PATH": "/sim/lib:/c",
    }
    bare = simulation_environment(Path("/sim"), {})
    assert bare["PATH"] == f"/sim/bin:{os.defpath}"
    assert bare["LD_LIBRARY_PATH"] == "/sim/lib"


def test_a_model_is_chosen_by_the_type_that_slurm_has() -> None:
    assert choose_model(None) is H200
    assert choose_model("tesla") is H200
    assert choose_model("a100") is A100_40
    assert choose_model("nvidia_h100_80gb_hbm3") is H100_80
    assert choose_model("A30-x") is A30
    for model in MODELS.values():
        assert model.core_count % model.sm_count == 0
