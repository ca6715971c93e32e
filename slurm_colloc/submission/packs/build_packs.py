"""The packs of one Slurm job, ready to be written.

Also: the options with which sbatch is called for the packs of one Slurm job; time limits of the
packs of one job array: each its own, as far as Slurm lets it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.errors import SlurmError, SlurmRefused, StateError
from slurm_colloc.model.job import Job
from slurm_colloc.model.job_ids import format_task_ids, format_task_runs
from slurm_colloc.model.job_values import add_condition, expand_array_id
from slurm_colloc.model.late_definitions import dataclass, late_pattern, replace
from slurm_colloc.model.plan import PackRequest, PlannedSeat, Policy, SharingMode
from slurm_colloc.model.quantities import format_time_limit
from slurm_colloc.model.setting_values import RunnerSettings
from slurm_colloc.planning.join_fit import compute_reason_not_to_join
from slurm_colloc.planning.same_kind import compute_own_meaning
from slurm_colloc.slurm.options import takes_value
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import State, name_gpu_set
from slurm_colloc.store.atomic_files import hold_lock
from slurm_colloc.store.indexes import build_pack_id
from slurm_colloc.store.pack_directory import (
    MemberSpec,
    NewMember,
    NewPack,
    PackRecord,
    build_environment_block,
    write_record,
)
from slurm_colloc.submission.packs.call_batches import (
    ONLY_ONE,
    Batch,
    HookChoice,
    PlaceInCall,
    build_hook_request,
    find_wait,
)
from slurm_colloc.submission.plan.plan_call import PlannedPack

# ---- The options with which sbatch is called for the packs of one Slurm job; pure ----------------

GROWABLE = frozenset(
    {"chdir", "cpus-per-task", "error", "gpus", "gpus-per-node", "gres", "input", "mail-type",
     "mail-user", "mem", "mem-per-cpu", "nodes", "ntasks", "ntasks-per-node", "open-mode",
     "output", "time"}
)  # fmt: skip
"""Options of a lone job that `scontrol update` can overrule, or that its runner can do itself,
once another job has joined it."""


@dataclass(frozen=True)
class SbatchOptions:
    """The options of sbatch for a batch.

    Attributes:
        words: As they stand on its command line.
        notes: What could not be asked for, and why; a sentence each.
    """

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()


def build_options(
    batch: Batch,
    submission: str,
    log: str,
    *,
    hooks: HookChoice | None = None,
    shown_id: str = "",
    after_job: str = "",
) -> SbatchOptions:
    """The options of sbatch.

    Args:
        batch: The packs of this Slurm job.
        submission: The submission's id.
        log: Path of the pack's log, `%a` in it for the element.
        hooks: Whether packs ask for the hooks of their nodes.
        shown_id: The id that its members are named after; empty for the one that Slurm gives.
        after_job: The Slurm job of the call that must be over first; empty for none.

    Raises:
        UsageProblem: The user's comment leaves no room for csub's mark, or their dependency none
            for `after_job`.
    """
    first = batch.packs[0].candidates[0].job
    group = dict(batch.group)
    words = []
    if batch.is_array:
        limit = f"%{batch.packs_at_once}" if batch.packs_at_once is not None else ""
        words.append(f"--array={format_task_ids(batch.indices)}{limit}")
    words.append(f"--job-name={batch.name}")
    group.pop("job-name", None)
    plans = [pack.plan for pack in batch.packs]
    asked = build_hook_request(
        plans, group, submission, hooks or HookChoice(), gpu_sets=batch.gpu_sets
    )
    words.append(f"--comment={asked.comment}")
    group.pop("comment", None)
    if asked.constraint is not None:
        group["constraint"] = asked.constraint
    if batch.request is None:
        # As the user wrote it; the log is the member's own output.
        shape = name_outputs(first, shown_id) if shown_id else first.shape
        words += [_option(name, value) for name, value in shape]
    else:
        words += build_request_options(batch.request)
        words += [f"--output={log}", "--open-mode=append", f"--chdir={first.directory}"]
    wait = find_wait(batch.elements[0])
    if wait is not None:
        # Slurm knows no members: see model.job_values.
        group["dependency"] = wait
    if after_job:
        group["dependency"] = add_condition(group.get("dependency", ""), f"afterany:{after_job}")
    if not group.get("dependency", "-"):
        del group["dependency"]
    words += [_option(name, value) for name, value in sorted(group.items())]
    if "export" not in group:
        words.append("--export=ALL")
    return SbatchOptions(tuple(words), asked.notes)


def name_outputs(job: Job, shown_id: str) -> tuple[tuple[str, str], ...]:
    """The shape of a task alone, with `%A` in its files as in those of the submission's others.

    Args:
        job: The job.
        shown_id: The submission's id, which is that of another Slurm job.
    """
    if job.array_task is None:
        return job.shape
    shape = dict(job.shape)
    shape["output"] = expand_array_id(job.output or "slurm-%A_%a.out", shown_id)
    if job.error is not None:
        shape["error"] = expand_array_id(job.error, shown_id)
    return tuple(shape.items())


def build_request_options(request: PackRequest) -> list[str]:
    """The options that ask for a pack's resources."""
    kind = f"{request.gpu_type}:" if request.gpu_type else ""
    options = [
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={request.cpus}",
        f"--gres=gpu:{kind}{request.gpus}",
    ]
    if request.host_memory_mb is not None:
        options.append(f"--mem={request.host_memory_mb}M")
    if request.is_unlimited or request.time_limit_s is not None:
        options.append(f"--time={format_time_limit(request.time_limit_s)}")
    return options


def _option(name: str, value: str) -> str:
    # Without its value, empty as it is, such an option would take the next word for it.
    return f"--{name}={value}" if value or takes_value(name) else f"--{name}"


# ---- Time limits of the packs of one job array: each its own, as far as Slurm lets it ------------
#
# sbatch asks for one time limit for all elements, the longest. A short pack would wait for a gap as
# long as that, so elements that need clearly less are lowered once sbatch has answered. A user may
# lower a job's limit at any time, of one that runs too (seen on 22.05 to 26.05), and it is never
# lowered below what was planned for its members from the pack's start.

COMMANDS_MAX = 20
"""Calls of scontrol for one array; more different limits are rounded up to so many."""

WORTH_IT = 0.9
"""A limit above this part of the array's own is left at that."""

_MINUTE_S = 60
"""Slurm counts time limits in whole minutes, and rounds up."""
_LOCK_WAIT_S = 1.0
_REFUSED_ELEMENT = late_pattern(r"(?am)^(?:.*[ :])?\d+_(\d+): (?!No error)(.+)$")


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
        [replace(request, time_limit_s=limit) for request in batch.requests] for limit in limits
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
    request = replace(record.request, time_limit_s=longest_s)
    reason = f"Slurm did not lower its time limit to {wanted}: {words}"
    path = state.pack_path(record.pack_id)
    with contextlib.suppress(StateError), hold_lock(path / "lock", _LOCK_WAIT_S) as locked:
        # Its runner may have written there meanwhile.
        now = state.read_pack(record.pack_id) if locked else None
        if now is not None:
            reasons = (*now.reasons, reason)
            write_record(path, replace(now, request=request, reasons=reasons))
    return replace(record, request=request, reasons=(*record.reasons, reason))


# ---- The packs of one Slurm job, ready to be written ---------------------------------------------


def build_packs(
    batch: Batch,
    submission: str,
    *,
    environment: Mapping[str, str],
    options: SbatchOptions,
    directory: str,
    local: bool = False,
    cluster: str = "",
    policy: Policy | None = None,
    refusals: tuple[str, ...] = (),
    resubmissions: int = 0,
    share: str = "auto",
    place: PlaceInCall = ONLY_ONE,
    settings: RunnerSettings | None = None,
) -> list[NewPack]:
    """The packs of one Slurm job, ready to be written."""
    umask = os.umask(0o077)
    os.umask(umask)
    blocks: dict[int, bytes] = {}
    packs = []
    for index, gpu_set, pack, request in _list_sets(batch, local=local):
        planned = pack.plan
        members = []
        for candidate, member in zip(pack.candidates, planned.members, strict=True):
            key = id(candidate.environment)
            if key not in blocks:
                blocks[key] = encode_environment(candidate.environment)
            is_task = candidate.job.array_task is not None
            # A pack that is open for others is still the call of one job.
            is_single = planned.request is None or planned.open_for > 0
            names_alone = is_single or (local and len(planned.members) == 1)
            if local and place.is_one_of_several:
                names_alone = False
            members.append(
                NewMember(
                    MemberSpec(
                        candidate.job, member, umask, names_alone=names_alone and not is_task
                    ),
                    candidate.script,
                    blocks[key],
                )
            )
        record = PackRecord(
            pack_id=build_pack_id(name_gpu_set(submission, gpu_set), index),
            submission=submission,
            index=index,
            indices=batch.indices,
            is_array=batch.is_array,
            created_at=time.time(),
            name=batch.name,
            mode=planned.mode,
            degree=planned.degree,
            request=request,
            group=planned.group,
            # What is submitted again brings what was noted the first time.
            reasons=tuple(dict.fromkeys((*planned.reasons, *options.notes))),
            sharing=planned.sharing,
            power_limit_w=planned.power_limit_w,
            members=tuple(member.spec.job.number for member in members),
            submit_directory=directory,
            submit_host=os.uname().nodename,
            client_environment=tuple(sorted(environment.items())),
            slurm_options=options.words,
            local=local,
            cluster=cluster,
            policy=policy,
            gpu_type=pack.candidates[0].job.gpu_type,
            closed="" if policy is None else compute_closed(batch, pack, policy, place),
            refusals=refusals,
            resubmissions=resubmissions,
            share=share if policy is None else policy.share,
            shown_id=place.shown_id,
            parts=place.parts,
            settings=settings,
            layout=tuple(instance.word for instance in planned.layout),
            layout_places=count_shared_places(planned.layout),
            gpu_set=gpu_set,
            gpu_sets=batch.gpu_sets,
            open_for=planned.open_for,
            chain=max(candidate.job.chain for candidate in pack.candidates),
        )
        packs.append(NewPack(record, tuple(members)))
    return packs


def count_shared_places(layout: Sequence[PlannedSeat]) -> tuple[int, ...]:
    """How many members have each instance at once, as pack.json has it: none for one each."""
    places = tuple(instance.places for instance in layout)
    return places if max(places, default=1) > 1 else ()


def _list_sets(
    batch: Batch, *, local: bool
) -> Iterator[tuple[int, int, PlannedPack, PackRequest | None]]:
    """Each pack of a batch with its element, its GPU set, and what Slurm is asked for it."""
    requests = choose_requests(batch)
    for place, (index, element) in enumerate(zip(batch.indices, batch.elements, strict=True)):
        for gpu_set, pack in enumerate(element):
            request = pack.plan.request if local else requests[place][gpu_set]
            yield index, gpu_set, pack, request


def compute_closed(
    batch: Batch, pack: PlannedPack, policy: Policy, place: PlaceInCall = ONLY_ONE
) -> str:
    """Why no job may join a pack later; empty where it is open to joiners."""
    if pack.plan.layout or policy.mode is SharingMode.MIG:
        return "it asks for MIG, whose instances are made for the members that a pack begins with"
    if pack.plan.power_limit_w:
        return "it asks for a power limit that was chosen for its own jobs"
    if batch.gpu_sets:
        return "it has several GPUs, each with members and a runner of its own"
    if batch.is_array:
        return "it is an element of a job array"
    if place.is_one_of_several:
        # A number is given once in the whole submission.
        return "its submission is several Slurm jobs"
    first = pack.candidates[0].job
    reason = compute_reason_not_to_join(first, policy) or compute_own_meaning(first.group)
    if reason or pack.plan.request is not None:
        return reason
    # As it was handed to sbatch, and Slurm does not let it be taken back.
    fixed = [name for name, _ in first.shape if name not in GROWABLE]
    return f"it was submitted with --{fixed[0]}" if fixed else ""


def encode_environment(environment: Mapping[str, str]) -> bytes:
    """A captured environment as it is written alongside the member."""
    return build_environment_block(
        {
            name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
            for name, value in environment.items()
        }
    )
