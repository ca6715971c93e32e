"""How a runner is put together: each part looks after one thing, and is given what it needs.

Who: the user; where: the pack's compute node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_colloc.errors import SlurmError
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
from slurm_colloc.runtime.look import DegreeWriter, PackLook
from slurm_colloc.runtime.may_start import StartQueue
from slurm_colloc.runtime.measured_degree import MeasuredDegree
from slurm_colloc.runtime.member_dependencies import Dependents
from slurm_colloc.runtime.member_mails import MemberMails
from slurm_colloc.runtime.member_progress import (
    KnownCurves,
    ProgressReader,
    WindowRates,
    choose_common_bound,
)
from slurm_colloc.runtime.members import PackMembers
from slurm_colloc.runtime.memory_turns import MemoryTurns, MovingProcess
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pack_monitor import PackMonitor
from slurm_colloc.runtime.pause_members import MemberPauser
from slurm_colloc.runtime.pause_windows import ProbeWindow
from slurm_colloc.runtime.requeue_after_kill import find_killed_before
from slurm_colloc.runtime.room import GpuMemoryRoom, TimeLeft, Watch
from slurm_colloc.runtime.serve_requests import RequestHandler
from slurm_colloc.runtime.sister_packs import EmptiedJobs, JobSets
from slurm_colloc.runtime.start_member import MemberStarter, StartCollector
from slurm_colloc.runtime.stop_member import AttemptFence, InnerSteps, MemberControl
from slurm_colloc.runtime.take_over_members import MemberTakeOver
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

    Attributes:
        passes_on: Slurm signals the wrapper of a step alone, which passes it on to the script.
    """

    def __init__(self, pack: PackContext, *, slurm_log: int) -> None:
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
            identifies=record.degree > 1 or len(record.gpu_sets) > 1,
            problem=find_own_problem(pack.path, record, pack.allocation.restarts),
        )
        self.monitor = monitor = PackMonitor(pack=pack)
        watch = Watch(pack=pack, monitor=monitor, gpu_mode=gpu_mode)
        rates = WindowRates(monitor.find_progress)
        bound = choose_common_bound(record.policy)
        progress = ProgressReader(pack=pack, rates=rates, bound=bound)
        self.memory = memory = GpuMemoryRoom(
            pack=pack, progress=progress, gpu_mode=gpu_mode, watch=watch, states=states
        )

        # Starting members, signalling them, collecting their starts and ends.
        self.starter = starter = MemberStarter(
            pack=pack,
            launcher="process" if lone or pack.slurm is None else settings.launcher,
            kill_wait_s=kill_wait_s,
            passes_on=passes_on,
            lone=is_batch_script,
            gpu_mode=gpu_mode,
            monitor=monitor,
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
        blame_finder = BlameFinder(pack=pack, states=states, gpu_mode=gpu_mode, progress=progress)
        member_ends = MemberEnds(
            pack=pack, blame_finder=blame_finder, states=states, pauser=pauser, chain=chain
        )
        self.ends = ends = EndCollector(
            pack=pack,
            starts=starts,
            starter=starter,
            inner_steps=inner_steps,
            slurm_decision=slurm_decision,
            ends=member_ends,
        )

        # Which member may start, and how many.
        # As csub asks it, which submits them again.
        time_left = TimeLeft(pack=pack, site_requeues=config.get("JobRequeue") == "1")
        self.probe_window = ProbeWindow(pack=pack, monitor=monitor, control=control)
        self.job_sets = job_sets = JobSets(pack=pack)
        planned = record.degree if record.policy is None else record.policy.degree
        self.measured_degree = measured_degree = MeasuredDegree(
            pack=pack,
            time_left=time_left,
            progress=progress,
            rates=rates,
            pauser=pauser,
            memory=memory,
            curves=KnownCurves(pack.state.root, progress, gpu_mode),
            watch=watch,
            planned_degree=min(planned, record.degree),
        )
        self.core_lender = core_lender = CoreLender(
            pack=pack, progress=progress, measured_degree=measured_degree
        )
        doors = Doors(
            pack=pack,
            monitor=monitor,
            progress=progress,
            gpu_mode=gpu_mode,
            time_left=time_left,
            starter=starter,
            control=control,
            states=states,
        )
        self.start_queue = start_queue = StartQueue(pack=pack, time_left=time_left, states=states)
        self.look = look = PackLook(
            pack=pack,
            time_left=time_left,
            queue=start_queue,
            slurm_decision=slurm_decision,
            gpu_mode=gpu_mode,
            measured_degree=measured_degree,
            memory=memory,
            doors=doors,
        )
        self.memory_turns = memory_turns = MemoryTurns(
            pack=pack,
            pauser=pauser,
            memory=memory,
            gpu_mode=gpu_mode,
            rates=rates,
            progress=progress,
            moving=MovingProcess(pack.allocation.own_environment, f"{pack.path}/move_memory.log"),
        )
        self.degree_writer = DegreeWriter(
            pack=pack,
            look=look,
            measured_degree=measured_degree,
            memory=memory,
            watch=watch,
            core_lender=core_lender,
            memory_turns=memory_turns,
        )
        self.intake = intake = MemberIntake(
            pack=pack,
            killed_before=find_killed_before(pack.path, pack.allocation),
            states=states,
            mails=mails,
        )
        self.take_over = take_over = MemberTakeOver(
            pack=pack,
            time_left=time_left,
            look=look,
            gpu_mode=gpu_mode,
            memory=memory,
            intake=intake,
            job_sets=job_sets,
            jobs=EmptiedJobs(pack=pack),
            fence=fence,
        )
        self.requests = RequestHandler(
            pack=pack, control=control, intake=intake, take_over=take_over
        )
        self.place_filler = PlaceFiller(
            pack=pack,
            look=look,
            start_queue=start_queue,
            doors=doors,
            memory=memory,
            gpu_mode=gpu_mode,
            starter=starter,
            ends=member_ends,
            states=states,
            intake=intake,
            job_sets=job_sets,
            fence=fence,
        )
        self.pack_end = PackEnd(
            pack=pack,
            states=states,
            slurm_decision=slurm_decision,
            ends=ends,
            gpu_mode=gpu_mode,
            intake=intake,
            kill_wait_s=read_kill_wait_s(config),
            lines=lines,
            chain=chain,
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
    announce: Callable[[str], None] | None = None,
) -> PackContext:
    """What the parts of one attempt are given.

    Args:
        path: The pack's directory.
        record: Its pack.json.
        attempt: The attempt's number.
        allocation: What Slurm gave.
        settings: The settings of this node.
        slurm: Slurm; None where the pack runs without it.
        announce: See PackContext.
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
        announce=announce,
    )
