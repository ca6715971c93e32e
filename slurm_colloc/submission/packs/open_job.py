"""A single job as a pack that is open for others, where that costs nothing or was asked for.

Also: what Slurm says of a Slurm job that is not submitted: `sbatch --test-only`; letting a waiting
Slurm job ask for more, in place: it keeps its id and its place in the queue.

docs/decisions/0049 says why Slurm is asked first.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from slurm_colloc.errors import CollocError, SlurmError, SlurmRefused
from slurm_colloc.model.late_definitions import late_pattern, replace
from slurm_colloc.model.plan import Goal, PackPlan, PackRequest, Policy
from slurm_colloc.model.quantities import format_time_limit, parse_host_memory_mb
from slurm_colloc.planning.billing import compute_billing, read_billing_rule
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.unknown_packs import plan_opened
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import QUERY_TIMEOUT_S
from slurm_colloc.slurm.slurm_commands import SlurmAccess, parse_moment
from slurm_colloc.store.all_packs import make_submission_id
from slurm_colloc.submission.jobs.call_jobs import Candidate
from slurm_colloc.submission.packs.build_packs import build_options, compute_closed
from slurm_colloc.submission.packs.call_batches import Batch, HookChoice, group_into_batches
from slurm_colloc.submission.packs.submit_batch import build_batch_environment
from slurm_colloc.submission.plan.plan_call import (
    CallPlan,
    Opening,
    PlannedPack,
    PlannedPart,
    compute_measure_s,
)
from slurm_colloc.submission.plan.split_call import complete_capacity
from slurm_colloc.submission.plan.target_nodes import Destination, Destinations, match_gpu_type

# ---- What Slurm says of a Slurm job that is not submitted: `sbatch --test-only` ------------------

_START = late_pattern(r"\bto start at (\S+)")


def ask_slurm(
    batch: Batch,
    settings: Settings,
    slurm: SlurmAccess,
    directory: str,
    *,
    timeout_s: float = QUERY_TIMEOUT_S,
) -> tuple[tuple[str, ...], str]:
    """What would be noted with a batch that is not submitted, and what Slurm says of it.

    Args:
        batch: The packs of the Slurm job.
        settings: The settings.
        slurm: Slurm.
        directory: The submission directory.
        timeout_s: When to give up.

    Raises:
        SlurmError: Slurm would not take it, or does not answer.
    """
    hooks = HookChoice.of(settings)
    options = build_options(batch, make_submission_id(), "/dev/null", hooks=hooks)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "pack.sh")
        script.write_text("#!/bin/sh\n")
        said = slurm.check(
            str(script),
            options.words,
            environment=build_batch_environment(os.environ),
            directory=directory,
            timeout_s=timeout_s,
        )
    return options.notes, said


def parse_start(said: str) -> float | None:
    """When Slurm expects to start a job, in seconds since the epoch; None where it does not say."""
    match = _START.search(said)
    return None if match is None else parse_moment(match[1])


# ---- A single job as a pack that is open for others, where that costs nothing or was asked for ---

Answer = TypeVar("Answer")

ASK_S = 5.0
"""How long Slurm may take to tell when it would start a job; its user waits meanwhile."""

LATER_S = 60.0
"""A start that is later by no more than this is as soon: Slurm looks at its queue that often."""


def open_job(
    made: CallPlan,
    opening: Opening,
    settings: Settings,
    slurm: SlurmAccess,
    *,
    directory: str,
) -> CallPlan:
    """The plan of a call, its only job opened for others where it can be and is worth it.

    Args:
        made: The plan.
        opening: How it is to be opened.
        settings: The settings.
        slurm: Slurm, which is asked only where the job could be opened.
        directory: The submission directory.
    """
    if len(made.packs) != 1 or made.packs[0].plan.request is not None:
        return made
    (lone,) = made.packs
    if not lone.candidates[0].job.gpus:
        return made
    (batch,) = group_into_batches([lone], None)
    policy = made.parts[0].policy
    obstacle = compute_closed(batch, lone, policy)
    if obstacle:
        # That it runs alone, and why, is told anyway.
        return _note(made, obstacle) if opening.is_wanted else made
    if not opening.is_wanted and policy.goal is not Goal.THROUGHPUT:
        return _note(made, f"--goal is {policy.goal}")
    try:
        return _open(made, batch, policy, opening, settings, slurm, directory)
    except CollocError as problem:
        return _note(made, str(problem))


def _open(  # noqa: PLR0917 - what was planned, and what is asked
    made: CallPlan,
    batch: Batch,
    policy: Policy,
    opening: Opening,
    settings: Settings,
    slurm: SlurmAccess,
    directory: str,
) -> CallPlan:
    candidate = made.packs[0].candidates[0]
    policy = replace(policy, measure_s=compute_measure_s([candidate], settings))
    part = made.parts[0].part
    destination = part.destination
    if destination is None or part.asks_for is not None:
        # A single job asks for a GPU of any type.
        destination = Destinations(settings, slurm).read(candidate.job)
    knowledge = part.knowledge
    match = match_gpu_type(knowledge.gpu_models, destination, dict(candidate.job.group))
    if match.is_other or match.gpu_type is not None:
        knowledge = knowledge.as_of_another_gpu(match.reason)
    capacity = complete_capacity(destination.capacity, knowledge)
    question = Question(
        [candidate.job], knowledge.profiles, capacity, policy, knowledge.calibration
    )
    opened = plan_opened(question, opening.places)
    if isinstance(opened, str):
        return _note(made, opened)
    if opening.is_wanted:
        told = (
            "Slurm was not asked what that costs: it may start later than alone, and is charged "
            "for all that it asks for"
        )
    else:
        assert opened.request is not None
        refusal = _compare_billing(candidate, opened.request, destination, slurm)
        refusal = refusal or _compare_starts(batch, opened, candidate, settings, slurm, directory)
        if refusal:
            return _note(made, refusal)
        told = "Slurm would start it as soon as alone, and charges no more for it"
    opened = replace(opened, reasons=(*opened.reasons, told))
    part = replace(part, capacity=capacity, knowledge=knowledge)
    if opening.is_wanted:
        # Also where the id of the call is captured, and it joins no pack itself.
        policy = replace(policy, join="auto")
    made = replace(made, policy=policy)
    return _replace(made, opened, replace(made.parts[0], part=part, policy=policy))


def _compare_billing(
    candidate: Candidate, request: PackRequest, destination: Destination, slurm: SlurmAccess
) -> str:
    """Why Slurm charges more for a request than for the job alone; empty where it does not."""
    job = candidate.job
    names = dict(job.group).get("partition", "").split(",")
    if names == [""]:
        names = sorted({shape.partition for shape in destination.shapes if shape.is_default})
    if not names:
        return "which partition it goes to is not known, nor what that charges"
    alone = PackRequest(request.gpus, job.gpu_type, job.cpus, job.host_memory_mb, None)
    config, *partitions = _ask_together(
        slurm.read_config, *(partial(slurm.read_partition, name) for name in names)
    )
    for name, partition in zip(names, partitions, strict=True):
        try:
            rule = read_billing_rule(partition, config)
        except ValueError as problem:
            return f"what partition {name} charges is not known: {problem}"
        own, more = compute_billing(rule, alone), compute_billing(rule, request)
        if more > own:
            return f"partition {name} would charge {more:g} for it instead of {own:g}"
    return ""


def _compare_starts(  # noqa: PLR0917 - both requests, and whom to ask
    batch: Batch,
    opened: PackPlan,
    candidate: Candidate,
    settings: Settings,
    slurm: SlurmAccess,
    directory: str,
) -> str:
    """Why Slurm would start a request later than the job alone; empty where it would not."""
    (wider,) = group_into_batches([PlannedPack(opened, (candidate,))], None)

    def ask(asked: Batch) -> float | str:
        try:
            said = ask_slurm(asked, settings, slurm, directory, timeout_s=ASK_S)[1]
        except SlurmError as problem:
            return problem.message
        start = parse_start(said)
        return f"sbatch --test-only says {' '.join(said.split())}" if start is None else start

    alone, others = _ask_together(partial(ask, batch), partial(ask, wider))
    for start in (alone, others):
        if isinstance(start, str):
            return f"Slurm does not say when it would start: {start}"
    assert isinstance(alone, float)
    assert isinstance(others, float)
    if others - alone > LATER_S:
        return f"Slurm would start it {_describe_span(others - alone)} later than alone"
    return ""


def _ask_together(*questions: Callable[[], Answer]) -> list[Answer]:
    # Only a job that may be opened waits for its import.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(questions)) as threads:
        return [asked.result() for asked in [threads.submit(ask) for ask in questions]]


def _describe_span(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def _note(made: CallPlan, why: str) -> CallPlan:
    plan = made.packs[0].plan
    told = f"asks for nothing for jobs that join while it runs: {why}"
    sharing = replace(plan.sharing, not_opened=told)
    noted = replace(plan, reasons=(*plan.reasons, told), sharing=sharing)
    return _replace(made, noted, made.parts[0])


def _replace(made: CallPlan, pack: PackPlan, part: PlannedPart) -> CallPlan:
    packs: Sequence[PackPlan] = (pack,)
    return replace(
        made,
        plan=replace(made.plan, packs=tuple(packs)),
        packs=(PlannedPack(pack, made.packs[0].candidates),),
        parts=(replace(part, plan=replace(part.plan, packs=tuple(packs))),),
    )


# ----
# Letting a waiting Slurm job ask for more, in place: it keeps its id and its place in the queue.
#
# Slurm lets a user raise CPUs, host memory and time of a pending job up to the limits of partition
# and QoS, and refuses it once the job has started (seen on 22.05 to 26.05).


class Growth:
    """One change of what a pending job asks for, which can be taken back.

    Args:
        slurm: Slurm.
        job_id: The job.
        comments: Its present comment and its new one.
        inherited: Descriptors of the pack's lock: a change that is on its way when csub is killed
            must not overtake the next one.
    """

    def __init__(
        self,
        slurm: SlurmAccess,
        job_id: str,
        *,
        comments: tuple[str, str] = ("", ""),
        inherited: Sequence[int] = (),
    ) -> None:
        self._slurm = slurm
        self._job_id = job_id
        self._old_comment, self._new_comment = comments
        self._inherited = inherited
        self._before: Mapping[str, str] = {}

    def grow(self, request: PackRequest) -> str:
        """Let the job ask for this; why that cannot be, or an empty string.

        Args:
            request: What it is to ask for.
        """
        try:
            fields = self._slurm.read_job(self._job_id)
            if fields is None or fields.get("JobState") != "PENDING":
                return "it has just started"
            self._before = fields
            self._update({**build_changes(request), **self._comment(self._new_comment)})
        except SlurmRefused as error:
            # Slurm may have refused one value and taken the others (seen on 22.05 to 26.05).
            self.take_back()
            return f"Slurm does not let it grow ({error.message})"
        except SlurmError as error:
            return f"Slurm did not answer ({error.message})"
        return ""

    def take_back(self) -> None:
        """Let the job ask for what it asked for before, as far as Slurm allows it."""
        with contextlib.suppress(SlurmError):
            changes = build_changes_back(self._before)
            self._update({**changes, **self._comment(self._old_comment)})

    def _comment(self, comment: str) -> dict[str, str]:
        return {} if self._old_comment == self._new_comment else {"Comment": comment}

    def _update(self, changes: Mapping[str, str]) -> None:
        self._slurm.update_job(self._job_id, changes, inherited=self._inherited)


def build_changes(request: PackRequest) -> dict[str, str]:
    """What `scontrol update` is given so that a waiting pack asks for a request.

    CPUs need both fields: with NumCPUs alone a job of `--ntasks=1` is held for ever, with
    CPUsPerTask alone it gets one CPU (seen on 22.05 to 26.05).
    """
    changes = {
        "NumCPUs": str(request.cpus),
        "CPUsPerTask": str(request.cpus),
    }
    if request.host_memory_mb is not None:
        changes["MinMemoryNode"] = str(request.host_memory_mb)
    if request.is_unlimited or request.time_limit_s is not None:
        changes["TimeLimit"] = format_time_limit(request.time_limit_s)
    return changes


def build_changes_back(fields: Mapping[str, str]) -> dict[str, str]:
    """What `scontrol update` is given so that a job is what `scontrol show job` said it was."""
    changes: dict[str, str] = {}
    for shown, field in (
        ("NumCPUs", "NumCPUs"),
        ("CPUs/Task", "CPUsPerTask"),
        ("TimeLimit", "TimeLimit"),
    ):
        if shown in fields:
            value = fields[shown]
            # A range shows as 4-8, what was not asked for as N/A.
            value = value if shown == "TimeLimit" else value.partition("-")[0]
            if shown == "TimeLimit" or value.isdigit():
                changes[field] = value
    for field in ("MinMemoryNode", "MinMemoryCPU"):
        with contextlib.suppress(KeyError, ValueError):
            changes[field] = str(parse_host_memory_mb(fields[field]))
    return changes
