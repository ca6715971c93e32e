"""What tests of the bench share: short cells, and looking after processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slurm_colloc_lab.calibration.cells import Cell, CellTraining, Group

PATIENCE_S = 60.0


def cell(*names: str) -> Cell:
    members = tuple(CellTraining(name) for name in names)
    return Cell("alone" if len(members) == 1 else "pair", members, 0.05, 0.2)


def group(*cells: Cell, mode: str = "timeslice") -> Group:
    return Group("some", mode, cells)


def is_running(pid: int) -> bool:
    """A zombie does not run; where nobody collects orphans, they stay zombies."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def list_descendants(pids: Iterable[int]) -> set[int]:
    """All that these processes have started, and what those have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    fresh = set(pids)
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found
