"""Reports of packs as they are kept: a file for each day, a JSON line for each pack.

STORE/days/2026-11-25.jsonl   packs that ended on that day (UTC), with user, account, partition
STORE/refused.json            how many reports were refused so far, by the reason
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.administration.fleet.collect_spool import Accepted
from slurm_colloc.errors import StateError
from slurm_colloc.model.fleet_record import FleetRecord, build_mapping, parse_fleet_record

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
    try:
        os.makedirs(f"{store}/days", 0o750, exist_ok=True)
        for day, lines in sorted(by_day.items()):
            _append(f"{store}/days/{day}.jsonl", "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise StateError(f"cannot write into {store}: {os.strerror(error.errno or 0)}") from error


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
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise StateError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
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
    try:
        os.makedirs(store, 0o750, exist_ok=True)
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(dict(total), file)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise StateError(f"cannot write {path}: {os.strerror(error.errno or 0)}") from error
    return total
