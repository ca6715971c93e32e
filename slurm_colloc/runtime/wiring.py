"""How a runner is put together: each part looks after one thing, and is given what it needs.

Who: the user; where: the pack's compute node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.runtime.allocation import (
    Allocation,
    read_kill_wait_s,
    signals_tasks_alone,
)
from slurm_colloc.runtime.blame import BlameFinder
from slurm_colloc.runtime.chain_links import ChainLinks
from slurm_colloc.runtime.collect_ends import EndCollector, MemberEnds, SlurmDecision
from slurm_colloc.runtime.core_loans import CoreLender
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
from slurm_colloc.runtime.memory_turns import MemoryTurns, MovingProcess
from slurm_colloc.runtime.pack_context import PackContext
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
        pack: The attempt of the pack.
        slurm_log: Descriptor of the file to which slurmstepd writes.
        announce: Told of a directory that must be gone before the batch script ends.

    Attributes:
        passes_on: Slurm signals the wrapper of a step alone, which passes it on to the script.
    """

    def __init__(
        self, pack: PackContext, *, slurm_log: int, announce: Callable[[str], None] | None
    ) -> None:
        record, settings, config, members = pack.record, pack.settings, pack.config, pack.members
        lone = pack.is_lone
        is_batch_script = lone and pack.slurm is not None
        self.passes_on = passes_on = signals_tasks_alone(config)
        kill_wait_s = float(settings.kill_wait_s or read_kill_wait_s(config))

        self.members, self.steps = members, pack.steps
        self.mails = mails = MemberMails(pack=pack)
        self.states = states = StateWriter(pack=pack, listener=mails.note)
        self.fence = fence = AttemptFence(pack=pack)
        self.slurm_decision = slurm_decision = SlurmDecision(pack=pack, slurm_log=slurm_log)

        # The GPU, and what is measured.
        self.gpu_mode = gpu_mode = GpuMode(
            pack=pack,
            lone=lone,
            announce=announce,
            identifies=record.degree > 1 or len(record.gpu_sets) > 1,
            problem=find_own_problem(pack.path, record, pack.allocation.restarts),
        )
        self.monitor = monitor = PackMonitor(pack=pack)

        # Starting members, signalling them, collecting their starts and ends.
        self.starter = starter = MemberStarter(
            pack=pack,
            launcher="process" if lone or pack.slurm is None else settings.launcher,
            kill_wait_s=kill_wait_s,
            passes_on=passes_on,
            lone=is_batch_script,
            place_on_gpu=gpu_mode.place,
            watch=monitor.place,
            # In doubt nothing is lost.
            site_appends=config.get("JobFileAppend") != "0",
        )
        inner_steps = InnerSteps(pack=pack)
        self.pauser = pauser = MemberPauser(pack=pack, find_progress=monitor.find_progress)
        lines = CancellationLines(pack=pack, is_written=pack.slurm is not None and not lone)
        self.control = control = MemberControl(
            pack=pack,
            inner_steps=inner_steps,
            states=states,
            pauser=pauser,
            kill_wait_s=kill_wait_s,
            lines=lines,
        )
        self.chain = chain = ChainLinks(pack=pack, control=control, decision=slurm_decision)
        self.starts = starts = StartCollector(
            pack=pack,
            states=states,
            # Members of a chain are ended together, as its link ends.
            keeps_time=not is_batch_script and not chain.goes_on,
            clients=gpu_mode.clients,
        )
        blame_finder = BlameFinder(
            pack=pack,
            states=states,
            gpu_mode=gpu_mode,
            # What sees them is made behind this.
            find_process_mb=lambda member: progress.find_gpu_process_mb(member),  # noqa: PLW0108
        )
        member_ends = MemberEnds(
            pack=pack,
            blame_finder=blame_finder,
            states=states,
            pauser=pauser,
            goes_on=lambda: chain.is_saving,
        )
        self.ends = ends = EndCollector(
            pack=pack,
            starts=starts,
            starter=starter,
            inner_steps=inner_steps,
            slurm_decision=slurm_decision,
            ends=member_ends,
        )

        # Which member may start.
        # As csub asks it, which submits them again.
        time_left = TimeLeft(pack=pack, site_requeues=config.get("JobRequeue") == "1")
        self.probe_window = ProbeWindow(
            pack=pack,
            why_unwatched=lambda: monitor.obstacle,
            end=lambda member: control.end(member, StopReason.PROBED),
        )
        self.job_sets = job_sets = JobSets(pack=pack)

        # How much room the GPU has, and which degree is best.
        rates = WindowRates(monitor.find_progress)

        def find_obstacle() -> str:
            unwatched = find_measuring_obstacle(settings, monitor.obstacle)
            return gpu_mode.why_unmeasured or unwatched

        def find_may_take_mb(member: Member) -> int | None:
            if len(members.places) < 2 or member.gpu is None:
                # It has the GPU to itself.
                return None
            return member.gpu.gpu_memory_limit_mb or gpu_mode.setup.gpu_memory_mb

        def note_taken_at_once(member: Member, text: str) -> None:
            if member.record.state is MemberState.RUNNING and text not in member.record.evidence:
                evidence = (*member.record.evidence, text)
                states.write(member, MemberState.RUNNING, evidence=evidence, taken_at_once=text)

        progress = ProgressReader(
            pack=pack,
            rates=rates,
            bound=choose_common_bound(record.policy),
            find_may_take_mb=find_may_take_mb,
            note_taken_at_once=note_taken_at_once,
        )
        memory = GpuMemoryRoom(
            pack=pack,
            progress=progress,
            find_usable_mb=lambda: compute_usable_gpu_memory_mb(gpu_mode.setup.gpu_memory_mb),
            find_enforces=lambda: gpu_mode.mode is SharingMode.MPS,
            find_gpus=lambda: gpu_mode.setup.gpus,
            find_obstacle=find_obstacle,
        )
        planned = record.degree if record.policy is None else record.policy.degree
        self.measured_degree = measured_degree = MeasuredDegree(
            pack=pack,
            time_left=time_left,
            progress=progress,
            rates=rates,
            pauser=pauser,
            memory=memory,
            find_unwatched=lambda: monitor.obstacle,
            find_obstacle=find_obstacle,
            find_known=KnownCurves(
                pack.state.root, progress, lambda: gpu_mode.setup.gpu_name, lambda: gpu_mode.mode
            ).find_degree,
            planned_degree=min(planned, record.degree),
            count_waiting=lambda: (
                len(members.waiting)
                + sum(member.is_at_door for member in members.with_process())
                + count_waiting_in_sisters(pack.state, record, pack.attempt)
            ),
            # Made behind this.
            list_loans=lambda: core_lender.list_loans(),  # noqa: PLW0108
            list_advice=lambda: core_lender.list_advice(),  # noqa: PLW0108
            takes_turns=lambda: memory_turns.is_on,
            list_moved=lambda: memory_turns.list_moved(),  # noqa: PLW0108
        )
        self.core_lender = core_lender = CoreLender(
            pack=pack,
            find_figures=lambda: (progress.looked_at, progress.figures),
            is_measuring=lambda: measured_degree.is_measuring,
        )
        doors = Doors(
            pack=pack,
            monitor=monitor,
            progress=progress,
            memory=memory,
            measured_degree=measured_degree,
            gpu_mode=gpu_mode,
            time_left=time_left,
            begin_time=starter.begin_time,
            requeue=control.requeue,
            states=states,
        )
        self.start_queue = start_queue = StartQueue(
            pack=pack,
            time_left=time_left,
            judge=lambda job: judge_own_dependency(pack.state, pack.slurm, job),
            slurm_decision=slurm_decision,
            gpu_mode=gpu_mode,
            measured_degree=measured_degree,
            memory=memory,
            states=states,
            describe_door=doors.describe,
        )

        self.memory_turns = memory_turns = MemoryTurns(
            pack=pack,
            pauser=pauser,
            memory=memory,
            gpu_mode=gpu_mode,
            rates=rates,
            find_process_mb=progress.find_gpu_process_mb,
            find_waiting=start_queue.find_next,
            moving=MovingProcess(pack.allocation.own_environment, f"{pack.path}/move_memory.log"),
        )
        self.intake = intake = MemberIntake(
            pack=pack,
            killed_before=find_killed_before(pack.path, pack.allocation),
            states=states,
            note_requeue=mails.note_requeue,
        )
        self.take_over = take_over = MemberTakeOver(
            pack=pack,
            time_left=time_left,
            start_queue=start_queue,
            is_refused=lambda: bool(gpu_mode.refusal),
            intake=intake,
            job_sets=job_sets,
            jobs=EmptiedJobs(pack=pack),
            check_fence=fence.check,
            # Who is at the door has started, and goes first.
            find_room=lambda: measured_degree.find_room() - len(doors.list_waiting()),
            would_wait=lambda member: (
                memory.is_too_large(member)
                or bool(measured_degree.describe(member) or memory.describe(member))
            ),
        )
        self.requests = RequestHandler(
            pack=pack, control=control, intake=intake, find_elsewhere=take_over.find_elsewhere
        )
        self.place_filler = PlaceFiller(
            pack=pack,
            start_queue=start_queue,
            doors=doors,
            memory=memory,
            gpu_mode=gpu_mode,
            starter=starter,
            ends=member_ends,
            states=states,
            intake=intake,
            job_sets=job_sets,
            check_fence=fence.check,
        )
        self.pack_end = PackEnd(
            pack=pack,
            states=states,
            slurm_decision=slurm_decision,
            ends=ends,
            gpu_mode=gpu_mode,
            adopt=intake.adopt,
            kill_wait_s=read_kill_wait_s(config),
            lines=lines,
            goes_on=lambda: chain.goes_on,
        )
        self.dependents = dependents = Dependents(pack=pack)
        self.last_work = LastWork(pack=pack, monitor=monitor, dependents=dependents, mails=mails)


def build_context(
    path: Path,
    record: PackRecord,
    *,
    attempt: int,
    allocation: Allocation,
    settings: Settings,
    slurm: SlurmAccess | None,
) -> PackContext:
    """What the parts of one attempt are given.

    Args:
        path: The pack's directory.
        record: Its pack.json.
        attempt: The attempt's number.
        allocation: What Slurm gave.
        settings: The settings of this node.
        slurm: Slurm; None where the pack runs without it.
    """
    journal = Journal(path)
    config: Mapping[str, str] = {}
    if slurm is not None:
        with contextlib.suppress(SlurmError):
            config = slurm.read_config()
    return PackContext(
        path=path,
        record=record,
        state=State(path.parent.parent, record.cluster),
        attempt=attempt,
        allocation=allocation,
        settings=settings,
        slurm=slurm,
        config=config,
        journal=journal,
        steps=GuardedSteps(journal),
        members=PackMembers([]),
    )
