"""What the node's hooks cost a job of ours: from slurmd's call to the end of each, and its CPU."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import Figures, Section, Series
from slurm_colloc.administration.node_files import render_hook
from slurm_colloc.resources import data_path
from slurm_colloc_lab.simgpu.gpu_models import H200
from slurm_colloc_lab.simgpu.install import make_simulation
from tests.mps.nvidia import find_control

ROUNDS = 15
TARGETS_MS = {"prolog": 150, "epilog": 300}
_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_S = 0.2
_ABOUT = (
    "From slurmd's call to the hook's end, in the nodes' own tree; NVML is simulated, and the "
    "targets are meant for hardware. CPU is that of the hook and of all that has ended with it; "
    "`control`: from the daemon's start to the proved socket."
)
_ABOUT_PROGRAMS = (
    "The simulated programs of MPS are Python, and start slowly. NVIDIA's has no server here: one "
    "that ends at once stands in for it."
)
_ROOT = Path(__file__).resolve().parents[1]
_NOBODY = "65534"
_NODE = f"bench{os.getpid()}"
_SLURMD = {
    "SLURM_JOB_ID": "11",
    "SLURM_JOB_UID": _NOBODY,
    "SLURM_JOB_GID": _NOBODY,
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_GPUS": "0",
    "SLURM_JOB_COMMENT": "sweep 3 [csub/1 mps]",
    "SLURMD_NODENAME": _NODE,
}


@dataclass(frozen=True)
class _Hooks:
    """The hooks as installed, with a kind of MPS programs.

    Attributes:
        home: Where they are.
    """

    home: Path

    def run(self, kind: str) -> dict[str, float]:
        """Run one as slurmd does; wall time and CPU of it and of all that it waited for, in ms."""
        started = time.perf_counter()
        # wait4 instead of subprocess's own wait: it tells the CPU time of this child alone.
        hook = subprocess.Popen(
            [str(self.home / f"{kind}.sh")],
            env=_SLURMD,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        _, status, usage = os.wait4(hook.pid, 0)
        wall_ms = (time.perf_counter() - started) * 1000
        hook.returncode = os.waitstatus_to_exitcode(status)
        cpu_s = usage.ru_utime + usage.ru_stime + _collect_orphans()
        told = self.read_last_line()
        if hook.returncode or told.get("outcome") or told["action"] not in ("prepared", "undone"):
            raise RuntimeError(f"{kind}: {hook.returncode}, {told}")
        figures = told.get("figures", {})
        return {
            "wall": wall_ms,
            "CPU": cpu_s * 1000,
            **({"NVML": figures["nvml_ms"]} if "nvml_ms" in figures else {}),
            **({"control": figures["control_ms_0"]} if "control_ms_0" in figures else {}),
        }

    def read_last_line(self) -> dict[str, Any]:
        lines = (self.home / "log" / "hooks.log").read_text().splitlines()
        return dict(json.loads(lines[-1]))


def _collect_orphans() -> float:
    """CPU seconds of what has ended and the hook has not waited for."""
    time.sleep(_ORPHANS_S)
    cpu_s = 0.0
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                break
            cpu_s += usage.ru_utime + usage.ru_stime
    return cpu_s


def measure_own_jobs() -> Iterator[Section]:
    """Prolog and epilog in turn, with simulated NVML; nothing where this user cannot."""
    if os.geteuid() != 0 or shutil.which("cc") is None:
        print("bench: left out: hooks for a job of ours need root and a C compiler")
        return
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="pb", dir="/var/tmp") as folder:
        home = Path(folder)
        home.chmod(0o755)
        tree = home / "tree"
        builder = _ROOT / "packaging" / "node_tree.py"
        subprocess.run(
            [sys.executable, "-B", builder, tree, "--system-libraries"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        kinds = {"simulated MPS": _install(home / "sim", tree, None)}
        control = find_control()
        if control is not None:
            kinds["NVIDIA's control program 550"] = _install(home / "nvidia", tree, control)
        values: dict[tuple[str, str, str], list[float]] = {}
        for number in range(ROUNDS + 1):
            for name, hooks in kinds.items():
                with _undone(hooks):
                    for kind in TARGETS_MS:
                        for what, value in hooks.run(kind).items():
                            values.setdefault((name, kind, what), []).append(value)
            if not number:
                # The first round fills the file cache.
                values.clear()
    figures = Figures()
    for (name, kind, what), found in sorted(values.items()):
        target = TARGETS_MS[kind] if what == "wall" and name != "simulated MPS" else None
        figures.add(f"{kind}, {name}: {what}", Series(tuple(found)), "ms", target=target)
    yield figures.build_section(
        "Hooks of the node, for a job of ours",
        [
            _ABOUT,
            _ABOUT_PROGRAMS,
        ],
    )


@contextlib.contextmanager
def _undone(hooks: _Hooks) -> Iterator[None]:
    """Leave no daemon, whatever happens."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(RuntimeError):
            hooks.run("epilog")
        raise


def _install(home: Path, tree: Path, control: Path | None) -> _Hooks:
    home.mkdir()
    simulation = home / "sim"
    make_simulation(simulation, {_NODE: [H200, H200]})
    if control is not None:
        _replace(simulation / "bin" / control.name, lambda path: shutil.copy(control, path))
        _replace(
            simulation / "bin" / "nvidia-cuda-mps-server",
            lambda path: path.write_text("#!/bin/sh\nexec true\n"),
        )
    policy = home / "node.toml"
    policy.write_text(f'audit_log = "{home}/log/hooks.log"\n')
    policy.chmod(0o644)
    constants = {
        "prefix": str(tree),
        "run": str(home / "run"),
        "policy": str(policy),
        "simgpu": str(simulation),
    }
    for kind in TARGETS_MS:
        text = data_path("hooks", f"{kind}.sh").read_text(encoding="utf-8")
        _replace(
            home / f"{kind}.sh",
            lambda path, text=text: path.write_text(render_hook(text, constants)),  # type: ignore[misc]
        )
    return _Hooks(home)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    write(path)
    path.chmod(0o755)
