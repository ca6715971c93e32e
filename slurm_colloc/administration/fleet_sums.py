"""Sums of the site's packs by day, account and partition, and GPUs that are slower; pure.

Also: reports of packs as they are kept: a file for each day, a JSON line for each pack; the site's
packs as Prometheus metrics; a pack's figures in the form of Princeton's jobstats, for AdminComment.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import gzip
import json
import os
import re
import statistics
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from slurm_colloc.administration.fleet_spool import Accepted
from slurm_colloc.administration.hook_metrics import Kind, MetricFamily
from slurm_colloc.errors import StateError, failed_to
from slurm_colloc.model.fleet_record import (
    FleetRecord,
    SharingSums,
    build_mapping,
    parse_fleet_record,
)
from slurm_colloc.model.gpu_pace import SLOW, THROTTLED
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.slurm.accounting import AccountedJob

# ---- Reports of packs as they are kept: a file for each day, a JSON line for each pack -----------
#
# STORE/days/2026-11-25.jsonl   packs that ended on that day (UTC), with user, account, partition
# STORE/refused.json            how many reports were refused so far, by the reason

_DAY = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})\.jsonl", re.ASCII)


@dataclass(frozen=True)
class FleetPack:
    """A pack of a user's that has ended, as the site keeps it.

    Attributes:
        day: On which it ended (UTC).
        user: Its owner, by Slurm.
        account: Its account, by Slurm.
        partition: Its partition, by Slurm.
        raw_id: Its job's own number.
        record: What it reported.
        cluster: The cluster that ran it, by Slurm.
        job_gpus: GPUs of its job, by Slurm.
    """

    day: str
    user: str
    account: str
    partition: str
    raw_id: str
    record: FleetRecord
    cluster: str
    job_gpus: int


def choose_day(moment: float) -> str:
    """The day of a moment, in UTC."""
    return dt.datetime.fromtimestamp(moment, dt.UTC).date().isoformat()


def keep(store: str, accepted: Sequence[Accepted]) -> None:
    """Add reports to the days on which their packs ended.

    Raises:
        StateError: They cannot be written; some days may have been.
    """
    by_day: dict[str, list[str]] = {}
    for entry in accepted:
        value = {
            "user": entry.job.user,
            "account": entry.job.account,
            "partition": entry.job.partition,
            "raw_id": entry.job.raw_id,
            "cluster": entry.job.cluster,
            "job_gpus": entry.job.gpus,
            "pack": build_mapping(entry.record),
        }
        line = json.dumps(value, separators=(",", ":"))
        by_day.setdefault(choose_day(entry.record.ended_at), []).append(line)
    with failed_to("write into", store):
        os.makedirs(f"{store}/days", 0o750, exist_ok=True)
        for day, lines in sorted(by_day.items()):
            _append(f"{store}/days/{day}.jsonl", "".join(f"{line}\n" for line in lines).encode())


def _append(path: str, data: bytes) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o640)
    try:
        size = os.fstat(descriptor).st_size
        # A line that a full disk cut short is ended here; its report is still in the spool.
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_days(store: str, since: str = "") -> list[FleetPack]:
    """The packs that are kept, each once: of several attempts the last, of equal ones the first.

    Packs that fill the GPU sets of one job count as long as they have no more GPUs than the job.

    Args:
        store: Where they are kept.
        since: The first day, `2026-11-19`; empty for all.

    Raises:
        StateError: The folder cannot be read.
    """
    found: dict[tuple[str, str, int], FleetPack] = {}
    for day, path in _list_days(store, since):
        for pack in _read_day(day, path):
            key = (pack.cluster, pack.raw_id, pack.record.gpu_set)
            before = found.get(key)
            if before is None or pack.record.attempt > before.record.attempt:
                found[key] = pack
    counted: Counter[tuple[str, str]] = Counter()
    kept = []
    for (cluster, raw_id, _), pack in found.items():
        counted[cluster, raw_id] += pack.record.gpus
        if counted[cluster, raw_id] <= pack.job_gpus:
            kept.append(pack)
    return kept


def _list_days(store: str, since: str) -> list[tuple[str, str]]:
    try:
        names = os.listdir(f"{store}/days")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StateError(f"cannot read {store}/days: {os.strerror(error.errno or 0)}") from error
    days = [match[1] for name in names if (match := _DAY.fullmatch(name))]
    return [(day, f"{store}/days/{day}.jsonl") for day in sorted(days) if day >= since]


def _read_day(day: str, path: str) -> Iterator[FleetPack]:
    with failed_to("read", path), open(path, "rb") as file:
        lines = file.read().split(b"\n")
    for line in lines:
        # A line that a full disk cut short is none.
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            value = json.loads(line)
            record = parse_fleet_record(value["pack"])
            yield FleetPack(
                day,
                str(value["user"]),
                str(value["account"]),
                str(value["partition"]),
                str(value["raw_id"]),
                record,
                str(value["cluster"]),
                int(value["job_gpus"]),
            )


def read_refused(store: str) -> Counter[str]:
    """How many reports were refused so far, by the reason."""
    try:
        with open(f"{store}/refused.json", "rb") as file:
            value = json.loads(file.read())
        return Counter({str(name): int(count) for name, count in value.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return Counter()


def add_refused(store: str, refused: Mapping[str, int]) -> Counter[str]:
    """Count more; what it is now.

    Raises:
        StateError: It cannot be written.
    """
    total = read_refused(store)
    total.update(refused)
    path = f"{store}/refused.json"
    with failed_to("write", path):
        os.makedirs(store, 0o750, exist_ok=True)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(dict(total), file)
        os.replace(f"{path}.new", path)
    return total


# ---- Sums of the site's packs by day, account and partition, and GPUs that are slower; pure ------


@dataclass
class FleetRow(SharingSums):
    """Sums of packs.

    Attributes:
        day: On which they ended; empty for all days.
        account: Their account.
        partition: Their partition.
        failed: Members that failed.
    """

    day: str
    account: str
    partition: str
    failed: int = 0

    def add(self, pack: FleetPack) -> None:
        """Add a pack."""
        record = pack.record
        self.add_use(record.gpu_s, record.sm_active, record.energy_j)
        self.members += record.members
        self.failed += record.failed
        self.wasted_s += record.gpu_s * record.wasted_share
        if record.has_shared:
            self.add_saving(record.saved_s, record.saved_kwh, shared=True)
        self.slowdowns += (record.slowdown or 0.0) * record.slowdown_of
        self.slowdowns_of += record.slowdown_of


def sum_fleet(packs: Iterable[FleetPack], *, by_day: bool = True) -> list[FleetRow]:
    """A row for each day, account and partition; or, without days, for account and partition."""
    rows: dict[tuple[str, str, str], FleetRow] = {}
    for pack in packs:
        key = (pack.day if by_day else "", pack.account, pack.partition)
        rows.setdefault(key, FleetRow(*key)).add(pack)
    return [rows[key] for key in sorted(rows)]


JOBS_LEAST = 3
USERS_LEAST = 2


@dataclass(frozen=True)
class FleetGpuPace:
    """How fast a GPU is against others of its model, by jobs that ran alone on several.

    Attributes:
        uuid: The GPU.
        node: Where it was seen last.
        model: Its model.
        rate: Median over users of the median over their jobs: a job's rate on it over the median
            of that job on all GPUs of the model; None where no job tells.
        jobs: How many jobs tell.
        users: Of how many users.
        slow_for: For how many of these users it is slow.
        throttled: Median over users of the part of the time in which heat or the power brake held
            its clocks down; None where it is not known.
        throttled_for: For how many users that was for long.
    """

    uuid: str
    node: str
    model: str
    rate: float | None
    jobs: int
    users: int
    slow_for: int
    throttled: float | None = None
    throttled_for: int = 0

    @property
    def is_slow(self) -> bool:
        """It is slow or throttled, and neither one job nor one user alone says so."""
        is_slow = self.rate is not None and self.rate < SLOW and self.jobs >= JOBS_LEAST
        return (is_slow and self.slow_for >= USERS_LEAST) or self.throttled_for >= USERS_LEAST


def compare_gpus(packs: Sequence[FleetPack]) -> list[FleetGpuPace]:
    """GPUs by their pace, the slowest first.

    A job counts where it was measured alone on at least two GPUs of one model, each user's by
    itself, and each user has one vote. No user can make a GPU look slow alone: see
    `FleetGpuPace.is_slow`.
    """
    rates: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    nodes: dict[str, tuple[float, str]] = {}
    throttled: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for pack in packs:
        record = pack.record
        if record.gpu_uuid is None or record.gpu_model is None:
            continue
        seen = (record.ended_at, record.node)
        nodes[record.gpu_uuid] = max(nodes.get(record.gpu_uuid, seen), seen)
        if record.throttled_share is not None:
            by_user = throttled[record.gpu_model, record.gpu_uuid]
            by_user[pack.user].append(record.throttled_share)
        for signature, rate in record.rates:
            rates[record.gpu_model, pack.user, signature][record.gpu_uuid].append(rate)
    paces: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (model, user, _), by_gpu in rates.items():
        if len(by_gpu) < 2:
            continue
        medians = {uuid: statistics.median(found) for uuid, found in by_gpu.items()}
        usual = statistics.median(medians.values())
        for uuid, own in medians.items():
            paces[model, uuid][user].append(own / usual)
    shown = [key for key, by_user in throttled.items() if _is_throttled(by_user)]
    found = [
        _judge_pace(uuid, nodes[uuid][1], model, paces[model, uuid], throttled[model, uuid])
        for model, uuid in dict.fromkeys((*paces, *shown))
    ]
    return sorted(found, key=lambda pace: (pace.rate is None, pace.rate or 0.0, pace.uuid))


def _is_throttled(by_user: Mapping[str, Sequence[float]]) -> bool:
    return any(statistics.median(shares) >= THROTTLED for shares in by_user.values())


def _judge_pace(
    uuid: str,
    node: str,
    model: str,
    by_user: Mapping[str, Sequence[float]],
    throttled: Mapping[str, Sequence[float]],
) -> FleetGpuPace:
    votes = [statistics.median(values) for values in by_user.values()]
    shares = [statistics.median(values) for values in throttled.values()]
    return FleetGpuPace(
        uuid, node, model, statistics.median(votes) if votes else None,
        sum(map(len, by_user.values())), len(votes), sum(vote < SLOW for vote in votes),
        statistics.median(shares) if shares else None,
        sum(share >= THROTTLED for share in shares),
    )  # fmt: skip


# ----
# The site's packs as Prometheus metrics; pure. site-config/grafana-dashboard.json shows them.

_PREFIX = "slurm_colloc_fleet"
_FIGURES: tuple[tuple[str, Kind, str, Callable[[FleetRow], float | None]], ...] = (
    ("packs_total", "counter", "Packs that have ended.", lambda row: row.packs),
    ("members_total", "counter", "Members that have run.", lambda row: row.members),
    ("failed_members_total", "counter", "Members that have failed.", lambda row: row.failed),
    ("gpu_seconds_total", "counter", "GPU time that packs held.", lambda row: row.gpu_s),
    (
        "gpu_seconds_wasted_total",
        "counter",
        "GPU time of failed members.",
        lambda row: row.wasted_s,
    ),
    ("energy_joules_total", "counter", "Energy of the GPUs.", lambda row: row.energy_j),
    # Sharing may cost time: these can fall.
    ("gpu_seconds_saved", "gauge", "GPU time that sharing saved so far.", lambda row: row.saved_s),
    ("energy_saved_kwh", "gauge", "Energy that sharing saved so far.", lambda row: row.saved_kwh),
    ("mean_slowdown", "gauge", "Mean slowdown of members.", lambda row: row.slowdown),
    (
        "mean_slowdown_members",
        "gauge",
        "Members whose slowdown is known, of which the mean is.",
        lambda row: row.slowdowns_of,
    ),
    ("sm_active_ratio", "gauge", "Mean activity of SMs.", lambda row: row.sm_active),
)
"""What is summed up by account and partition."""


def build_fleet_families(
    rows: Sequence[FleetRow], paces: Sequence[FleetGpuPace], refused: Mapping[str, int], now: float
) -> list[MetricFamily]:
    """All metrics.

    Args:
        rows: Sums by account and partition, over all days that are kept.
        paces: GPUs.
        refused: Reports that were refused, by the reason.
        now: When they were collected, in seconds since the epoch.
    """
    families: list[MetricFamily] = []

    def declare(name: str, kind: Kind, description: str) -> MetricFamily:
        families.append(MetricFamily(f"{_PREFIX}_{name}", kind, description))
        return families[-1]

    for name, kind, description, read in _FIGURES:
        family = declare(name, kind, description)
        for row in rows:
            value = read(row)
            if value is not None:
                family.add(value, account=row.account, partition=row.partition)
    family = declare("gpu_normalised_rate", "gauge", "Pace of a GPU against others of its model.")
    for pace in paces:
        if pace.rate is not None:
            family.add(pace.rate, gpu=pace.uuid, node=pace.node, model=pace.model)
    family = declare("gpu_slow", "gauge", "1 for a GPU that several users' jobs find slow.")
    for pace in paces:
        family.add(int(pace.is_slow), gpu=pace.uuid, node=pace.node, model=pace.model)
    family = declare("refused_reports_total", "counter", "Reports that were refused.")
    for reason, count in sorted(refused.items()):
        family.add(count, reason=reason)
    told = "When reports were collected last."
    declare("collected_timestamp_seconds", "gauge", told).add(now)
    return [family for family in families if family.samples]


# ---- A pack's figures in the form of Princeton's jobstats, for AdminComment; pure ----------------
#
# `JS1:` and base64 of gzip of JSON, as jobstats.py reads it (`Jobstats.__init__`, `parse_stats`):
# for each node CPUs, CPU time and memory, and by GPU total and used memory and utilization.

PREFIX = "JS1:"
_MARK = "slurm_colloc"
"""A key that jobstats passes over; by it a blob is known for ours."""
_MB = 1 << 20
_BYTES_MOST = 1 << 16


def build_blob(record: FleetRecord, job: AccountedJob) -> str:
    """The comment of a job; empty where what jobstats must have is not known.

    Args:
        record: What its pack reported.
        job: The job, by Slurm: its CPUs, memory and times.
    """
    used_mb, total_mb = record.gpu_memory_used_mb, record.gpu_memory_mb
    if used_mb is None or total_mb is None or record.utilization is None:
        return ""
    if record.cpu_s is None or record.host_memory_mb is None or job.memory_mb is None:
        return ""
    # A report of one GPU may be that of one of the job's GPU sets.
    if not record.gpus == job.gpus == 1 or not job.cpus:
        return ""
    if job.started_at is None or job.ended_at is None:
        return ""
    node = {
        "total_memory": int(job.memory_mb * _MB),
        "used_memory": int(record.host_memory_mb * _MB),
        "total_time": round(record.cpu_s, 1),
        "cpus": job.cpus,
        "gpu_total_memory": {"0": int(total_mb * _MB)},
        "gpu_used_memory": {"0": int(used_mb * _MB)},
        "gpu_utilization": {"0": round(100 * record.utilization, 1)},
    }
    elapsed_s = int(job.ended_at - job.started_at)
    value = {"nodes": {record.node: node}, "total_time": elapsed_s, "gpus": 1, _MARK: 1}
    data = gzip.compress(json.dumps(value, separators=(",", ":")).encode("ascii"), mtime=0)
    return PREFIX + base64.b64encode(data).decode("ascii")


def may_replace(comment: str) -> bool:
    """Whether a job's AdminComment is empty or ours; never somebody else's."""
    if not comment:
        return True
    return read_blob(comment).get(_MARK) == 1


def read_blob(comment: str) -> Mapping[str, Any]:
    """What a comment of that form says; nothing for one of another, or that is very large."""
    if not comment.startswith(PREFIX):
        return {}
    try:
        data = base64.b64decode(comment[len(PREFIX) :], validate=True)
        reader = zlib.decompressobj(wbits=31)
        text = reader.decompress(data, _BYTES_MOST)
        value = {} if reader.unconsumed_tail else json.loads(text)
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
