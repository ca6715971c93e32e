"""Whether Slurm can use this host's control groups, and taking its groups away again."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# What proctrack/cgroup, task/cgroup and jobacct_gather/cgroup use on v1.
_V1_NEEDED = ("cpuset", "memory", "devices", "freezer", "cpuacct")
_V2_NEEDED = ("cpuset", "memory", "cpu", "pids")
_SLICE = "system.slice"
_PROBE = "slurm_colloc_probe"
_CAP_SYS_ADMIN = 21


@dataclass(frozen=True)
class CgroupSupport:
    """What can be used.

    Args:
        version: 1 or 2, or 0 for none.
        swap: Whether swap can be limited.
        reason: Why it is so, as a clause for `status`.
    """

    version: int
    swap: bool
    reason: str


def detect_cgroups(root: Path = _ROOT, *, is_root: bool) -> CgroupSupport:
    """Find out by trying: a mounted hierarchy is not yet one that may be written."""
    if not is_root:
        return CgroupSupport(0, False, "only root can make cgroups")
    if (root / "cgroup.controllers").is_file():
        return _detect_v2(root)
    return _detect_v1(root)


def _detect_v1(root: Path) -> CgroupSupport:
    missing = [name for name in _V1_NEEDED if not (root / name / "cgroup.procs").is_file()]
    if missing:
        return CgroupSupport(0, False, f"{root} has no cgroup controller {', '.join(missing)}")
    for name in _V1_NEEDED:
        problem = _try_directory(root / name / f"{_PROBE}_{os.getpid()}")
        if problem:
            return CgroupSupport(0, False, f"{root / name} cannot be written ({problem})")
    swap = (root / "memory" / "memory.memsw.limit_in_bytes").exists()
    return CgroupSupport(1, swap, f"version 1 is mounted and writable in {root}")


def _detect_v2(root: Path) -> CgroupSupport:
    available = (root / "cgroup.controllers").read_text().split()
    missing = [name for name in _V2_NEEDED if name not in available]
    if missing:
        return CgroupSupport(0, False, f"{root} has no cgroup controller {', '.join(missing)}")
    if not _has_capability(_CAP_SYS_ADMIN):
        return CgroupSupport(0, False, "device limits of cgroup version 2 need CAP_SYS_ADMIN")
    # Slurm without systemd expects system.slice with the controllers switched on down to it.
    problem = _enable_controllers(root) or _try_directory(root / _SLICE / f"{_PROBE}_{os.getpid()}")
    if problem:
        return CgroupSupport(0, False, f"{root} cannot be written ({problem})")
    # The root group has no memory.swap files; a child of a group with the controller has.
    swap = (root / _SLICE / "memory.swap.max").exists()
    return CgroupSupport(2, swap, f"version 2 is mounted and writable in {root}")


def _enable_controllers(root: Path) -> str:
    """Switch the controllers on in the root and in system.slice; the problem, or nothing."""
    try:
        (root / _SLICE).mkdir(exist_ok=True)
        for group in (root, root / _SLICE):
            control = group / "cgroup.subtree_control"
            enabled = control.read_text().split()
            for name in _V2_NEEDED:
                if name not in enabled:
                    control.write_text(f"+{name}")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _try_directory(directory: Path) -> str:
    """Make and remove a group; the problem, or nothing."""
    try:
        directory.mkdir(exist_ok=True)
        directory.rmdir()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _has_capability(number: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def find_node_groups(node_names: Iterable[str], root: Path = _ROOT) -> list[Path]:
    """The top groups that slurmd made for these nodes.

    Slurm's multiple-slurmd builds name them `slurm_NODE` (v1) or `NODE_slurmstepd.scope` (v2).
    """
    found: list[Path] = []
    for node in node_names:
        found += sorted(root.glob(f"*/slurm_{node}"))
        found += sorted(root.glob(f"*/{node}_slurmstepd.scope"))
        found += sorted(root.glob(f"*/slurm_{node}.scope"))
    return found


def find_processes_in_groups(groups: Iterable[Path]) -> set[int]:
    """Pids of all processes in these groups and below."""
    pids: set[int] = set()
    for group in groups:
        for procs in (group / "cgroup.procs", *group.glob("**/cgroup.procs")):
            try:
                pids |= {int(word) for word in procs.read_text().split()}
            except OSError:
                continue
    return pids


def remove_groups(groups: Iterable[Path]) -> list[Path]:
    """Remove groups from the leaves up; the kernel refuses those that hold a process.

    Returns:
        The groups that are still there.
    """
    left: list[Path] = []
    for group in groups:
        for directory, _, _ in os.walk(group, topdown=False):
            try:
                Path(directory).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                break
        if group.exists():
            left.append(group)
    return left
