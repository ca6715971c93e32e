"""Packs with generated samples: what is true of them is known."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState
from slurm_colloc.model.plan import MemberPlan, SharingMode
from slurm_colloc.report import pack_summary
from slurm_colloc.report.report_view import render_reports
from slurm_colloc.report.summary_file import Summary
from slurm_colloc.store.all_packs import State, name_gpu_set
from slurm_colloc.store.member_states import (
    MEASURED,
    GpuUse,
    StateRecord,
    append_change,
    begin_attempt,
    write_state,
)
from slurm_colloc.store.pack_directory import NewPack, Setup, write_ended, write_setup
from slurm_colloc.store.report_files import GPU_COLUMNS, MEMBER_COLUMNS

from ..packs import build_member, build_pack

T0 = 1_700_000_000.0
UUID = "GPU-11111111-2222-3333-4444-555555555555"
MODEL = "NVIDIA H200"


@dataclasses.dataclass
class Truth:
    """A start of a member as it really was.

    `rate` says how fast it steps at a moment; `pauses` are from and to, and so are `stops`, in
    which its runner had stopped it: a program whose loop waited then has waited all that time, by
    its own clock.
    """

    member: int
    begin: float
    end: float
    rate: Callable[[float], float]
    start: int = 1
    startup_s: float = 4.0
    warm_up_s: float = 6.0
    pauses: Sequence[tuple[float, float]] = ()
    wait_share: float = 0.1
    gpu_memory_mb: float | None = 1000.0
    allocator_mb: tuple[float, float] | None = None
    reports: bool = True
    samples_per_step: int = 128
    gaps: Sequence[tuple[float, float]] = ()
    stops: Sequence[tuple[float, float]] = ()

    def count_stopped_s(self, at: float, *, only_ended: bool = False) -> float:
        """For how long it had been stopped at a moment."""
        return sum(
            min(end, at) - begin
            for begin, end in self.stops
            if (end if only_ended else begin) <= at
        )

    def make_steps(self) -> list[float]:
        """When its steps ended."""
        at = T0 + self.begin + self.startup_s
        steps: list[float] = []
        first = at
        while True:
            rate = self.rate(at - T0)
            if at - first < self.warm_up_s:
                rate *= 0.4
            before = at
            at += 1 / rate
            for begin, end in self.stops:
                if before <= T0 + begin < at:
                    at += end - begin
            for begin, end in self.pauses:
                if T0 + begin <= at < T0 + end:
                    at += end - begin
            if at > T0 + self.end:
                return steps
            steps.append(at)

    def make_rows(self, seed: int = 1, interval_s: float = 1.0) -> list[dict[str, Any]]:
        """What the monitor reads of it."""
        chance = random.Random(seed)
        steps = self.make_steps() if self.reports else []
        rows, done, tick = [], 0, self.begin
        while tick <= self.end:
            at = T0 + tick + chance.uniform(0, 0.05)
            if not any(begin <= tick < end for begin, end in self.gaps):
                while done < len(steps) and steps[done] <= at:
                    done += 1
                rows.append(self._make_row(at, steps, done))
            tick += interval_s
        if rows and rows[-1]["at"] < T0 + self.end:
            rows.append(self._make_row(T0 + self.end, steps, len(steps)))
        return rows

    def _make_row(self, at: float, steps: list[float], done: int) -> dict[str, Any]:
        known = self.reports and done > 0
        ran_s = at - T0 - self.begin - self.count_stopped_s(at - T0)
        waited_s = 0.0
        if known:
            first_s = steps[0] - T0
            stepped_s = at - steps[0] - self.count_stopped_s(at - T0)
            waited_s = self.wait_share * max(0.0, stepped_s + self.count_stopped_s(first_s))
            waited_s += self.count_stopped_s(at - T0, only_ended=True)
        return {
            "at": at,
            "attempt": 1,
            "member": self.member,
            "start": self.start,
            "gpu_memory_mb": self.gpu_memory_mb if int(at) % 5 == 0 else None,
            "gpu_memory_reserved_peak_mb": self.allocator_mb and known and self.allocator_mb[0],
            "gpu_memory_reserved_mb": self.allocator_mb and known and self.allocator_mb[1],
            "processes": 1,
            "threads": 8,
            "cpu_s": 1.5 * ran_s,
            "host_memory_mb": 512.0,
            "read_bytes": int(1e6 * (at - T0 - self.begin)),
            "written_bytes": 10,
            "steps": done if known else None,
            "skipped": 0 if known else None,
            "samples": done * self.samples_per_step if known else None,
            "batches": done if known else None,
            "wait_s": waited_s if known else None,
            "progress": "optimizer" if known else None,
            "first_step_at": steps[0] if known else None,
            "last_step_at": steps[done - 1] if known else None,
        }


def make_gpu_rows(
    length_s: float,
    sm: Callable[[float], float | None] = lambda _at: 0.5,
    power: Callable[[float], float] = lambda _at: 300.0,
    before_s: float = 5.0,
    uuid: str = UUID,
    *,
    nvlink_mib_s: float | None = None,
) -> list[dict[str, Any]]:
    """What the monitor reads of the GPU, at 1 s; idle at 100 W before the pack begins."""
    rows, energy = [], 1e6
    for tick in range(int(-before_s), int(length_s) + 2):
        watts = 100.0 if tick < 0 else power(tick)
        rows.append(
            {
                "at": T0 + tick,
                "attempt": 1,
                "uuid": uuid,
                "sm_active": 0.0 if tick < 0 else sm(tick),
                "dram_active": 0.25,
                "tensor_active": 0.1,
                "gpu_memory_mb": 4000.0,
                "nvlink_tx_mib_s": nvlink_mib_s,
                "nvlink_rx_mib_s": nvlink_mib_s,
                "power_w": watts,
                "energy_j": energy,
                "throttle_power_s": 0.0,
            }
        )
        energy += watts
    return rows


def write_table(path: Path, columns: Sequence[tuple[str, str]], rows: list[dict[str, Any]]) -> None:
    """Write rows as the monitor does."""
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns])
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def write_samples(
    pack: Path, members: list[dict[str, Any]], gpu: list[dict[str, Any]], pieces: int = 1
) -> None:
    """Write a pack's samples: in one file each, or in pieces as while it runs."""
    tables = (("members", MEMBER_COLUMNS, members), ("gpu", GPU_COLUMNS, gpu))
    for table, columns, unsorted in tables:
        rows = sorted(unsorted, key=lambda row: row["at"])
        if pieces == 1:
            write_table(pack / "report" / f"{table}.parquet", columns, rows)
            continue
        size = -(-len(rows) // pieces)
        for piece in range(pieces):
            part = rows[piece * size : (piece + 1) * size]
            write_table(pack / "report" / f"{table}.{piece + 1:06d}.parquet", columns, part)


def write_stops(pack: Path, truths: Sequence[Truth], reason: str = MEASURED) -> None:
    """Write down when members were stopped, as their runner does."""
    edges: dict[float, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for truth in truths:
        for begin, end in truth.stops:
            edges.setdefault(begin, ([], []))[0].append((truth.member, truth.start))
            edges.setdefault(end, ([], []))[1].append((truth.member, truth.start))
    for at, (paused, resumed) in sorted(edges.items()):
        append_change(pack, T0 + at, paused=paused, resumed=resumed, reason=reason)


def make_pack(
    root: Path,
    truths: Sequence[Truth],
    *,
    submission: str = "20260101-000000-a",
    job_id: str = "4711",
    names: Sequence[str] = (),
    running: bool = False,
    gpu: list[dict[str, Any]] | None = None,
    pieces: int = 1,
    failed: Sequence[int] = (),
    setup: bool = True,
    one_family: bool = False,
    thread_limits: Mapping[int, int] | None = None,
    predicted: Mapping[int, float] | None = None,
    plans: Mapping[int, MemberPlan] | None = None,
    mode: SharingMode | None = None,
    gpus: Sequence[str] = (UUID,),
    used: Mapping[int, tuple[str, ...]] | None = None,
    gpu_set: int = 0,
    gpu_sets: tuple[int, ...] = (),
    max_slowdown: float | None = None,
) -> Path:
    """Write a pack that has run, or runs, with these members.

    `used` are the GPUs that members saw; `gpu_set` is which of the `gpu_sets` of its job it fills.
    """
    numbers = sorted({truth.member for truth in truths})
    state = State(root, "here")
    state.prepare()
    pack = build_pack(submission)
    entries = []
    for number in numbers:
        arguments = ("--lr", f"0.{number}") if one_family else ()
        work = "$@" if one_family else number
        entry = build_member(number, script=f"#!/bin/sh\npython train.py {work}\n".encode())
        name = names[number - 1] if number <= len(names) else f"train{number}"
        job = dataclasses.replace(
            entry.spec.job, name=name, arguments=arguments, max_slowdown=max_slowdown
        )
        plan = (plans or {}).get(number) or dataclasses.replace(
            entry.spec.plan, predicted_slowdown=(predicted or {}).get(number)
        )
        spec = dataclasses.replace(entry.spec, job=job, plan=plan)
        entries.append(dataclasses.replace(entry, spec=spec))
    record = dataclasses.replace(
        pack.record,
        members=tuple(numbers),
        share="auto",
        local=job_id.startswith("L"),
        mode=mode or pack.record.mode,
        degree=max(pack.record.degree, len(numbers)),
        pack_id=f"{name_gpu_set(pack.record.submission, gpu_set)}.{pack.record.index}",
        gpu_set=gpu_set,
        gpu_sets=gpu_sets,
    )
    with state.writing([NewPack(record, tuple(entries))]):
        pass
    state.record_job([record], job_id)
    path = state.pack_path(record.pack_id)
    begin_attempt(path, 1)
    if not running:
        state.forget_open(record.pack_id)
        write_ended(path, SlurmJobState.COMPLETED)
    for number in numbers:
        last = max((t for t in truths if t.member == number), key=lambda truth: truth.end)
        final = MemberState.FAILED if number in failed else MemberState.COMPLETED
        write_state(
            path,
            number,
            StateRecord(
                state=MemberState.RUNNING if running else final,
                attempt=1,
                starts=last.start,
                started_at=T0 + last.begin,
                ended_at=None if running else T0 + last.end,
                exit_code=None if running else ExitCode(1 if number in failed else 0),
                node="node1",
                gpu=GpuUse(
                    "mps", (thread_limits or {}).get(number), uuids=(used or {}).get(number, ())
                ),
            ),
        )
    if setup:
        write_setup(
            path,
            Setup(1, "auto", "mps", "MPS works here", "node1", "runner", tuple(gpus), 143771, MODEL,
                  notes=("the daemon had to be started twice",)),
        )  # fmt: skip
    rows = [row for index, t in enumerate(truths) for row in t.make_rows(seed=index)]
    length_s = max(truth.end for truth in truths)
    write_samples(path, rows, make_gpu_rows(length_s) if gpu is None else gpu, pieces)
    (path / "report" / "monitor.json").write_text(
        json.dumps(
            {
                "schema": 1, "attempt": 1, "node": "node1", "interval_s": 1.0,
                "started_at": T0 - 5, "ended_at": T0 + length_s,
                "ticks_due": int(length_s) + 5, "ticks_taken": int(length_s) + 3,
                "gpus": list(gpus),
                "gpu_models": {
                    uuid: {"name": MODEL, "memory_mb": 143771, "index": place + gpu_set}
                    for place, uuid in enumerate(gpus)
                },
                "gaps": [[T0 + 50, T0 + 52, "late"]], "cpu_s": 1.2, "rss_peak_mb": 60,
                "capabilities": {"sm_active": {"source": "gpm", "state": "ok", "detail": ""},
                                 "nvlink_tx_mib_s": {"source": "", "state": "unsupported",
                                                     "detail": "no NVLink"}},
            }
        )
    )  # fmt: skip
    return path


def build_summary(pack: Path, root: Path) -> Any:
    """A pack's summary, as who reads its JSON has it: any field may be looked at, or changed."""
    return pack_summary.build_summary(pack, root)


def render_report(summary: Summary, width: int, chosen: Collection[int] | None = None) -> str:
    """A pack's report with all its figures, as `csub report --detail` prints it."""
    return render_reports([(summary, chosen)], width, detail=True)
