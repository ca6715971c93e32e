"""A submission of several packs that ran long, with a row each second: to measure the page.

`python -m tests.report.generated_days DIRECTORY PACKS HOURS MEMBERS` writes it and, called again,
says how long the page takes and how much memory. DIRECTORY/state is a state directory: linked as
.local/state/slurm_colloc of a HOME, `csub report all --html` makes the page of it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slurm_colloc.report.page.render_page import render_page
from slurm_colloc.report.page.timelines import PageSource
from slurm_colloc.report.summary_file import summary_path
from slurm_colloc.store.report_files import GPU_COLUMNS, MEMBER_COLUMNS

from .generated import T0, UUID, Truth, build_summary, make_pack

SPIKE_AT_S, SPIKE = 4321, 0.987
"""One reading of the GPU's activity is this high; all others are lower."""


def write_days(root: Path, packs: int, hours: float, members: int) -> list[PageSource]:
    """Packs that have ended, each with a GPU and so many members all the time."""
    seconds = int(hours * 3600)
    sources = []
    for number in range(packs):
        truths = [Truth(1 + m + number * members, 0, 60, lambda _: 10) for m in range(members)]
        pack = make_pack(root, truths, submission=f"20260101-000000-{number}", job_id=str(4711))
        summary = build_summary(pack, root)
        summary["window"]["to"] = T0 + seconds
        summary["pack"] |= {"shared_s": float(seconds), "serial_s": 2.0 * seconds}
        for member in summary["members"]:
            member["ended_at"] = T0 + seconds
        summary_path(pack).write_text(json.dumps(summary))
        _write_gpu(pack, seconds)
        _write_members(pack, seconds, [truth.member for truth in truths])
        sources.append(PageSource(summary, pack))
    return sources


def _write_gpu(pack: Path, seconds: int) -> None:
    chance = np.random.default_rng(1)
    known = {
        "at": T0 + np.arange(seconds) + chance.uniform(0, 0.05, seconds),
        "attempt": np.ones(seconds), "uuid": [UUID] * seconds, "power_w": np.full(seconds, 300.0),
        "energy_j": 300.0 * np.arange(seconds), "gpu_memory_mb": np.full(seconds, 4000.0),
    }  # fmt: skip
    for metric in ("sm_active", "tensor_active", "dram_active", "utilization"):
        known[metric] = chance.uniform(0.3, 0.6, seconds)
    np.asarray(known["sm_active"])[min(SPIKE_AT_S, seconds - 1)] = SPIKE
    _write(pack, "gpu", GPU_COLUMNS, known, seconds)


def _write_members(pack: Path, seconds: int, numbers: list[int]) -> None:
    chance = np.random.default_rng(2)
    count, rows = len(numbers), seconds * len(numbers)
    at = np.repeat(T0 + np.arange(seconds), count) + chance.uniform(0, 0.05, rows)
    steps = np.repeat(10 * np.arange(1, seconds + 1), count)
    known = {
        "at": at, "attempt": np.ones(rows), "member": np.tile(numbers, seconds),
        "start": np.ones(rows), "steps": steps, "first_step_at": np.full(rows, T0 + 0.1),
        "last_step_at": np.repeat(T0 + np.arange(seconds), count) + 0.9,
    }  # fmt: skip
    _write(pack, "members", MEMBER_COLUMNS, known, rows)


def _write(
    pack: Path,
    table: str,
    columns: tuple[tuple[str, str], ...],
    known: Mapping[str, object],
    rows: int,
) -> None:
    kinds = [(name, pa.type_for_alias(kind)) for name, kind in columns]
    arrays = [
        pa.nulls(rows, kind) if name not in known else pa.array(known[name]).cast(kind, safe=False)
        for name, kind in kinds
    ]
    pq.write_table(pa.table(arrays, schema=pa.schema(kinds)), pack / "report" / f"{table}.parquet")


def main() -> None:
    root, packs, hours, members = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    kept = root / "sources.json"
    if kept.exists():
        found = json.loads(kept.read_text())
        sources = [PageSource(entry["summary"], Path(entry["path"])) for entry in found]
        begin, before = time.perf_counter(), time.process_time()
        text = render_page(sources)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        took = f"{time.perf_counter() - begin:.2f} s, {time.process_time() - before:.2f} s of CPU"
        print(f"{took}, {peak_mb:.0f} MB at most, {len(text.encode()) / 1e6:.2f} MB of HTML")
        (root / "page.html").write_text(text)
        return
    root.mkdir(parents=True, exist_ok=True)
    sources = write_days(root / "state", packs, hours, members)
    kept.write_text(
        json.dumps([{"summary": source.summary, "path": str(source.path)} for source in sources])
    )
    print("written; the same again measures")


if __name__ == "__main__":
    main()
