"""The GPUs of a job with several: a line for each, named as nvidia-smi does; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.model.job_ids import name_members
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    Column,
    format_figure,
    format_mb_figure,
    format_share,
)

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import PackView
    from slurm_colloc.store.pack.pack_records import PackRecord

SHORT_UUID = len("GPU-12345678")
_MIB_PER_MB = 1.048576
_MEMBERS_WIDTH = 24
_EVEN = 0.05
"""GPUs whose activity differs by less, of 1, are called even."""

Summary = dict[str, Any]
Gpu = Mapping[str, Any]
_Row = tuple[Summary, Gpu]


def name_gpu(uuid: str, index: int | None) -> str:
    """`GPU 0 (GPU-1b2c3d4e)`: by nvidia-smi's index on the node and the beginning of the UUID.

    Args:
        uuid: The GPU's, or a MIG instance's.
        index: nvidia-smi's; None where it is not known.
    """
    short = uuid[:SHORT_UUID]
    return short if index is None else f"GPU {index} ({short})"


def find_gpu(view: PackView, uuid: str) -> str:
    """`node1:1`: the node and Slurm's index of a GPU of a pack; empty where its members do not say.

    What NVML calls it inside a job may be 0 for each, as the job sees no other.
    """
    for member in view.members:
        record = member.record
        if record is None or record.node is None or record.gpu is None:
            continue
        if uuid in record.gpu.uuids and len(record.gpus) == len(record.gpu.uuids):
            return f"{record.node}:{record.gpus[record.gpu.uuids.index(uuid)]}"
    return ""


def tell_gpu_set(record: PackRecord, node: str = "") -> str:
    """`, GPU set 2 of 8`, with its node where the job has others; empty where it has one set.

    Args:
        record: The pack.
        node: The node on which it runs; empty where that is not known.
    """
    count = len(record.gpu_sets)
    on = f" on {node}" if record.set_nodes and node else ""
    return f", GPU set {record.gpu_set + 1} of {count}{on}" if count > 1 else ""


def list_gpus(summaries: Sequence[Summary]) -> list[_Row]:
    """The GPUs of some packs, each with its pack's summary, in the order of nodes and indices."""
    found = [(summary, gpu) for summary in summaries for gpu in summary["gpus"]]
    return sorted(
        found,
        key=lambda row: (
            row[0]["node"] or "",
            row[1]["index"] is None,
            row[1]["index"] or 0,
            row[1]["uuid"],
        ),
    )


def has_several(summaries: Sequence[Summary]) -> bool:
    """Whether a Slurm job of theirs has more than one GPU."""
    by_job: dict[str, set[str]] = {}
    for summary, gpu in list_gpus(summaries):
        by_job.setdefault(str(summary["job"] or summary["pack_id"]), set()).add(gpu["uuid"])
    return any(len(uuids) > 1 for uuids in by_job.values())


def build_gpu_rows(summaries: Sequence[Summary]) -> tuple[list[Column], list[tuple[str, ...]]]:
    """A line for each GPU, and one for all.

    Args:
        summaries: The packs of a submission that has jobs of several GPUs.
    """
    rows = list_gpus(summaries)
    several_nodes = len({summary["node"] for summary, _ in rows}) > 1
    columns: list[tuple[Column, Callable[[_Row], str], Callable[[Sequence[_Row]], str], bool]] = [
        (
            Column("NODE", is_number=False),
            lambda row: str(row[0]["node"] or UNKNOWN),
            lambda _: "",
            several_nodes,
        ),
        (
            Column("GPU", is_number=False),
            lambda row: name_gpu(row[1]["uuid"], row[1]["index"]),
            lambda all_rows: f"all {len(all_rows)}",
            True,
        ),
        (Column("MEMBERS", is_number=False, gives_way=True), _name_members, _count_members, True),
        (
            Column("AT\nMOST"),
            lambda row: str(_count_most(row[0])),
            lambda all_rows: str(sum(_count_most(one) for one in _list_packs(all_rows))),
            True,
        ),
        (
            Column("DEGREE"),
            lambda row: _read_degree(row[0]) or UNKNOWN,
            lambda _: "",
            any(_read_degree(summary) for summary, _ in rows),
        ),
        (Column("BUSY"), lambda row: format_share(_read_busy(row[1])), _average(_read_busy), True),
        (
            Column("SM"),
            lambda row: format_share(_read(row[1], "sm_active")),
            _average(lambda gpu: _read(gpu, "sm_active")),
            True,
        ),
        (
            Column("DRAM"),
            lambda row: format_share(_read(row[1], "dram_active")),
            _average(lambda gpu: _read(gpu, "dram_active")),
            True,
        ),
        (
            Column("GPU_MEM\nmost"),
            lambda row: format_mb_figure(_read(row[1], "gpu_memory_mb", "max")),
            lambda _: "",
            True,
        ),
        (
            Column("NVLINK"),
            lambda row: format_traffic(_read_traffic(row[1], "nvlink")),
            _add_up("nvlink"),
            True,
        ),
        (
            Column("PCIE"),
            lambda row: format_traffic(_read_traffic(row[1], "pcie")),
            _add_up("pcie"),
            True,
        ),
    ]
    kept = [column for column in columns if column[3]]
    lines = [tuple(write(row) for _, write, _, _ in kept) for row in rows]
    lines.append(tuple(write(rows) for _, _, write, _ in kept))
    return [column for column, *_ in kept], lines


def tell_balance(summaries: Sequence[Summary]) -> str:
    """How evenly the GPUs were used; empty where that is not known of all of them."""
    rows = list_gpus(summaries)
    for metric, word in (("sm_active", "SM activity"), ("utilization", "utilization")):
        means = [(_read(gpu, metric), gpu) for _, gpu in rows]
        known = [(value, gpu) for value, gpu in means if value is not None]
        if not known or len(known) < len(rows):
            continue
        least, most = (choose(known, key=lambda pair: pair[0]) for choose in (min, max))
        if most[0] - least[0] < _EVEN:
            return f"{word} of all {len(rows)} GPUs is {format_share(least[0])}, or nearly"
        low, high = (name_gpu(gpu["uuid"], gpu["index"]) for _, gpu in (least, most))
        return (
            f"{word} goes from {format_share(least[0])} on {low} to {format_share(most[0])} on "
            f"{high}"
        )
    return ""


def format_traffic(mib_s: float | None) -> str:
    """`812 MB/s`, `12.1 GB/s`; `unknown` for None."""
    if mib_s is None:
        return UNKNOWN
    mb_s = mib_s * _MIB_PER_MB
    return f"{mb_s:.0f} MB/s" if mb_s < 1000 else f"{format_figure(mb_s / 1000)} GB/s"


def _read(gpu: Gpu, metric: str, of: str = "mean") -> float | None:
    spread = gpu["use"].get(metric)
    return None if spread is None else float(spread[of])


def _read_busy(gpu: Gpu) -> float | None:
    """The share of the time in which something ran on it."""
    engine = _read(gpu, "engine_active")
    return _read(gpu, "utilization") if engine is None else engine


def _read_traffic(gpu: Gpu, link: str) -> float | None:
    """What went over a link in both directions together."""
    both = [_read(gpu, f"{link}_{way}_mib_s") for way in ("tx", "rx")]
    known = [value for value in both if value is not None]
    return sum(known) if len(known) == len(both) else None


def _average(read: Callable[[Gpu], float | None]) -> Callable[[Sequence[_Row]], str]:
    def write(rows: Sequence[_Row]) -> str:
        values = [value for _, gpu in rows if (value := read(gpu)) is not None]
        return format_share(sum(values) / len(values) if len(values) == len(rows) else None)

    return write


def _add_up(link: str) -> Callable[[Sequence[_Row]], str]:
    def write(rows: Sequence[_Row]) -> str:
        values = [v for _, gpu in rows if (v := _read_traffic(gpu, link)) is not None]
        return format_traffic(sum(values) if len(values) == len(rows) else None)

    return write


def _name_members(row: _Row) -> str:
    summary, gpu = row
    ids = {member["member"]: str(member["id"]) for member in summary["members"]}
    names = [ids[number] for number in gpu["members"] if number in ids]
    told = name_members(names) if names else "none"
    return told if len(told) <= _MEMBERS_WIDTH else f"{len(names)} members"


def _count_members(rows: Sequence[_Row]) -> str:
    ran = [
        member
        for summary in _list_packs(rows)
        for member in summary["members"]
        if member["started_at"] is not None
    ]
    return "1 member" if len(ran) == 1 else f"{len(ran)} members"


def _list_packs(rows: Sequence[_Row]) -> list[Summary]:
    return list({str(summary["pack_id"]): summary for summary, _ in rows}.values())


def _count_most(summary: Summary) -> int:
    """How many ran at once at most."""
    return int(summary["pack"]["members_most"])


def _read_degree(summary: Summary) -> str:
    """How many were best, by what its runner has measured; empty where it has not."""
    return str((summary["degree"] or {}).get("degree") or "")
