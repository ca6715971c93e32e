"""The fake sinfo, and how sacct and sacctmgr answer where nothing is accounted."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.fake_slurm.program import Line, begin, fail, refuse
from tests.fake_slurm.state import CPUS_PER_NODE, GPUS_PER_NODE, HOST_MEMORY_MB, NODES

_KNOWN = {
    "--all": 0, "--exact": 0, "--format": 1, "--Node": 0, "--noheader": 0, "--nodes": 1,
    "--version": 0,
}  # fmt: skip
_KINDS = "%P|%c|%m|%G|%l|%L|%h"
_STATES = "%N|%P|%T|%G|%v|%E"
VERSION = "22.05.8"


def sinfo(argv: Sequence[str]) -> int:
    """The kinds of nodes, or the nodes one by one; no other format."""
    begin("sinfo", argv, "slurm_load_partitions")
    line = Line("sinfo", argv, _KNOWN, {"-h": "--noheader"})
    form = line.get("--format")
    if "--version" in line.options:
        sys.stdout.write(f"slurm {VERSION}\n")
    elif form == _KINDS and "--noheader" in line.options:
        for partition in ("gpu*", "preempt"):
            sys.stdout.write(
                f"{partition}|{CPUS_PER_NODE}|{HOST_MEMORY_MB}|gpu:{GPUS_PER_NODE}|7-00:00:00|1:00:00|NO\n"
            )
    elif form == _STATES and "--noheader" in line.options:
        for node in NODES:
            for partition in ("gpu*", "preempt"):
                sys.stdout.write(f"{node}|{partition}|idle|gpu:{GPUS_PER_NODE}|{VERSION}|none\n")
    else:
        refuse("sinfo", " ".join(argv))
    return 0


def sacct(argv: Sequence[str]) -> int:
    """Nothing is accounted."""
    begin("sacct", argv, "sacct: error: slurm_persist_conn_open_without_init")
    fail("Slurm accounting storage is disabled")


def sacctmgr(argv: Sequence[str]) -> int:
    """Nothing is accounted."""
    begin("sacctmgr", argv, "sacctmgr: error: slurm_persist_conn_open_without_init")
    fail(
        "You are not running a supported accounting_storage plugin\n"
        "Only 'accounting_storage/slurmdbd' is supported."
    )
