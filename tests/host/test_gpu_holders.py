"""Who keeps a GPU from being changed is named, and left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slurm_colloc.host.mig.cut_gpu import describe_holders, find_capability_files, list_openers

from ..wait_until import wait_until
from .mig_double import build_gpu


def test_a_process_that_computes_nothing_and_has_the_device_open_is_found(tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys, time; f = open(sys.argv[1]); time.sleep(600)", device]
    )
    try:
        wait_until(lambda: list_openers({str(device)}) == [holder.pid], "the holder is found")
    finally:
        holder.kill()
        holder.wait()
    assert list_openers({str(device)}) == []


def test_processes_of_nvmls_list_are_named_and_many_are_counted() -> None:
    import os
    from dataclasses import replace

    gpu = replace(build_gpu(199), processes=(os.getpid(),))
    assert describe_holders(gpu).startswith(f"process {os.getpid()} (")
    many = tuple(2**22 + number for number in range(6))
    assert describe_holders(replace(gpu, processes=many)).endswith("(gone), 2 more")
    assert describe_holders(None) == ""


def test_a_process_on_another_gpus_instances_is_no_holder() -> None:
    table = (
        "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\n"
    )
    assert find_capability_files(table, 1) == (
        "/dev/nvidia-caps/nvidia-cap147",
        "/dev/nvidia-caps/nvidia-cap148",
    )
    assert find_capability_files("gpu10/gi1/access 12\nodd\n", 1) == ()
