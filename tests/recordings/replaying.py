"""Recorded packs as csub reports on them again, whole or with parts of them lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slurm_colloc.learning.learn_from_pack import learn_from_pack

from ..calls import UserWithoutSlurm
from ..gpu.comparison import compute_rise_per_s, find_settled_window
from ..report.generated import build_summary
from .recorded import BATCH, NAMES, RECORDED

CLUSTER = "cluster1"


class Replay(UserWithoutSlurm):
    """A user's home in which the recorded packs have run one after the other.

    Args:
        root: Where it is made.
    """

    def __init__(self, root: Path) -> None:
        slurm_conf = root / "slurm.conf"
        slurm_conf.write_text(f"ClusterName={CLUSTER}\n")
        super().__init__(root, COLUMNS="140", SLURM_CONF=str(slurm_conf))
        self.packs: dict[str, Path] = {}
        self.summaries: dict[str, Any] = {}
        for name in NAMES:
            pack = self.packs[name] = RECORDED[name].place(self.state)
            self.summaries[name] = build_summary(pack, self.state)
            # The first teaches the usage profile that the next ones find.
            assert learn_from_pack(pack) == []


def find_window(name: str, member: dict[str, Any]) -> tuple[float, float]:
    """The time of a member's rate, as far as its program wrote what it counted."""
    recorded, number = RECORDED[name], member["member"]
    window = find_settled_window(member, recorded.of_member(number, "first_step_at")[-1])
    times = recorded.read_program(number)[0]
    return max(window[0], times[0]), min(window[1], times[-1])


def count_by_program(name: str, number: int, window: tuple[float, float]) -> float:
    """Steps per second in a window as the program counted its images."""
    times, images = RECORDED[name].read_program(number)
    return compute_rise_per_s(times, [count / BATCH for count in images], window)


def change_table(pack: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write one table of a pack anew."""
    path = pack / "report" / f"{table}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def cut_short(pack: Path, lost_s: float, piece_s: float = 10.0) -> None:
    """Leave what a node leaves that fails: pieces, the last one lost, and a monitor without end.

    Args:
        pack: The pack's directory.
        lost_s: How much of the end is lost.
        piece_s: Length of a piece.
    """
    report = pack / "report"
    for table in ("gpu", "members"):
        whole = report / f"{table}.parquet"
        rows = pq.read_table(whole).sort_by("at")
        whole.unlink()
        times = rows["at"].to_pylist()
        number, begin = 0, times[0]
        while begin < times[-1] - lost_s:
            end = min(begin + piece_s, times[-1] - lost_s)
            number += 1
            piece = rows.filter(pa.array([begin <= at < end for at in times]))
            pq.write_table(piece, report / f"{table}.{number:06d}.parquet")
            begin = end
    monitor = json.loads((report / "monitor.json").read_text())
    ticks = monitor["ticks_taken"] - int(lost_s)
    monitor |= {"ended_at": None, "ticks_due": ticks, "ticks_taken": ticks}
    (report / "monitor.json").write_text(json.dumps(monitor))
