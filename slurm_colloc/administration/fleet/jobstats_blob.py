"""A pack's figures in the form of Princeton's jobstats, for AdminComment; pure.

`JS1:` and base64 of gzip of JSON, as jobstats.py reads it (`Jobstats.__init__`, `parse_stats`):
for each node CPUs, CPU time and memory, and by GPU total and used memory and utilization.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any

from slurm_colloc.model.fleet_record import FleetRecord
from slurm_colloc.slurm.job_accounts import AccountedJob

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
