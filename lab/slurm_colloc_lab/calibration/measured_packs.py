"""Recorded rows as packs: what each training takes alone, and how fast it was with others.

A table may come from anywhere and may have been cut short: a row that says nothing sane is passed
over, a cell that lacks one is no pack.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.usage_profile import PCIE_MIB_S, Load
from slurm_colloc.store.foreign_files import tell_kind

IDLE = "idle"
"""Label of a row without a training."""
MODES = ("timeslice", "mps")

Row = Mapping[str, str]

_NEEDED = ("run", "group", "mode", "thread_percentage", "cell", "size", "workload", "family",
           "rate_per_s", "engine_active", "sm_active", "dram_active")  # fmt: skip
_BYTES_MOST = 64 << 20
_SIZE_MOST = 48
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}")


@dataclass(frozen=True)
class Alone:
    """A training alone on the whole GPU, in the best of a run's cells.

    Attributes:
        rate: Steps per second.
        load: What it takes.
    """

    rate: float
    load: Load


@dataclass(frozen=True)
class MeasuredPack:
    """Trainings that ran at the same time.

    Attributes:
        mode: `timeslice` or `mps`.
        limits: Thread limit of each member, as a share of the GPU's threads; 1 for none.
        names: Its trainings.
        families: Theirs.
        loads: What each takes alone.
        progress: Normalised progress of each: its rate here over its rate alone on the whole GPU.
        label: What kind of pack it is, such as `pair`, or `same` for copies of one training.
    """

    mode: str
    limits: tuple[float, ...]
    names: tuple[str, ...]
    families: tuple[str, ...]
    loads: tuple[Load, ...]
    progress: tuple[float, ...]
    label: str = ""

    @property
    def worst(self) -> float:
        """The largest slowdown of its members."""
        return 1.0 / min(self.progress)


@dataclass(frozen=True)
class Measurements:
    """All that rows tell.

    Attributes:
        alone: By run and training, the best of the cells in which it was alone.
        others: By training, its other rates alone as shares of the best of their run.
        packs: The packs; a training alone under a thread limit is one, too.
        gpu_model: NVML's name of the GPU; empty where no row tells.
        driver: The NVIDIA driver's version, likewise.
        power_limit_w: The GPU's power limit; None where no row tells.
        idle_power_w: Its power when nothing runs, likewise.
        made_at: When the last run began, in seconds since the epoch; 0 where no row tells.
        cells_left_out: Of how many cells a row is missing or makes no sense.
    """

    alone: Mapping[tuple[str, str], Alone]
    others: Mapping[str, tuple[float, ...]]
    packs: tuple[MeasuredPack, ...]
    gpu_model: str = ""
    driver: str = ""
    power_limit_w: float | None = None
    idle_power_w: float | None = None
    made_at: float = 0.0
    cells_left_out: int = 0


def read_rows(paths: Iterable[Path]) -> list[Row]:
    """Read tables that the bench has written.

    A row that was cut short is left out.

    Raises:
        UsageProblem: A file cannot be read, is too large, lacks a column, or holds no rows.
    """
    rows: list[Row] = []
    for path in paths:
        shown = escape_controls(str(path))
        hint = "it must be a table that csub calibrate --raw has written"
        try:
            if not path.exists():
                raise UsageProblem(f"cannot read {shown}: it does not exist")
            if not path.is_file():
                kind = tell_kind(path.stat().st_mode)
                raise UsageProblem(f"cannot read {shown}: it is {kind}, no file", hint=hint)
            if path.stat().st_size > _BYTES_MOST:
                raise UsageProblem(f"{shown}: it is larger than {_BYTES_MOST >> 20} MB", hint=hint)
            # A spreadsheet writes a byte order mark before the first name.
            with path.open(newline="", encoding="utf-8-sig") as file:
                found = [row for row in csv.DictReader(file) if None not in row.values()]
        except OSError as error:
            reason = error.strerror or error
            raise UsageProblem(f"cannot read {shown}: {reason}", hint=hint) from error
        except UnicodeDecodeError as error:
            raise UsageProblem(f"cannot read {shown}: it is not UTF-8 text", hint=hint) from error
        except (csv.Error, ValueError) as error:
            raise UsageProblem(f"cannot read {shown}: {error}", hint=hint) from error
        if not found:
            raise UsageProblem(f"{shown}: it holds no rows", hint=hint)
        missing = [name for name in _NEEDED if name not in found[0]]
        if missing:
            raise UsageProblem(f"{shown}: it has no column {missing[0]}", hint=hint)
        rows += found
    return rows


def read_number(row: Row, name: str, least: float = 0.0, most: float = 1e12) -> float | None:
    """A figure of a row; None where the bench could not read it, or it is out of bounds."""
    try:
        value = float(row.get(name) or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and least <= value <= most else None


def build_measurements(rows: Sequence[Row]) -> Measurements:
    """Make packs of rows.

    The rate alone is the best of all cells of a training alone in the same run: it is taken that
    what disturbs a training can only slow it down. What it takes of the GPU is read in the same
    cell, so that the two belong together. Runs have rates of their own because hosts differ: a
    slow one prepares less work for the GPU, so that its trainings disturb each other less. All
    rows must be of one GPU model.

    Raises:
        UsageProblem: They are of several GPU models, or no training has figures of its own alone.
    """
    cells, left_out = _list_cells(rows)
    models = sorted({row["gpu_model"] for row in rows if _is_text(row.get("gpu_model", ""))})
    if len(models) > 1:
        raise UsageProblem(f"the rows are of several GPU models: {', '.join(models)}")
    idle_w = min(_list_numbers(rows, "power_w", IDLE), default=None)
    cells_alone: dict[tuple[str, str], list[Row]] = {}
    for cell in cells:
        if len(cell) == 1 and read_limit(cell[0]) == 1.0:
            cells_alone.setdefault((cell[0]["run"], cell[0]["workload"]), []).append(cell[0])
    alone: dict[tuple[str, str], Alone] = {}
    others: dict[str, list[float]] = {}
    for (run, name), found in sorted(cells_alone.items()):
        # A cell that tells nothing of the GPU is of no use; the fastest of the others.
        told = [row for row in found if _tells_load(row)]
        if told:
            best = max(told, key=_get_rate)
            alone[run, name] = Alone(_get_rate(best), build_load(best, idle_w))
            shares = (_get_rate(row) / _get_rate(best) for row in found if row is not best)
            others.setdefault(name, []).extend(sorted(shares))
    if not alone:
        raise UsageProblem(
            "no training has been measured alone with figures of the GPU",
            hint="SM, DRAM and engine activity are told from Hopper on (H100, H200)",
        )
    known = [cell for cell in cells if all((row["run"], row["workload"]) in alone for row in cell)]
    packs = tuple(
        _build_pack(cell, alone)
        for cell in known
        if not (len(cell) == 1 and read_limit(cell[0]) == 1.0)
    )
    drivers = [row["driver"] for row in rows if _is_text(row.get("driver", ""))]
    return Measurements(
        alone=alone,
        others={name: tuple(shares) for name, shares in others.items()},
        packs=packs,
        gpu_model=models[0] if models else "",
        driver=drivers[-1] if drivers else "",
        power_limit_w=max(_list_numbers(rows, "power_limit_w"), default=None),
        idle_power_w=idle_w,
        made_at=max(_list_numbers(rows, "run_at"), default=0.0),
        cells_left_out=left_out + len(cells) - len(known),
    )


def build_load(row: Row, idle_w: float | None = None) -> Load:
    """What a training takes alone, of a row that tells it.

    Args:
        row: A row of a training alone without a limit.
        idle_w: Watts of the GPU when nothing runs; without it all power is the training's.
    """

    def get(name: str) -> float:
        return read_number(row, name) or 0.0

    window_s, cpu_s = get("window_s"), read_number(row, "cpu_s")
    return Load(
        engine=min(1.0, get("engine_active")),
        sm=min(1.0, get("sm_active")),
        dram=min(1.0, get("dram_active")),
        tensor=min(1.0, get("tensor_active")),
        pcie=min(1.0, max(get("pcie_rx_mib_s"), get("pcie_tx_mib_s")) / PCIE_MIB_S),
        cpu_cores=cpu_s / window_s if window_s and cpu_s is not None else 1.0,
        power_w=max(0.0, get("power_w") - (idle_w or 0.0)),
    )


def read_limit(row: Row) -> float | None:
    """A member's thread limit as a share of the GPU's threads, 1 for none; None where senseless."""
    if not row["thread_percentage"]:
        return 1.0
    percentage = read_number(row, "thread_percentage", 1.0, 100.0)
    return None if percentage is None else percentage / 100.0


def _list_cells(rows: Sequence[Row]) -> tuple[list[list[Row]], int]:
    """The cells that are whole, and how many are not."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.get("label") != IDLE:
            found.setdefault((row["run"], row["group"], row["cell"]), []).append(row)
    whole = [cell for cell in found.values() if _is_whole(cell)]
    return whole, len(found) - len(whole)


def _is_whole(cell: Sequence[Row]) -> bool:
    return (
        len(cell) <= _SIZE_MOST
        and len({row["mode"] for row in cell}) == 1
        and cell[0]["mode"] in MODES
        and all(
            read_number(row, "size") == len(cell)
            and read_number(row, "rate_per_s", 1e-6) is not None
            and read_limit(row) is not None
            and _NAME.fullmatch(row["workload"])
            and _NAME.fullmatch(row["family"])
            for row in cell
        )
    )


def _build_pack(cell: Sequence[Row], known: Mapping[tuple[str, str], Alone]) -> MeasuredPack:
    alone = [known[row["run"], row["workload"]] for row in cell]
    return MeasuredPack(
        mode=cell[0]["mode"],
        limits=tuple(read_limit(row) or 1.0 for row in cell),
        names=tuple(row["workload"] for row in cell),
        families=tuple(row["family"] for row in cell),
        loads=tuple(each.load for each in alone),
        progress=tuple(_get_rate(row) / each.rate for row, each in zip(cell, alone, strict=True)),
        label=cell[0].get("label", ""),
    )


def _get_rate(row: Row) -> float:
    return read_number(row, "rate_per_s") or 0.0


def _tells_load(row: Row) -> bool:
    return all(
        read_number(row, name, 0.0, 1.5) is not None
        for name in ("engine_active", "sm_active", "dram_active")
    )


def _list_numbers(rows: Iterable[Row], name: str, label: str = "") -> Iterator[float]:
    for row in rows:
        value = read_number(row, name)
        if value and (not label or row.get("label") == label):
            yield value


def _is_text(text: str) -> bool:
    return 0 < len(text) <= 100 and text.isascii() and text.isprintable()
