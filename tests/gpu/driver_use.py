"""Who uses NVIDIA's driver, and what NVML costs; nothing is changed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.host.nvml import nvml_child

if TYPE_CHECKING:
    from .gpu_node import GpuNode

LIMIT_S = 60.0
# What must not change.
SETTINGS = (
    "compute_mode",
    "mig.mode.current",
    "mig.mode.pending",
    "persistence_mode",
    "power.limit",
    "clocks.applications.graphics",
    "clocks.applications.memory",
    "clocks.max.graphics",
    "ecc.mode.current",
)
# Asks NVML as the hooks' child does, and says how long each part took.
_ASK_NVML = """\
import time; t = [time.monotonic()]
import pynvml; t.append(time.monotonic())
pynvml.nvmlInit(); t.append(time.monotonic())
import runpy; child = runpy.run_path({child!r}); t.append(time.monotonic())
assert not child["read_all"](pynvml, set())["problem"]; t.append(time.monotonic())
print(t)
"""


def to_ms(seconds: float) -> float:
    """Milliseconds, to a hundredth."""
    return round(seconds * 1000, 2)


def read_settings() -> dict[str, str]:
    """The first GPU's settings; those that this driver does not know are unknown."""
    values = _query(SETTINGS)
    if len(values) == len(SETTINGS):
        return dict(zip(SETTINGS, values, strict=True))
    return {name: (_query((name,)) or ["unknown"])[0] for name in SETTINGS}


def _query(names: tuple[str, ...]) -> list[str]:
    ended = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader", "--id=0"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return [] if ended.returncode else [word.strip() for word in ended.stdout.split(",")]


def measure_nvml(bed: GpuNode) -> Iterator[tuple[str, float]]:
    """How long a process takes for its parts of asking NVML."""
    begin_s = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-IBc", _ASK_NVML.format(child=nvml_child.__file__)],
        env={**os.environ, **bed.sandbox.env()},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    moments = json.loads(ended.stdout.splitlines()[-1])
    yield "NVML: start of Python", to_ms(moments[0] - begin_s)
    for index, name in enumerate(("import pynvml", "nvmlInit", "", "questions")):
        if name:
            yield f"NVML: {name}", to_ms(moments[index + 1] - moments[index])
    yield "NVML: end of the process", to_ms(time.monotonic() - moments[-1])


@contextlib.contextmanager
def held_nvml(bed: GpuNode) -> Iterator[None]:
    """Another process has NVML open meanwhile."""
    holder = subprocess.Popen(
        [sys.executable, "-IB", nvml_child.__file__, "--on-request"],
        env={**os.environ, **bed.sandbox.env()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write("all\n")
        holder.stdin.flush()
        assert not json.loads(holder.stdout.readline())["problem"]
        yield
        holder.stdin.close()
        holder.wait(LIMIT_S)


def list_driver_users() -> list[str]:
    """Processes that hold a device file of NVIDIA's open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            files = [str(entry.readlink()) for entry in (process / "fd").iterdir()]
            if any(name.startswith("/dev/nvidia") for name in files):
                found.append(f"{process.name} {(process / 'comm').read_text().strip()}")
    return found
