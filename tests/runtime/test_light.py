"""A runner loads what a GPU needs only where MPS is wanted."""

from __future__ import annotations

import subprocess
import sys

import pytest

_LOOK = """
import sys
# Where coverage is measured, it loads some itself.
before = set(sys.modules)
from pathlib import Path
import slurm_colloc.runtime.__main__
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.store.pack_directory import PackRecord
import dataclasses
mode, share, lone, folder = sys.argv[1:]
fields = {field.name: None for field in dataclasses.fields(PackRecord)}
fields.update(mode=SharingMode(mode), share=share, degree=2, local=False)
allocation = Allocation("1", "1", "n", 0, 1, (), ("0",), {"PATH": "/nonexistent"})
pack = Path(folder)
gpu_mode = GpuMode(pack, PackRecord(**fields), allocation, 1, Journal(pack), lone=bool(lone))
gpu_mode.open()
print(gpu_mode.mode)
loaded = set(sys.modules) - before
print(sorted(n for n in loaded if n.startswith("slurm_colloc.host") or n == "hashlib"))
gpu_mode.close()
"""


@pytest.mark.parametrize(
    ("mode", "share", "lone", "settled"),
    [
        ("exclusive", "auto", "1", "exclusive"),
        ("exclusive", "exclusive", "", "exclusive"),
        ("timeslice", "timeslice", "", "timeslice"),
        ("mps", "auto", "1", "exclusive"),
        ("mps", "auto", "", "None"),
    ],
)
def test_packs_that_need_no_mps_load_nothing_of_it(
    mode: str, share: str, lone: str, settled: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = str(tmp_path_factory.mktemp("pack"))
    ended = subprocess.run(
        [sys.executable, "-I", "-c", _LOOK, mode, share, lone, folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr == ""
    told, loaded = ended.stdout.splitlines()
    assert told == settled
    assert (loaded == "[]") is (settled != "None")
