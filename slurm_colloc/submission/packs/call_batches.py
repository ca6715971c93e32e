"""The Slurm jobs that the packs of a call become, and which element each pack is; pure.

Also: what a pack asks of its node's prolog: a token in the comment, and nodes that have one.

One number has one meaning: the index of a pack in its job array is none that the user could mean
by a task, so that `4711_1` never names a pack (`model.job_ids` reads it as member 4711/1).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from slurm_colloc.errors import SlurmRefused, UsageProblem
from slurm_colloc.model.comment_token import (
    COMMENT_MAX_BYTES,
    PACK_TOKEN,
    Token,
    append_token,
    parse_token,
)
from slurm_colloc.model.job_values import join_conditions
from slurm_colloc.model.late_definitions import dataclass, late_pattern, replace
from slurm_colloc.model.plan import PackPlan, PackRequest, SharingMode
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import name_gpu_set
from slurm_colloc.submission.plan.plan_call import PlannedPack

MAX_ARRAY_SIZE = 1001
"""Slurm's default (slurm.conf(5)), where it cannot be read."""


@dataclass(frozen=True)
class Batch:
    """The packs that become one Slurm job.

    Attributes:
        elements: The packs of each element of the job array, or of the one job: one for each of its
            GPU sets. All elements have as many, of the same sizes.
        indices: The elements' numbers.
        is_array: They are elements of a job array.
        packs_at_once: How many of them may run at the same time; None for no limit.
        name: The Slurm job's, which is that of its first job.
        group: The options for Slurm in which all members agree.
        requests: For each GPU set what is asked for it: of all elements the largest of each; none
            for jobs alone.
        after: The place, among the batches of the call, of the one that must be over first; None
            for none.
    """

    elements: tuple[tuple[PlannedPack, ...], ...]
    indices: tuple[int, ...]
    is_array: bool
    packs_at_once: int | None
    name: str
    group: tuple[tuple[str, str], ...]
    requests: tuple[PackRequest, ...]
    after: int | None = None

    @property
    def packs(self) -> tuple[PlannedPack, ...]:
        """The packs of all elements."""
        return tuple(pack for element in self.elements for pack in element)

    @property
    def gpu_sets(self) -> tuple[int, ...]:
        """The GPUs of each set; none where an element has one."""
        sets = len(self.elements[0])
        return tuple(request.gpus for request in self.requests) if sets > 1 else ()

    @property
    def request(self) -> PackRequest | None:
        """What sbatch is asked for; None for jobs alone."""
        return _add_requests(self.requests) if self.requests else None

    def list_parts(self, submission: str) -> list[tuple[str, tuple[int, ...]]]:
        """What its packs are called in the state: a part of the call for each GPU set.

        Args:
            submission: The name of its packs.
        """
        return [
            (name_gpu_set(submission, number), self.indices)
            for number in range(len(self.elements[0]))
        ]


@dataclass(frozen=True)
class PlaceInCall:
    """How a Slurm job stands to the others of its call; nothing where there are none.

    Attributes:
        shown_id: The id of the first, after which all members are named; empty for the first.
        parts: All of them, see PackRecord, for the first; for the others their own GPU sets, where
            they have several.
        after_job: The one that must be over first; empty for none.
    """

    shown_id: str = ""
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    after_job: str = ""

    @property
    def is_one_of_several(self) -> bool:
        """The call became several Slurm jobs, or one with several GPU sets."""
        return bool(self.shown_id or self.parts)


ONLY_ONE = PlaceInCall()
"""The call became one Slurm job."""


def find_wait(packs: Sequence[PlannedPack]) -> str | None:
    """What Slurm is told that an element waits for, where its members wait for members of others.

    Returns:
        A value of --dependency, empty for nothing; None where it is the user's own.
    """
    jobs = [candidate.job for pack in packs for candidate in pack.candidates]
    if not any(job.depends for job in jobs):
        return None
    return join_conditions(job.slurm_dependency for job in jobs)


def may_need_array(packs: Sequence[PlannedPack]) -> bool:
    """How large an array may be counts for these packs."""
    return len(packs) > 1 or any(
        candidate.job.array_task is not None and pack.plan.request is None
        for pack in packs
        for candidate in pack.candidates
    )


def read_array_size(config: Mapping[str, str]) -> int:
    """MaxArraySize, from what `scontrol show config` says."""
    text = config.get("MaxArraySize", "")
    return int(text) if text.isdecimal() else MAX_ARRAY_SIZE


def group_into_batches(
    packs: Sequence[PlannedPack],
    packs_at_once: int | None,
    max_array_size: int = MAX_ARRAY_SIZE,
) -> list[Batch]:
    """Packs that ask Slurm for the same kind of thing become elements of one array.

    Tasks of an array that run alone keep the user's own task numbers as elements, so that Slurm
    shows them as sbatch would. Where an array has no room for all packs there are several.

    Args:
        packs: The packs of a plan.
        packs_at_once: How many of them may run at the same time; None for no limit.
        max_array_size: Slurm's MaxArraySize: the largest index, and one.

    Raises:
        SlurmRefused: A task that runs alone has an index that Slurm does not take.
    """
    buckets: dict[object, list[tuple[PlannedPack, ...]]] = {}
    for number, element in enumerate(_list_elements(packs)):
        plan, first = element[0].plan, element[0].candidates[0].job
        wait = find_wait(element)
        key: object
        if plan.request is not None:
            # A job array has one comment, and so one layout to ask its nodes for.
            words = tuple(instance.word for instance in plan.layout)
            sizes = tuple(pack.plan.request.gpus for pack in element if pack.plan.request)
            key = ("shared", plan.group, plan.request.gpu_type, wait, words, sizes)
        elif first.array_task is not None:
            key = ("tasks", plan.group, first.shape, wait)
        else:
            key = ("lone", number)
        buckets.setdefault(key, []).append(element)
    taken = {c.job.number for pack in packs for c in pack.candidates}
    batches = [
        _build_batch(part, indices)
        for alike in buckets.values()
        for part, indices in _divide(alike, taken, max_array_size)
    ]
    return _limit(batches, packs_at_once)


def _list_elements(packs: Sequence[PlannedPack]) -> list[tuple[PlannedPack, ...]]:
    """The packs of each Slurm job or element of an array; larger GPU sets come first."""
    elements: dict[object, list[PlannedPack]] = {}
    for place, pack in enumerate(packs):
        number = pack.plan.slurm_job
        key = ("alone", place) if number is None else ("with others", number)
        elements.setdefault(key, []).append(pack)
    return [tuple(sorted(element, key=_count_gpus, reverse=True)) for element in elements.values()]


def _count_gpus(pack: PlannedPack) -> int:
    return 0 if pack.plan.request is None else pack.plan.request.gpus


def _divide(
    alike: Sequence[tuple[PlannedPack, ...]], taken: Collection[int], max_array_size: int
) -> list[tuple[Sequence[tuple[PlannedPack, ...]], tuple[int, ...]]]:
    """The arrays of elements that are alike; one without an index is a job by itself."""
    first = alike[0][0]
    if first.plan.request is None and first.candidates[0].job.array_task is not None:
        indices = tuple(element[0].candidates[0].job.number for element in alike)
        if max(indices) >= max_array_size:
            raise SlurmRefused(
                "sbatch: Batch job submission failed: Invalid job array specification",
                hint=f"task {max(indices)} runs alone, and Slurm takes indices up to "
                f"{max_array_size - 1} (MaxArraySize)",
            )
        return [(alike, indices)]
    if len(alike) == 1:
        return [(alike, ())]
    free = choose_elements(len(alike), taken, max_array_size)
    size = max(1, len(free))
    parts = [alike[at : at + size] for at in range(0, len(alike), size)]
    return [(part, free[-len(part) :] if len(part) > 1 else ()) for part in parts]


def choose_elements(count: int, taken: Collection[int], max_array_size: int) -> tuple[int, ...]:
    """Indices for packs, the largest that there are, ascending; fewer where there are no more.

    Args:
        count: How many.
        taken: Numbers of the user's own: tasks and members of the call.
        max_array_size: Slurm's MaxArraySize.
    """
    found: list[int] = []
    for index in range(max_array_size - 1, -1, -1):
        if len(found) == count:
            break
        if index not in taken:
            found.append(index)
    return tuple(reversed(found))


def _build_batch(elements: Sequence[tuple[PlannedPack, ...]], indices: tuple[int, ...]) -> Batch:
    first = elements[0][0]
    requests = [
        [pack.plan.request for pack in of_set if pack.plan.request is not None]
        for of_set in zip(*elements, strict=True)
    ]
    return Batch(
        elements=tuple(elements),
        indices=indices or (0,),
        is_array=bool(indices),
        packs_at_once=None,
        name=first.candidates[0].job.name,
        group=first.plan.group,
        requests=tuple(_merge_requests(alike) for alike in requests if alike),
    )


def _limit(batches: Sequence[Batch], packs_at_once: int | None) -> list[Batch]:
    """Batches of which no more packs run at the same time than may: they wait for each other."""
    if packs_at_once is None:
        return list(batches)
    largest = max((len(batch.elements) for batch in batches), default=1)
    # As many side by side as the limit has room for.
    lanes = max(1, packs_at_once // largest)
    return [
        replace(
            batch,
            packs_at_once=packs_at_once if batch.is_array else None,
            after=place - lanes if place >= lanes else None,
        )
        for place, batch in enumerate(batches)
    ]


def find_place(
    batches: Sequence[Batch], names: Sequence[str], job_ids: Sequence[str]
) -> PlaceInCall:
    """How the next Slurm job of a call stands to those before it.

    Args:
        batches: All of them.
        names: The name of each in the state.
        job_ids: The ids of those that are submitted.
    """
    own = batches[len(job_ids)]
    after_job = "" if own.after is None else job_ids[own.after]
    if job_ids:
        return find_later_place(own, names[len(job_ids)], job_ids[0], after_job=after_job)
    parts = list_parts(batches, names)
    return PlaceInCall(parts=parts if len(parts) > 1 else (), after_job=after_job)


def find_later_place(batch: Batch, name: str, shown_id: str, *, after_job: str = "") -> PlaceInCall:
    """How a Slurm job stands to a submission of which it becomes a part.

    Args:
        batch: The Slurm job.
        name: Its name in the state.
        shown_id: The submission's id.
        after_job: The Slurm job that must be over first; empty for none.
    """
    parts = tuple(batch.list_parts(name))
    return PlaceInCall(shown_id, parts if len(parts) > 1 else (), after_job)


def list_parts(
    batches: Sequence[Batch], names: Sequence[str]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The parts of a call: the GPU sets of its Slurm jobs, each by its name in the state.

    Args:
        batches: The Slurm jobs.
        names: What the packs of each are called.
    """
    pairs = zip(batches, names, strict=True)
    return tuple(part for batch, name in pairs for part in batch.list_parts(name))


def _add_requests(requests: Sequence[PackRequest]) -> PackRequest:
    """What GPU sets ask for together, for as long as the longest of them."""
    largest = _merge_requests(requests)
    memories = [request.host_memory_mb for request in requests]
    return replace(
        largest,
        gpus=sum(request.gpus for request in requests),
        cpus=sum(request.cpus for request in requests),
        host_memory_mb=None if None in memories else sum(m for m in memories if m is not None),
    )


def _merge_requests(requests: Sequence[PackRequest]) -> PackRequest:
    memories = [request.host_memory_mb for request in requests]
    is_unlimited = any(request.is_unlimited for request in requests)
    times = [None if is_unlimited else request.time_limit_s for request in requests]
    return PackRequest(
        gpus=requests[0].gpus,
        gpu_type=requests[0].gpu_type,
        cpus=max(request.cpus for request in requests),
        host_memory_mb=None if None in memories else max(m for m in memories if m is not None),
        time_limit_s=None if None in times else max(t for t in times if t is not None),
        is_unlimited=is_unlimited,
    )


# ----
# What a pack asks of its node's prolog: a token in the comment, and nodes that have one; pure.

_NO_ROOM = (
    "the node's prolog is not asked for MPS: --comment leaves no room for it; the pack starts MPS "
    "itself"
)
_NO_ROOM_FOR_MIG = (
    "the node's prolog is not asked for MIG: --comment leaves no room for it; the pack shares in "
    "another way"
)
_NO_SETS = (
    "the node's prolog is not asked for MPS: it knows no GPU sets of several GPUs; each starts MPS "
    "itself"
)
# What goes on with `&` as it is, and what needs parentheses first; counts and brackets are neither.
_PLAIN = late_pattern(r"[\w.:=/-]+(?:[&,][\w.:=/-]+)*")
_WITH_OR = late_pattern(r"[\w.:=/-]+(?:[&,|][\w.:=/-]+)*")


@dataclass(frozen=True)
class HookChoice:
    """Whether packs ask for the hooks of their nodes; see settings.Settings.

    Attributes:
        use: `auto` (where a node has them), `always` (on nodes that have them) or `never`.
        feature: The feature of nodes that have them; empty for none.
    """

    use: str = "auto"
    feature: str = ""

    @classmethod
    def of(cls, settings: Settings) -> HookChoice:
        """The choice that the settings make."""
        return cls(settings.hooks, settings.hook_feature)


@dataclass(frozen=True)
class HookRequest:
    """What packs tell Slurm, their hooks included.

    Attributes:
        comment: The job's comment: the user's own words, the mark of csub, the token.
        constraint: The node features; None where nothing was asked for.
        notes: What could not be asked for, and why; a sentence each.
    """

    comment: str
    constraint: str | None
    notes: tuple[str, ...] = ()


def build_hook_request(
    packs: Iterable[PackPlan],
    group: Mapping[str, str],
    submission: str,
    hooks: HookChoice,
    *,
    gpu_sets: Sequence[int] = (),
) -> HookRequest:
    """What packs of one Slurm job ask for.

    Args:
        packs: The packs.
        group: The options that all members share.
        submission: The submission's id.
        hooks: Whether they ask for hooks.
        gpu_sets: The GPUs of each set of the Slurm job; none where it has one set.

    Raises:
        UsageProblem: The user's comment leaves no room for csub's mark.
    """
    mark = PACK_TOKEN.format(submission=submission)
    own = group.get("comment", "")
    comment = f"{own} {mark}" if own else mark
    length = len(comment.encode("utf-8", "surrogateescape"))
    if length > COMMENT_MAX_BYTES:
        raise UsageProblem(
            f"--comment is too long: Slurm takes {COMMENT_MAX_BYTES} bytes, and csub needs "
            f"{len(mark) + 1} of them to find the job again",
            hint=f"shorten it by {length - COMMENT_MAX_BYTES} bytes",
        )
    constraint = group.get("constraint")
    token = choose_token(packs, gpu_sets)
    if hooks.use == "never" or token is None:
        return HookRequest(comment, constraint)
    if max(gpu_sets, default=1) > 1:
        return HookRequest(comment, constraint, (_NO_SETS,))
    notes = []
    longer = append_token(comment, token)
    if parse_token(longer) is None:
        notes.append(_NO_ROOM_FOR_MIG if token.mode.startswith("mig=") else _NO_ROOM)
    elif hooks.use == "always" and hooks.feature:
        joined = join_constraint(constraint or "", hooks.feature)
        if joined is None:
            notes.append(
                f"nodes with {hooks.feature} are not asked for: that cannot be said together "
                f"with --constraint={constraint}"
            )
        else:
            constraint = joined
    return HookRequest(longer, constraint, tuple(notes))


def choose_token(packs: Iterable[PackPlan], gpu_sets: Sequence[int] = ()) -> Token | None:
    """What packs of one Slurm job ask the hooks for; None for nothing.

    All of those with MIG instances have the same layout (`call_batches`). A prolog knows daemons
    for all GPUs of a job, and for each.
    """
    packs = list(packs)
    # One comment for all: none is slowed down by more than its own limit would.
    limits = [pack.power_limit_w for pack in packs]
    power_w = max(limits) if all(limits) else 0
    for pack in packs:
        if pack.layout:
            words = "+".join(instance.word for instance in pack.layout)
            return Token(f"mig={words}", "all", power_w)
    if any(pack.mode is SharingMode.MPS for pack in packs):
        return Token("mps", "each" if gpu_sets else "all", power_w)
    return Token("off", "all", power_w) if power_w else None


def join_constraint(own: str, feature: str) -> str | None:
    """The user's `--constraint` and one feature more; None where Slurm has no words for both."""
    if not own:
        return feature
    if _PLAIN.fullmatch(own):
        return own if feature in re.split("[&,]", own) else f"{own}&{feature}"
    return f"({own})&{feature}" if _WITH_OR.fullmatch(own) else None


def extend_comment(
    comment: str, submission: str, mode: SharingMode, hooks: HookChoice
) -> tuple[str, tuple[str, ...]]:
    """The comment of a job whose pack has grown; as it is where it needs no token or takes none.

    Args:
        comment: As Slurm shows it. Without csub's mark at its end something is missing, or others
            have written behind it; it is then left alone.
        submission: The pack's submission.
        mode: How the pack is now to share.
        hooks: Whether it asks for hooks.

    Returns:
        The comment, and what is to be noted of it.
    """
    if hooks.use == "never" or mode is not SharingMode.MPS:
        return comment, ()
    if not comment.endswith(PACK_TOKEN.format(submission=submission)):
        return comment, ()
    longer = append_token(comment, Token("mps", "all"))
    return longer, (_NO_ROOM,) if longer == comment else ()
