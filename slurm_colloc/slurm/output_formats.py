"""Reading what Slurm's commands print, 22.05 to 26.05; pure functions."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slurm_colloc.model.comment_token import is_of_submission
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.sbatch.quantities import parse_time_limit_s

QUEUE_FORMAT = "%i|%F|%T|%M|%L|%V|%N|%r|%k"
"""squeue -o: id, array id, state, time used, time left, submit time, nodes, reason, comment."""

NODE_FORMAT = "%P|%c|%m|%G|%l|%L|%h"
"""sinfo -o: partition, a node's CPUs, memory (MB) and GRES, MaxTime, DefaultTime, OverSubscribe."""


@dataclass(frozen=True)
class SlurmJob:
    """A Slurm job, or one element of an array, as squeue shows it.

    Attributes:
        job_id: `4711` or `4711_2`; `4711_[3-9%2]` for elements that squeue keeps folded.
        state: Its state.
        time_used: As squeue prints it.
        time_left: As squeue prints it.
        nodes: Its node list, empty while it waits.
        reason: Why it waits.
        comment: Its comment.
    """

    job_id: str
    state: SlurmJobState
    time_used: str
    time_left: str
    nodes: str
    reason: str
    comment: str


_JOB_ID = re.compile(r"\d+(?:\+\d+)?(?:_(?:\d+|\[.*\]))?", re.ASCII)


def parse_queue(text: str) -> list[SlurmJob]:
    """Read the lines of squeue with QUEUE_FORMAT; lines of another shape are skipped.

    A comment comes last, and as its user wrote it: with line breaks, and with what Python takes
    for some (U+2028 and others).
    """
    jobs: list[SlurmJob] = []
    for line in text.removesuffix("\n").split("\n"):
        fields = line.split("|", 8)
        if len(fields) < 9 or not _JOB_ID.fullmatch(fields[0]):
            if jobs:
                jobs[-1] = replace(jobs[-1], comment=f"{jobs[-1].comment}\n{line}")
        else:
            jobs.append(
                SlurmJob(
                    job_id=fields[0],
                    state=SlurmJobState.parse(fields[2]),
                    time_used=fields[3],
                    time_left=fields[4],
                    nodes="" if fields[6] == "(null)" else fields[6],
                    reason="" if fields[7] == "None" else fields[7],
                    comment="" if fields[8] == "(null)" else fields[8],
                )
            )
    return jobs


@dataclass(frozen=True)
class NodeShape:
    """A kind of node in a partition, as sinfo shows it.

    Attributes:
        partition: The partition.
        is_default: It is the partition of jobs that name none.
        cpus: CPUs of a node.
        host_memory_mb: Its memory.
        gpus: Its GPUs, as type and number; the type is None where Slurm gives none.
        time_limit_max_s: MaxTime of the partition; None for no limit.
        time_limit_default_s: Its DefaultTime; None for none.
        is_given_whole: A job there gets whole nodes (OverSubscribe=EXCLUSIVE).
    """

    partition: str
    is_default: bool
    cpus: int
    host_memory_mb: int
    gpus: tuple[tuple[str | None, int], ...]
    time_limit_max_s: int | None
    time_limit_default_s: int | None
    is_given_whole: bool = False


_GPU = re.compile(r"gpu(?::(?P<type>[^:(),]+(?=:)))?:(?P<count>\d+)(?:\([^)]*\))?")


def parse_nodes(text: str) -> list[NodeShape]:
    """Read the lines of sinfo with NODE_FORMAT; lines of another shape are skipped."""
    shapes = []
    for line in text.split("\n"):
        fields = line.strip().split("|")
        if len(fields) not in (6, 7):
            continue
        try:
            cpus, host_memory_mb = int(fields[1].rstrip("+")), int(fields[2].rstrip("+"))
        except ValueError:
            continue
        if cpus == 0:
            # A partition with none of the nodes that were asked for.
            continue
        shapes.append(
            NodeShape(
                partition=fields[0].rstrip("*"),
                is_default=fields[0].endswith("*"),
                cpus=cpus,
                host_memory_mb=host_memory_mb,
                gpus=tuple((m["type"], int(m["count"])) for m in _GPU.finditer(fields[3])),
                time_limit_max_s=_parse_partition_time_s(fields[4]),
                time_limit_default_s=_parse_partition_time_s(fields[5]),
                is_given_whole=fields[6:] == ["EXCLUSIVE"],
            )
        )
    return shapes


def _parse_partition_time_s(text: str) -> int | None:
    try:
        return parse_time_limit_s(text)
    except ValueError:
        return None


def parse_job_fields(text: str) -> dict[str, str]:
    """Read `scontrol show job -o`: fields without blanks in their values, first one wins."""
    fields: dict[str, str] = {}
    for word in text.split():
        name, separator, value = word.partition("=")
        if separator:
            fields.setdefault(name, value)
    return fields


def expand_node_list(text: str) -> list[str]:
    """The nodes of a list as Slurm writes it: `n[1-2,07],gpu3`, also with several brackets.

    Args:
        text: The list. What is written in another way stands for itself.
    """
    names: list[str] = []
    for word in _NODE_WORD.findall(text):
        found = [""]
        for plain, ranges in _NODE_PART.findall(word):
            ends = [plain] if plain else _expand_ranges(ranges)
            found = [f"{name}{end}" for name in found for end in ends]
        names += found
    return names


def _expand_ranges(text: str) -> list[str]:
    """`1-3,07` as numbers, with the zeros that the first one has."""
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            found += (f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1))
        else:
            found.append(part)
    return found


_NODE_WORD = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_NODE_PART = re.compile(r"([^\[\]]+)|\[([^\]]*)\]")


def parse_moment(text: str) -> float | None:
    """Read a time as scontrol and sacct print it, in local time: `2026-11-21T10:01:07`.

    Returns:
        Seconds since the epoch; None for `Unknown` and for what is no time.
    """
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (OverflowError, ValueError):
        return None


def parse_accounting(text: str) -> dict[str, SlurmJobState]:
    """Read `sacct -n -P -X -o JobID,State`."""
    states = {}
    for line in text.split("\n"):
        job_id, separator, state = line.partition("|")
        if separator:
            states[job_id] = SlurmJobState.parse(state)
    return states


_TASKS = re.compile(r"(\d+)_\[([^\]%]+)(?:%\d+)?\]")


_MERGED = re.compile(r",(?=\S)")


def has_merged_reasons(job: SlurmJob) -> bool:
    """Whether a row of squeue may stand for elements that wait for different reasons.

    squeue folds waiting elements, and lists their reasons: `Resources,JobHeldUser`.
    """
    return _TASKS.fullmatch(job.job_id) is not None and _MERGED.search(job.reason) is not None


def compute_element_states(jobs: list[SlurmJob]) -> dict[str, SlurmJob]:
    """Index squeue's rows by element id, with folded pending elements spelled out."""
    index: dict[str, SlurmJob] = {}
    for job in jobs:
        folded = _TASKS.fullmatch(job.job_id)
        if not folded:
            index[job.job_id] = job
            continue
        for part in folded[2].split(","):
            bounds = part.split(":")[0].split("-")
            if all(bound.isdigit() for bound in bounds):
                step = int(part.split(":")[1]) if ":" in part else 1
                for task in range(int(bounds[0]), int(bounds[-1]) + 1, step):
                    name = f"{folded[1]}_{task}"
                    index[name] = replace(job, job_id=name)
    return index


def find_job_of(jobs: Mapping[str, SlurmJob], job_id: str, submission: str) -> SlurmJob | None:
    """What squeue shows of a submission's job; None where it shows none, or one of another pack.

    A controller that was killed may have lost its newest jobs, and give their ids again.

    Args:
        jobs: What squeue shows.
        job_id: The job, or its element of an array.
        submission: The submission's id.
    """
    job = jobs.get(job_id)
    return None if job is None or is_of_submission(job.comment, submission) is False else job


def compute_hidden_state(jobs: Mapping[str, SlurmJob], job_id: str) -> SlurmJobState:
    """State of a job that squeue does not show by its id.

    Where the elements of an array are cancelled one by one before they start, Slurm keeps one
    record of the array without a task id (seen on 22.05).
    """
    base, separator, _ = job_id.partition("_")
    whole = jobs.get(base) if separator else None
    return SlurmJobState.ABSENT if whole is None else whole.state
