"""Time limits of the packs of one job array: each its own, as far as Slurm lets it.

sbatch asks for one time limit for all elements, the longest. A short pack would wait for a gap as
long as that, so elements that need clearly less are lowered once sbatch has answered. A user may
lower a job's limit at any time, of one that runs too (seen on 22.05 to 26.05), and it is never
lowered below what was planned for its members from the pack's start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import SlurmError, SlurmRefused, StateError
from slurm_colloc.model.plan import PackRequest
from slurm_colloc.model.sbatch.arrays import format_task_runs
from slurm_colloc.model.sbatch.quantities import format_time_limit
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.store.pack.pack_directory import write_record
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.submission.packs.call_batches import Batch
from slurm_colloc.submission.plan.planned_pack import PlannedPack

COMMANDS_MAX = 20
"""Calls of scontrol for one array; more different limits are rounded up to so many."""

WORTH_IT = 0.9
"""A limit above this part of the array's own is left at that."""

_MINUTE_S = 60
"""Slurm counts time limits in whole minutes, and rounds up."""
_LOCK_WAIT_S = 1.0
_REFUSED_ELEMENT = re.compile(r"^(?:.*[ :])?\d+_(\d+): (?!No error)(.+)$", re.ASCII | re.MULTILINE)


def choose_requests(batch: Batch) -> list[list[PackRequest | None]]:
    """What Slurm will have been asked for in the end, of each GPU set of each element; pure.

    Elements of an array ask for the same CPUs and host memory, the largest of each, and for time
    limits of their own where that is worth it. The GPU sets of one element have one time limit.
    """
    merged = batch.request
    if merged is None:
        return [[None] * len(element) for element in batch.elements]
    if merged.time_limit_s is None:
        return [list(batch.requests) for _ in batch.elements]
    limits = [merged.time_limit_s]
    if batch.is_array:
        limits = _choose_limits(
            [_find_longest_s(element) for element in batch.elements], merged.time_limit_s
        )
    return [
        [dataclasses.replace(request, time_limit_s=limit) for request in batch.requests]
        for limit in limits
    ]


def _find_longest_s(element: Sequence[PlannedPack]) -> int | None:
    """How long the longest of an element's GPU sets asks for; None where one does not say."""
    limits = [pack.plan.request.time_limit_s if pack.plan.request else None for pack in element]
    return None if None in limits else max(limit for limit in limits if limit is not None)


def _choose_limits(wanted: Sequence[int | None], longest_s: int) -> list[int]:
    """The limit of each element, in seconds: whole minutes, or that of all."""
    minutes = [-(-(seconds or longest_s) // _MINUTE_S) for seconds in wanted]
    short = sorted({m for m in minutes if m * _MINUTE_S <= WORTH_IT * longest_s})
    each = -(-len(short) // COMMANDS_MAX) or 1
    rounded = {m: part[-1] for part in _cut(short, each) for m in part}
    return [rounded[m] * _MINUTE_S if m in rounded else longest_s for m in minutes]


def _cut(values: Sequence[int], length: int) -> list[Sequence[int]]:
    return [values[at : at + length] for at in range(0, len(values), length)]


def shorten(
    slurm: SlurmAccess, state: State, job_id: str, batch: Batch, records: Sequence[PackRecord]
) -> list[PackRecord]:
    """Lower the time limits of an array's elements; best effort.

    Args:
        slurm: Slurm.
        state: The state directory.
        job_id: The array.
        batch: Its packs.
        records: The same, with the limits that they are to have (`choose_requests`).

    Returns:
        The packs as they are now: what Slurm refuses is noted in them.
    """
    if not batch.is_array or batch.request is None:
        return list(records)
    longest_s = batch.request.time_limit_s
    groups: dict[int, list[int]] = {}
    for record in records:
        limit_s = record.request.time_limit_s if record.request else None
        if limit_s is not None and limit_s != longest_s and record.gpu_set == 0:
            groups.setdefault(limit_s, []).append(record.index)
    refused = _lower(slurm, job_id, groups)
    return [
        _note_refusal(state, record, refused[record.index], longest_s)
        if record.index in refused
        else record
        for record in records
    ]


def _lower(slurm: SlurmAccess, job_id: str, groups: Mapping[int, Sequence[int]]) -> dict[int, str]:
    """Ask for limits in seconds, each for some elements; why not, by element."""
    refused: dict[int, str] = {}
    left = sorted(groups.items())
    while left:
        limit_s, indices = left.pop()
        elements = f"[{format_task_runs(indices)}]" if len(indices) > 1 else f"{indices[0]}"
        try:
            slurm.update_job(f"{job_id}_{elements}", {"TimeLimit": format_time_limit(limit_s)})
        except SlurmRefused as error:
            refused |= _find_refused(error, indices)
        except SlurmError as error:
            # A controller that does not answer is not asked again.
            for _, rest in [(limit_s, indices), *left]:
                refused |= dict.fromkeys(rest, error.message)
            break
    return refused


def _find_refused(error: SlurmRefused, indices: Sequence[int]) -> dict[int, str]:
    """The elements that Slurm names as refused; all where it names none."""
    named = {int(index): words for index, words in _REFUSED_ELEMENT.findall(error.stderr)}
    found = {index: words for index, words in named.items() if index in indices}
    return found or dict.fromkeys(indices, error.message)


def _note_refusal(
    state: State, record: PackRecord, words: str, longest_s: int | None
) -> PackRecord:
    if record.request is None:
        return record
    wanted = format_time_limit(record.request.time_limit_s)
    request = dataclasses.replace(record.request, time_limit_s=longest_s)
    reason = f"Slurm did not lower its time limit to {wanted}: {words}"
    path = state.pack_path(record.pack_id)
    with contextlib.suppress(StateError), hold_lock(path / "lock", _LOCK_WAIT_S) as locked:
        # Its runner may have written there meanwhile.
        now = state.read_pack(record.pack_id) if locked else None
        if now is not None:
            reasons = (*now.reasons, reason)
            write_record(path, dataclasses.replace(now, request=request, reasons=reasons))
    return dataclasses.replace(record, request=request, reasons=(*record.reasons, reason))
