"""csub's processes on a node have names of their own: `pkill python` means none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_colloc.host.keeper import keeper_client
from slurm_colloc.host.nvml import nvml_child
from slurm_colloc.process_name import name_process

from ..wait_until import wait_until

NVML = "class NVMLError(Exception): pass\ndef nvmlInit(): pass\n"


def read_name(pid: int | str) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_a_name_lasts_until_a_process_becomes_a_program() -> None:
    before = read_name("self")
    try:
        name_process("csub-monitor")
        assert read_name("self") == "csub-monitor"
        child = os.fork()
        if child == 0:
            os._exit(0 if read_name("self") == "csub-monitor" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        found = subprocess.run(["cat", "/proc/self/comm"], capture_output=True, check=True)
        assert found.stdout == b"cat\n"
    finally:
        name_process(before)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("-m", "slurm_colloc.runtime.programs.move_memory"), "csub-mover"),
        (("-S", "-c", keeper_client._BOOT, keeper_client._ROOT), "csub-keeper"),
        ((nvml_child.__file__, "--on-request", "BINDINGS"), "csub-nvml"),
    ],
)
def test_what_waits_for_requests_has_a_name_of_its_own(
    words: Sequence[str], name: str, tmp_path: Path
) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)
    argv = [sys.executable, "-IB", *(str(tmp_path) if w == "BINDINGS" else w for w in words)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            wait_until(lambda: read_name(process.pid) == name, name)
        finally:
            process.kill()
