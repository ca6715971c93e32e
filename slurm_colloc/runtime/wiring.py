"""How a runner is put together: each part looks after one thing, and is given what it needs.

Who: the user; where: the pack's compute node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.runtime.allocation import (
    Allocation,
    read_kill_wait_s,
    requeues_jobs,
    signals_tasks_alone,
)
from slurm_colloc.runtime.blame import BlameFinder
from slurm_colloc.runtime.collect_ends import EndCollector, MemberEnds, SlurmDecision
from slurm_colloc.runtime.divide_gpus import find_own_problem
from slurm_colloc.runtime.door import Doors
from slurm_colloc.runtime.end_pack import LastWork, PackEnd
from slurm_colloc.runtime.fill_places import MemberIntake, PlaceFiller
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.guarded_steps import GuardedSteps, Journal
from slurm_colloc.runtime.may_start import StartQueue
from slurm_colloc.runtime.measured_degree import MeasuredDegree
from slurm_colloc.runtime.member_dependencies import Dependents, judge_own_dependency
from slurm_colloc.runtime.member_mails import MemberMails
from slurm_colloc.runtime.member_progress import (
    KnownCurves,
    ProgressReader,
    WindowRates,
    choose_common_bound,
)
from slurm_colloc.runtime.members import Member, PackMembers
from slurm_colloc.runtime.pack_monitor import PackMonitor
from slurm_colloc.runtime.pause_members import MemberPauser, find_measuring_obstacle
from slurm_colloc.runtime.pause_windows import ProbeWindow
from slurm_colloc.runtime.requeue_after_kill import find_killed_before
from slurm_colloc.runtime.room import GpuMemoryRoom, TimeLeft
from slurm_colloc.runtime.serve_requests import AttemptFence, RequestHandler
from slurm_colloc.runtime.sister_packs import EmptiedJobs, JobSets, count_waiting_in_sisters
from slurm_colloc.runtime.start_member import MemberStarter, StartCollector
from slurm_colloc.runtime.stop_member import InnerSteps, MemberControl
from slurm_colloc.runtime.take_over_members import MemberTakeOver
from slurm_colloc.runtime.verdict import StopReason
from slurm_colloc.runtime.write_states import CancellationLines, StateWriter
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.pack_directory import PackRecord


class RunnerParts:
    """The parts of a runner, each made from those before it; what they do, and when, is its.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        allocation: What Slurm gave.
        attempt: The attempt's number.
        journal: The pack's log.
        settings: The settings of this node.
        slurm: Slurm, or None where the pack runs without it.
        slurm_log: Descriptor of the file to which slurmstepd writes.
        announce: Told of a directory that must be gone before the batch script ends.

    Attributes:
        lone: The pack has one member, which runs as its batch script would.
        passes_on: Slurm signals the wrapper of a step alone, which passes it on to the script.
    """

    def __init__(
        self,
        *,
        pack: Path,
        record: PackRecord,
        allocation: Allocation,
        attempt: int,
        journal: Journal,
        settings: Settings,
        slurm: SlurmAccess | None,
        slurm_log: int,
        announce: Callable[[str], None] | None,
    ) -> None:
        config = _read_config(slurm)
        self.lone = lone = record.degree == 1 and record.request is None
        is_batch_script = lone and slurm is not None
        self.passes_on = passes_on = signals_tasks_alone(config)
        kill_wait_s = float(settings.kill_wait_s or read_kill_wait_s(config))
        shown_id, restarts = allocation.shown_job_id, allocation.restarts

        self.members = members = PackMembers([])
        self.mails = mails = MemberMails(
            pack=pack,
            record=record,
            allocation=allocation,
            config=None if slurm is None else config,
            members=members,
            journal=journal,
        )
        self.steps = steps = GuardedSteps(journal)
        self.states = states = StateWriter(pack, attempt, mails.note, steps=steps)
        self.fence = fence = AttemptFence(pack, attempt, members, restarts)
        self.slurm_decision = slurm_decision = SlurmDecision(
            allocation, slurm, journal, slurm_log, is_lone=lone, has_nodes=bool(record.set_nodes)
        )

        # The GPU, and what is measured.
        self.gpu_mode = gpu_mode = GpuMode(
            pack,
            record,
            allocation,
            attempt,
            journal,
            lone=lone,
            announce=announce,
            identifies=record.degree > 1 or len(record.gpu_sets) > 1,
            problem=find_own_problem(pack, record, restarts),
        )
        self.monitor = monitor = PackMonitor(
            pack, record, allocation, attempt, journal, settings=settings
        )

        # Starting members, signalling them, collecting their starts and ends.
        self.starter = starter = MemberStarter(
            pack=pack,
            record=record,
            allocation=allocation,
            attempt=attempt,
            launcher="process" if lone or slurm is None else settings.launcher,
            kill_wait_s=kill_wait_s,
            passes_on=passes_on,
            lone=is_batch_script,
            journal=journal,
            place_on_gpu=gpu_mode.place,
            watch=monitor.place,
            # In doubt nothing is lost.
            site_appends=config.get("JobFileAppend") != "0",
        )
        inner_steps = InnerSteps(allocation, slurm)
        self.pauser = pauser = MemberPauser(pack, journal)
        lines = CancellationLines(allocation, is_written=slurm is not None and not lone)
        self.control = control = MemberControl(
            members=members,
            inner_steps=inner_steps,
            states=states,
            pauser=pauser,
            journal=journal,
            steps=steps,
            kill_wait_s=kill_wait_s,
            lines=lines,
        )
        self.starts = starts = StartCollector(
            allocation=allocation,
            members=members,
            states=states,
            journal=journal,
            keeps_time=not is_batch_script,
            clients=gpu_mode.clients,
            steps=steps,
        )
        blame_finder = BlameFinder(
            pack=pack,
            allocation=allocation,
            members=members,
            states=states,
            gpu_mode=gpu_mode,
            journal=journal,
            site_requeues=requeues_jobs(config),
            has_other_sets=len(record.gpu_sets) > 1,
            # What sees them is made behind this.
            find_process_mb=lambda member: progress.find_gpu_process_mb(member),  # noqa: PLW0108
        )
        member_ends = MemberEnds(
            members=members,
            blame_finder=blame_finder,
            states=states,
            pauser=pauser,
            journal=journal,
        )
        self.ends = ends = EndCollector(
            members=members,
            starts=starts,
            starter=starter,
            inner_steps=inner_steps,
            slurm_decision=slurm_decision,
            ends=member_ends,
            journal=journal,
            steps=steps,
        )

        # Which member may start.
        # As csub asks it, which submits them again.
        time_left = TimeLeft(pack, record, members, site_requeues=config.get("JobRequeue") == "1")
        self.probe_window = ProbeWindow(
            pack=pack,
            members=members,
            journal=journal,
            why_unwatched=lambda: monitor.obstacle,
            end=lambda member: control.end(member, StopReason.PROBED),
        )
        state = State(pack.parent.parent, record.cluster)
        self.job_sets = job_sets = JobSets(pack, record, attempt, state, members, restarts=restarts)

        # How much room the GPU has, and which degree is best.
        rates = WindowRates(monitor.find_progress)

        def find_obstacle() -> str:
            unwatched = find_measuring_obstacle(record, settings, monitor.obstacle)
            return gpu_mode.why_unmeasured or unwatched

        def find_may_take_mb(member: Member) -> int | None:
            if len(members.places) < 2 or member.gpu is None:
                # It has the GPU to itself.
                return None
            return member.gpu.gpu_memory_limit_mb or gpu_mode.setup.gpu_memory_mb

        def note_evidence(member: Member, text: str) -> None:
            if member.record.state is MemberState.RUNNING and text not in member.record.evidence:
                evidence = (*member.record.evidence, text)
                states.write(member, MemberState.RUNNING, evidence=evidence)

        progress = ProgressReader(
            pack,
            members,
            rates,
            instruments=settings.instrument,
            bound=choose_common_bound(record.policy),
            find_may_take_mb=find_may_take_mb,
            note_evidence=note_evidence,
        )
        memory = GpuMemoryRoom(
            members=members,
            progress=progress,
            find_usable_mb=lambda: compute_usable_gpu_memory_mb(gpu_mode.setup.gpu_memory_mb),
            find_enforces=lambda: gpu_mode.mode is SharingMode.MPS,
            find_gpus=lambda: gpu_mode.setup.gpus,
            find_obstacle=find_obstacle,
        )
        planned = record.degree if record.policy is None else record.policy.degree
        self.measured_degree = measured_degree = MeasuredDegree(
            pack=pack,
            attempt=attempt,
            members=members,
            time_left=time_left,
            journal=journal,
            progress=progress,
            rates=rates,
            pauser=pauser,
            memory=memory,
            find_unwatched=lambda: monitor.obstacle,
            find_obstacle=find_obstacle,
            find_known=KnownCurves(
                state.root, progress, lambda: gpu_mode.setup.gpu_name, lambda: gpu_mode.mode
            ).find_degree,
            planned_degree=min(planned, record.degree),
            count_waiting=lambda: (
                len(members.waiting)
                + sum(member.is_at_door for member in members.with_process())
                + count_waiting_in_sisters(state, record, attempt)
            ),
        )
        doors = Doors(
            pack=pack,
            shown_id=shown_id,
            record=record,
            members=members,
            is_on=settings.door and settings.instrument,
            monitor=monitor,
            progress=progress,
            memory=memory,
            measured_degree=measured_degree,
            gpu_mode=gpu_mode,
            time_left=time_left,
            begin_time=starter.begin_time,
            requeue=control.requeue,
            states=states,
            journal=journal,
        )
        self.start_queue = start_queue = StartQueue(
            pack=pack,
            shown_id=shown_id,
            members=members,
            time_left=time_left,
            judge=lambda job: judge_own_dependency(state, slurm, job),
            slurm_decision=slurm_decision,
            gpu_mode=gpu_mode,
            measured_degree=measured_degree,
            memory=memory,
            states=states,
            journal=journal,
            describe_door=doors.describe,
        )
        self.intake = intake = MemberIntake(
            pack=pack,
            attempt=attempt,
            killed_before=find_killed_before(pack, allocation),
            members=members,
            states=states,
            steps=steps,
            note_requeue=mails.note_requeue,
            journal=journal,
        )
        self.take_over = take_over = MemberTakeOver(
            pack=pack,
            shown_id=shown_id,
            record=record,
            attempt=attempt,
            state=state,
            members=members,
            time_left=time_left,
            start_queue=start_queue,
            is_refused=lambda: bool(gpu_mode.refusal),
            intake=intake,
            job_sets=job_sets,
            jobs=EmptiedJobs(slurm, journal),
            journal=journal,
            check_fence=fence.check,
            # Who is at the door has started, and goes first.
            find_room=lambda: measured_degree.find_room() - len(doors.list_waiting()),
            describe_wait=lambda member: (
                ("it needs a larger GPU" if memory.is_too_large(member) else "")
                or measured_degree.describe(member)
                or memory.describe(member)
            ),
        )
        self.requests = RequestHandler(
            pack=pack,
            members=members,
            control=control,
            intake=intake,
            steps=steps,
            journal=journal,
            find_elsewhere=take_over.find_elsewhere,
        )
        self.place_filler = PlaceFiller(
            pack=pack,
            members=members,
            start_queue=start_queue,
            doors=doors,
            memory=memory,
            gpu_mode=gpu_mode,
            starter=starter,
            ends=member_ends,
            states=states,
            intake=intake,
            job_sets=job_sets,
            steps=steps,
            check_fence=fence.check,
        )
        self.pack_end = PackEnd(
            pack=pack,
            is_carried=record.carried,
            members=members,
            states=states,
            slurm_decision=slurm_decision,
            ends=ends,
            gpu_mode=gpu_mode,
            adopt=intake.adopt,
            kill_wait_s=read_kill_wait_s(config),
            lines=lines,
        )
        self.dependents = dependents = Dependents(pack, allocation.job_id, members, slurm, journal)
        self.last_work = LastWork(
            monitor=monitor, dependents=dependents, mails=mails, steps=steps, journal=journal
        )


def _read_config(slurm: SlurmAccess | None) -> dict[str, str]:
    """Slurm's configuration, empty where it cannot be read."""
    if slurm is not None:
        with contextlib.suppress(SlurmError):
            return slurm.read_config()
    return {}
