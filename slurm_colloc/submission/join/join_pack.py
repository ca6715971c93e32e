"""Putting a job into a pack that is already there, instead of a new one.

Also: how a job would stand in an open pack, or why it cannot join it; changes nothing.

Everything that changes a pack after its submission happens under the pack's lock, which its runner
also takes for the moment in which it starts. A pack that waits grows first (one `scontrol update`,
which Slurm refuses once the pack has started), and then the job enters its inbox by one rename. A
pack that runs is only entered, where a place is free. Whatever happens before the rename leaves
the job out, whatever happens after it leaves it in.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_colloc.errors import Interrupted, SlurmError, StateError, UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.measured_curve import DegreeState, describe_measured
from slurm_colloc.model.member import MemberId, SlurmJobState
from slurm_colloc.model.plan import Capacity, MemberPlan, PackPlan, Policy, SharingMode
from slurm_colloc.model.quantities import parse_time_limit_s
from slurm_colloc.model.why_not_now import say_no_more
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.join_fit import (
    RunningPack,
    compute_reason_not_to_join,
    merge_policies,
    plan_pending_join,
    plan_running_join,
    settle_bound,
)
from slurm_colloc.planning.same_kind import compute_contradiction, find_difference
from slurm_colloc.planning.unknown_packs import keep_open
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import HeldInterrupts, hold_interrupts
from slurm_colloc.slurm.slurm_commands import SlurmAccess, SlurmJob
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import State, make_submission_id
from slurm_colloc.store.atomic_files import Lock, hold_lock
from slurm_colloc.store.member_states import (
    find_next_number,
    is_held,
    name_member,
    read_attempt,
    read_state,
    remove_environment,
)
from slurm_colloc.store.pack_directory import (
    MemberSpec,
    NewMember,
    PackRecord,
    drop_claimed,
    drop_unentered,
    has_entered,
    list_claimed,
    list_members,
    read_ended,
    read_setup,
    read_spec,
    write_joiner,
    write_record,
    write_spec,
)
from slurm_colloc.store.runner_requests import DegreeRecord, read_degree
from slurm_colloc.submission.jobs.call_jobs import Call, Candidate
from slurm_colloc.submission.jobs.job_options import list_output_files, list_renamed_files
from slurm_colloc.submission.packs.build_packs import encode_environment
from slurm_colloc.submission.packs.call_batches import HookChoice, extend_comment
from slurm_colloc.submission.packs.open_job import Growth
from slurm_colloc.submission.packs.own_ids import OwnIds
from slurm_colloc.submission.plan.known_jobs import Knowledge, gather_knowledge
from slurm_colloc.submission.plan.plan_call import compute_measure_s
from slurm_colloc.submission.plan.split_call import complete_capacity
from slurm_colloc.submission.plan.target_nodes import (
    Destinations,
    describe_asked_type,
    match_gpu_type,
)
from slurm_colloc.submission.upkeep.sweep import OpenPack, find_job

# ---- How a job would stand in an open pack, or why it cannot join it; changes nothing ------------


@dataclass(frozen=True)
class Joiner:
    """The job that wants to join, and what it is measured by."""

    candidate: Candidate
    policy: Policy
    destinations: Destinations
    settings: Settings


@dataclass(frozen=True)
class Present:
    """A member that has not ended."""

    number: int
    spec: MemberSpec


@dataclass(frozen=True)
class Chosen:
    """A pack that has room, and how the job would stand in it."""

    record: PackRecord
    present: tuple[Present, ...]
    planned: PackPlan | MemberPlan
    attempt: int
    places: int

    @property
    def own_plan(self) -> MemberPlan:
        """The plan of the job itself."""
        return self.planned if isinstance(self.planned, MemberPlan) else self.planned.members[-1]


@dataclass(frozen=True)
class Prospect:
    """One pack, and the job that would join it.

    Attributes:
        state: The state directory.
        joiner: The job, and what it is measured by.
        pack_id: The pack.
        job: Its Slurm job.
    """

    state: State
    joiner: Joiner
    pack_id: str
    job: SlurmJob

    @property
    def path(self) -> Path:
        """The pack's directory."""
        return self.state.pack_path(self.pack_id)

    def choose(self) -> Chosen | str:
        """How the job would stand in the pack, or why it cannot join it."""
        record = self.state.read_pack(self.pack_id)
        if record is None or self._is_over():
            return "it is over"
        if record.policy is None or record.closed:
            return record.closed
        contradiction = compute_contradiction(record.policy, self.joiner.policy)
        if contradiction:
            return contradiction
        policy = merge_policies(record.policy, self.joiner.policy)
        attempt = read_attempt(self.path)
        present = self._read_present(attempt)
        if not present:
            return "its members have ended"
        if all(is_held(self.path, member.number) for member in present):
            return "it is held"
        gpu = self._find_gpu(record, present)
        planned = self._plan(record, policy, present, gpu)
        if isinstance(planned, str):
            return planned
        places = record.degree
        if isinstance(planned, PackPlan):
            places = max(policy.degree, planned.degree)
        return Chosen(record, tuple(present), planned, attempt, places)

    @property
    def is_running(self) -> bool:
        """The pack runs, it does not wait any more."""
        return self.job.state is SlurmJobState.RUNNING

    def _plan(
        self,
        record: PackRecord,
        policy: Policy,
        present: Sequence[Present],
        gpu: PackGpu,
    ) -> PackPlan | MemberPlan | str:
        other = self._find_shared_file(record, present)
        if other is not None:
            return f"it would write to the output file of {other}"
        assert record.policy is not None
        jobs = [member.spec.job for member in present]
        new = settle_bound(self.joiner.candidate.job, record.policy, self.joiner.policy)
        if self.is_running:
            running = self._describe_running(record, policy, present)
            question = gpu.ask([*jobs, new], policy)
            return running if isinstance(running, str) else plan_running_join(running, question)
        if self.job.reason.startswith("JobHeld"):
            return "it is held"
        planned = plan_pending_join(gpu.ask([*jobs, new], policy))
        if isinstance(planned, PackPlan) and record.open_for:
            planned = keep_open(planned, record.request, record.degree)
        if isinstance(planned, PackPlan) and gpu.gpu_type not in (None, record.gpu_type):
            told = describe_asked_type(str(gpu.gpu_type))
            planned = replace(planned, reasons=(*planned.reasons, told))
        return planned

    def _find_gpu(self, record: PackRecord, present: Sequence[Present]) -> PackGpu:
        candidates = []
        for member in present:
            script = self.path / "members" / inbox.format_number(member.number) / "script"
            content = b""
            with contextlib.suppress(OSError):
                content = script.read_bytes()
            candidates.append(Candidate(member.spec.job, content, {}))
        return find_pack_gpu(record, candidates, self.joiner)

    def _is_over(self) -> bool:
        """It is not looked after any more: Slurm showed its job when somebody asked last."""
        is_open = os.path.lexists(self.state.open / self.pack_id)
        return not is_open or read_ended(self.path) is not None

    def _read_present(self, attempt: int) -> list[Present]:
        present = []
        for number in list_members(self.path):
            folder = self.path / "members" / inbox.format_number(number)
            record = read_state(self.path, number, attempt)
            if os.path.lexists(folder / "cancelled") or (record and record.is_final):
                continue
            present.append(Present(number, read_spec(self.path, number)))
        return present

    def _find_shared_file(
        self, record: PackRecord, present: Sequence[Present], *, alone: bool = False
    ) -> MemberId | None:
        """The member in whose file the job would write, by whatever patterns they were given.

        Args:
            record: The pack.
            present: The members that have not ended.
            alone: It is named as sbatch would, see `MemberSpec.names_alone`.
        """
        if self.joiner.candidate.job.output is None and self.joiner.candidate.job.error is None:
            return None
        number = find_next_number([*list_claimed(self.path), *record.members])
        job = replace(self.joiner.candidate.job, number=number)
        files = list_output_files(job, alone=alone, job_id=self.job.job_id)
        for member in present:
            name = name_member(self.path, self.job.job_id, member.number)
            theirs = list_output_files(
                member.spec.job, alone=member.spec.names_alone, job_id=name.job
            )
            if files & theirs:
                return name
        return None

    def _describe_running(
        self, record: PackRecord, policy: Policy, present: Sequence[Present]
    ) -> RunningPack | str:
        if record.request is None:
            return "it runs alone"
        degree = read_degree(self.path, read_attempt(self.path))
        no_room = explain_no_room(degree, len(present), self.joiner.candidate.job.gpu_memory_mb)
        return no_room or RunningPack(
            request=record.request,
            degree=record.degree,
            time_left_s=_parse_time_left_s(self.job.time_left),
            plans=tuple(member.spec.plan for member in present),
            mode=self._find_mode(record, policy),
        )

    def _find_mode(self, record: PackRecord, policy: Policy) -> SharingMode:
        """The sharing mode that really holds: the node may have chosen another than was planned."""
        with contextlib.suppress(StateError, ValueError):
            setup = read_setup(self.path)
            # A new attempt may be on another node, and has not written its own at once.
            if setup is not None and setup.attempt == read_attempt(self.path):
                return SharingMode(setup.mode)
        return policy.mode if record.mode is SharingMode.EXCLUSIVE else record.mode


def explain_no_room(degree: DegreeRecord | None, present: int, need_mb: int | None = None) -> str:
    """Why a running pack has no room for one more, by what was measured; empty where it has.

    Where members have not settled yet, what is reserved for them will shrink, and is no reason.

    Args:
        degree: What its runner has measured and decided; None where nothing.
        present: Members that have not ended, those that are parked or wait among them.
        need_mb: GPU memory that the job needs; None where that is not known.
    """
    if degree is None:
        return ""
    is_full = present >= degree.degree < degree.places
    if degree.state is DegreeState.SETTLED and (is_full or degree.room == 0):
        told = describe_measured(degree.state, degree.curve, degree.degree, degree.decisions)
        return told or say_no_more(degree.degree)
    free_mb = degree.free_gpu_memory_mb
    if not degree.memory_has_settled or free_mb is None:
        return ""
    if need_mb is not None and need_mb > free_mb:
        return f"it may take {need_mb} MB of GPU memory, and {free_mb} MB are reserved for none"
    if degree.room == 0:
        return (
            f"{free_mb} MB of GPU memory are reserved for none, too little for one that is unknown"
        )
    return ""


def _parse_time_left_s(text: str) -> int | None:
    """Read squeue's %L; nothing is left where it cannot be read."""
    if text == "UNLIMITED":
        return None
    try:
        return parse_time_limit_s(text) or 0
    except ValueError:
        return 0


@dataclass(frozen=True)
class PackGpu:
    """The GPU of a pack.

    Attributes:
        gpu_type: The type that the pack asks for; None for any.
        capacity: What it brings with it.
        knowledge: What is known there of those present and, behind them, the joiner; None where
            nothing is.
    """

    gpu_type: str | None
    capacity: Capacity
    knowledge: Knowledge | None

    def ask(self, jobs: Sequence[Job], policy: Policy) -> Question:
        """What planning is asked of jobs that ask for it, as their pack does."""
        asking = [replace(job, gpu_type=self.gpu_type) for job in jobs]
        if self.knowledge is None:
            return Question(asking, {}, self.capacity, policy, None)
        known = self.knowledge
        return Question(asking, known.profiles, self.capacity, policy, known.calibration)


def find_pack_gpu(record: PackRecord, present: Sequence[Candidate], joiner: Joiner) -> PackGpu:
    """The GPU that a pack has, or asks for: without a type it may be any of its nodes'.

    Raises:
        SlurmUnreachable: Slurm does not answer.
    """
    gpu_type = record.gpu_type
    if gpu_type is None and record.request is not None:
        gpu_type = record.request.gpu_type
    asking = [
        replace(c, job=replace(c.job, gpu_type=gpu_type)) for c in (*present, joiner.candidate)
    ]
    destination = joiner.destinations.read(asking[-1].job)
    try:
        knowledge = gather_knowledge(asking, joiner.settings)
    except UsageProblem:
        # A member's --profile-like names what has been forgotten since.
        return PackGpu(gpu_type, destination.capacity, None)
    if not knowledge.profiles:
        return PackGpu(gpu_type, destination.capacity, None)
    match = match_gpu_type(knowledge.gpu_models, destination, dict(record.group))
    # What was submitted without a type cannot be given one any more.
    if match.is_other or match.gpu_type is not None:
        knowledge = knowledge.as_of_another_gpu(match.reason)
    return PackGpu(gpu_type, complete_capacity(destination.capacity, knowledge), knowledge)


def list_candidates(
    candidate: Candidate,
    state: State,
    packs: Sequence[OpenPack],
    jobs: Mapping[str, SlurmJob],
    *,
    running: bool,
) -> Iterator[tuple[str, SlurmJob]]:
    """Packs that ask Slurm for the same kind of thing: running ones first, then by their age.

    Args:
        candidate: The job.
        state: The state directory.
        packs: The open packs.
        jobs: What squeue shows of them.
        running: Running ones, too.
    """
    waiting: list[tuple[str, SlurmJob]] = []
    # Their ids tell seconds only.
    for pack in sorted(packs, key=lambda pack: pack.record.created_at if pack.record else 0):
        record = pack.record
        if record is None or record.closed or record.policy is None or state.is_elsewhere(record):
            continue
        job = find_job(record, pack.job_id, jobs)
        if job is None:
            continue
        if find_difference(candidate.job, record):
            continue
        if job.state is SlurmJobState.RUNNING and running and record.request is not None:
            yield pack.pack_id, job
        elif job.state is SlurmJobState.PENDING:
            waiting.append((pack.pack_id, job))
    yield from waiting


# ---- Putting a job into a pack that is already there, instead of a new one -----------------------

LOCK_WAIT_S = 5.0


@dataclass(frozen=True)
class Joined:
    """A job that joined a pack.

    Attributes:
        member: Its name.
        record: The pack as it is now.
        partners: The members that it shares with.
        is_running: The pack runs already.
        places: How many members can be in the pack at the same time, at most.
        renamed: Its files that another member's would be without the number in their names.
    """

    member: MemberId
    record: PackRecord
    partners: tuple[MemberId, ...]
    is_running: bool
    places: int
    renamed: tuple[str, ...] = ()


def join_open_pack(
    call: Call,
    policy: Policy,
    settings: Settings,
    state: State,
    slurm: SlurmAccess,
    *,
    packs: Sequence[OpenPack],
    jobs: Mapping[str, SlurmJob],
    running: bool,
    only_plan: bool = False,
) -> tuple[Joined | None, tuple[str, ...]]:
    """Let the only job of a call join the first open pack that has room for it.

    Args:
        call: The call.
        policy: How far sharing may go.
        settings: The settings.
        state: The state directory.
        slurm: Slurm.
        packs: The open packs.
        jobs: What squeue shows of them.
        running: Packs that run may be joined, too.
        only_plan: Find the pack that it would join, and change nothing.

    Returns:
        What it joined, or None; and for each pack of its kind why it did not join it.

    Raises:
        CollocError: The state cannot be written, or the user has interrupted it.
    """
    if len(call.candidates) != 1 or call.array is not None:
        return None, ()
    candidate = call.candidates[0]
    if compute_reason_not_to_join(candidate.job, policy):
        return None, ()
    # Together with those that are there it is measured.
    policy = replace(policy, measure_s=compute_measure_s([candidate], settings))
    refusals: list[str] = []
    refused: set[str] = set()
    joiner = Joiner(candidate, policy, Destinations(settings, slurm), settings)
    for pack_id, job in list_candidates(candidate, state, packs, jobs, running=running):
        join = _Join(state, joiner, pack_id, job, slurm, HookChoice.of(settings))
        # First without the lock: most packs are full.
        answer = join.plan()
        if isinstance(answer, Joined) and not only_plan:
            lock = join.path / "lock"
            with hold_interrupts() as held, hold_lock(lock, LOCK_WAIT_S) as locked:
                answer = join.run(held, locked) if locked else "another csub is changing it"
            if held.came() and not isinstance(answer, Joined):
                raise Interrupted("interrupted; nothing was submitted")
            if not (isinstance(answer, Joined) or join.is_running):
                refused.add(pack_id)
        if isinstance(answer, Joined):
            return answer, tuple(refusals)
        refusals.append(f"pack {job.job_id}: {answer}")
    if not (refused and running):
        return None, tuple(refusals)
    # Slurm may have started them between the look and the change.
    jobs = slurm.list_jobs()
    started = [each for each in packs if each.pack_id in refused and _is_running(each, jobs)]
    joined, more = join_open_pack(
        call, policy, settings, state, slurm, packs=started, jobs=jobs, running=True
    )
    return joined, (*refusals, *more)


def _is_running(pack: OpenPack, jobs: Mapping[str, SlurmJob]) -> bool:
    job = find_job(pack.record, pack.job_id, jobs) if pack.record else None
    return job is not None and job.state is SlurmJobState.RUNNING


@dataclass(frozen=True)
class _Join(Prospect):
    """One attempt to join one pack, under its lock."""

    slurm: SlurmAccess
    hooks: HookChoice

    def plan(self) -> Joined | str:
        """What joining would give, or why it cannot be; nothing is changed."""
        try:
            chosen = self.choose()
        except StateError as problem:
            return str(problem)
        if isinstance(chosen, str):
            return chosen
        number = find_next_number([*list_claimed(self.path), *chosen.record.members])
        return self._describe(chosen, chosen.record, number)

    def run(self, held: HeldInterrupts, lock: Lock) -> Joined | str:
        """Join, or say why not; the caller holds the pack's lock."""
        drop_unentered(self.path)
        chosen = self.choose()
        if isinstance(chosen, str):
            return chosen
        if held.came():
            raise Interrupted("interrupted; nothing was submitted")
        # What a full disk can prevent comes before Slurm is asked.
        spec = self._write_joiner(chosen)
        number = spec.job.number
        entered = None
        try:
            entered = self._enter(chosen, number, lock)
        finally:
            # Where it is not known whether it has entered, nothing of it is removed.
            if not (isinstance(entered, PackRecord) or has_entered(self.path, number)):
                drop_claimed(self.path, number)
        if isinstance(entered, str):
            return entered
        record = replace(entered, members=(*entered.members, number))
        with contextlib.suppress(StateError):
            # It has entered, and nothing may say otherwise: its own files are what counts.
            write_record(self.path, record)
        base = self.job.job_id
        if held.came() and inbox.withdraw(str(self.path), number):
            remove_environment(self.path, number)
            raise Interrupted(
                f"interrupted; {MemberId(base, number, spec.joined_as)} had joined and has been "
                "cancelled"
            )
        if self.is_running:
            with contextlib.suppress(SlurmError):
                self.slurm.wake_batch_script(base)
        renamed = () if spec.names_alone else list_renamed_files(spec.job, spec.joined_as or base)
        joined = self._describe(chosen, record, number)
        return replace(
            joined, member=MemberId(base, number, spec.joined_as), renamed=tuple(renamed)
        )

    def _describe(self, chosen: Chosen, record: PackRecord, number: int) -> Joined:
        base = self.job.job_id
        return Joined(
            member=MemberId(base, number),
            record=record,
            partners=tuple(name_member(self.path, base, p.number) for p in chosen.present),
            is_running=self.is_running,
            places=chosen.places,
        )

    def _write_plan(
        self, record: PackRecord, planned: PackPlan, present: Sequence[Present]
    ) -> PackRecord:
        for member, plan in zip(present, planned.members, strict=False):
            if plan != member.spec.plan:
                folder = self.path / "members" / inbox.format_number(member.number)
                write_spec(folder, replace(member.spec, plan=plan))
        record = replace(
            record,
            request=planned.request,
            degree=planned.degree,
            mode=planned.mode,
            reasons=planned.reasons,
            sharing=planned.sharing,
        )
        write_record(self.path, record)
        return record

    def _write_joiner(self, chosen: Chosen) -> MemberSpec:
        """Claim a number and write the job's files, ready to enter."""
        # One whose member another pack has taken over is not given again.
        number = find_next_number([*list_claimed(self.path), *chosen.record.members])
        while not inbox.claim_number(str(self.path), number):
            number += 1
        umask = os.umask(0o077)
        os.umask(umask)
        job = replace(self.joiner.candidate.job, number=number)
        environment = encode_environment(self.joiner.candidate.environment)
        try:
            own_ids = OwnIds(self.state, self.joiner.settings, self.slurm)
            job = own_ids.number_joiner(job, chosen.record.pack_id, number)
            other = self._find_shared_file(chosen.record, chosen.present, alone=True)
            spec = MemberSpec(
                job=job,
                plan=chosen.own_plan,
                umask=umask,
                # Its call was that of one job, and so is its output.
                names_alone=bool(job.own_id) and other is None,
                joined=make_submission_id(),
                joined_at=time.time(),
                submit_directory=os.getcwd(),  # a str, as the records want it
            )
            write_joiner(self.path, NewMember(spec, self.joiner.candidate.script, environment))
        except BaseException:
            drop_claimed(self.path, number)
            raise
        return spec

    def _enter(self, chosen: Chosen, number: int, lock: Lock) -> PackRecord | str:
        """Grow the pack if it waits, and put the job into its inbox; the pack, or why not."""
        planned = chosen.planned
        record = chosen.record
        if isinstance(planned, PackPlan):
            seen = self.job.comment
            comment, notes = extend_comment(seen, record.submission, planned.mode, self.hooks)
            growth = Growth(
                self.slurm,
                self.job.job_id,
                comments=(seen, comment),
                inherited=lock.descriptors,
            )
            planned = replace(planned, reasons=(*planned.reasons, *notes))
            assert planned.request is not None
            refusal = growth.grow(planned.request)
            if refusal:
                return refusal
            if self._has_started(chosen):
                return "it has just started"
            try:
                record = self._write_plan(record, planned, chosen.present)
            except StateError:
                growth.take_back()
                raise
            if self._has_started(chosen):
                return "it has just started"
        return record if inbox.enter(str(self.path), number) else "it has just ended"

    def _has_started(self, chosen: Chosen) -> bool:
        """Its runner begins an attempt under this lock, unless it has waited in vain for it."""
        return read_attempt(self.path) != chosen.attempt
