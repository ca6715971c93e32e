"""Recorded packs as tests need them: placed in a state directory, and what is true of them.

What is true is taken from the recordings by a few lines here, never by the code under test.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from slurm_colloc.store.all_packs import write_job_index
from slurm_colloc.store.pack_directory import read_pack

from ..gpu.comparison import parse_counters, read_between

H200 = Path(__file__).resolve().parent / "h200"
NAMES = ("alone", "timeslice", "mps", "delayed")
SHARED = ("timeslice", "mps")
BATCH = 128
Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A pack that was recorded.

    Attributes:
        name: What it is called here.
    """

    name: str

    @property
    def path(self) -> Path:
        """Where the recording lies."""
        return H200 / self.name

    @property
    def pack_id(self) -> str:
        """Its pack id."""
        return str(self._read("pack.json")["pack_id"])

    @property
    def job_id(self) -> str:
        """Its Slurm job id."""
        return (self.path / "pack" / "slurm_job_id").read_text().strip()

    @cached_property
    def members(self) -> Rows:
        """The monitor's samples of members."""
        return self._read_table("members")

    @cached_property
    def gpu(self) -> Rows:
        """The monitor's samples of the GPU."""
        return self._read_table("gpu")

    @cached_property
    def monitor(self) -> dict[str, Any]:
        """What the monitor said of itself."""
        return self._read("report/monitor.json")

    @property
    def looks(self) -> Rows:
        """What nvidia-smi said at a moment: `at`, `members_mb`, `others_mb`, and its own `text`."""
        folder = self.path / "nvidia-smi"
        looks: Rows = json.loads((folder / "looks.json").read_text())
        return [
            {**look, "text": (folder / f"{number}.csv").read_text()}
            for number, look in enumerate(looks, start=1)
        ]

    @cached_property
    def stays(self) -> dict[int, tuple[float, float]]:
        """When each member started and ended, in seconds since the epoch."""
        found = {}
        for path in sorted((self.path / "pack" / "members").iterdir()):
            record = json.loads((path / "state.1.json").read_text())
            found[int(path.name)] = (record["started_at"], record["ended_at"])
        return found

    def find_neighbours(self, number: int) -> tuple[float, float]:
        """From the first start of another member to the last end of one."""
        others = [stay for other, stay in self.stays.items() if other != number]
        return min(begin for begin, _ in others), max(end for _, end in others)

    def of_member(self, number: int, column: str) -> list[Any]:
        """The known values of a column of one member, in order."""
        own = (row[column] for row in self.members if row["member"] == number)
        return [value for value in own if value is not None]

    def find_training(self) -> tuple[float, float]:
        """The time in which all members make steps."""
        firsts = [self.of_member(number, "first_step_at")[-1] for number in self.stays]
        lasts = [self.of_member(number, "last_step_at")[-1] for number in self.stays]
        return max(firsts), min(lasts)

    def count_steps(self, number: int, window: tuple[float, float]) -> float:
        """How many steps a member made in a window, by the monitor's samples."""
        times = [self.of_member(number, "first_step_at")[0]]
        times += self.of_member(number, "last_step_at")
        steps = [1, *self.of_member(number, "steps")]
        return read_between(times, steps, window[1]) - read_between(times, steps, window[0])

    def read_program(self, number: int) -> list[tuple[float, ...]]:
        """Columns of what the program itself wrote, its moments in seconds since the epoch."""
        text = (self.path / "progress" / str(number)).read_text()
        times, *others = parse_counters(text)
        clock = json.loads((H200 / "clock.json").read_text())
        return [tuple(at + clock["epoch_less_monotonic_s"] for at in times), *others]

    def _read(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.path / "pack" / name).read_text())
        return value

    def _read_table(self, table: str) -> Rows:
        rows: Rows = pq.read_table(self.path / "pack" / "report" / f"{table}.parquet").to_pylist()
        return sorted(rows, key=lambda row: row["at"])

    def place(self, state: Path) -> Path:
        """Copy the pack into a state directory, as if it had run there.

        Args:
            state: The state directory.

        Returns:
            The pack's directory.
        """
        place = state / "packs" / self.pack_id
        shutil.copytree(self.path / "pack", place)
        record = read_pack(place)
        assert record is not None
        (state / "jobs").mkdir(exist_ok=True)
        write_job_index(state, self.job_id, record)
        return place


RECORDED: Mapping[str, Recorded] = {name: Recorded(name) for name in NAMES}
