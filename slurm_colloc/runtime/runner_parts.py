"""The parts of a runner, as runtime.wiring puts them together; a value."""

from __future__ import annotations

import dataclasses

from slurm_colloc.runtime.gpu.gpu_mode import GpuMode
from slurm_colloc.runtime.guarded_steps import GuardedSteps
from slurm_colloc.runtime.launch.collect_starts import StartCollector
from slurm_colloc.runtime.launch.start_member import MemberStarter
from slurm_colloc.runtime.launch.stop_member import MemberControl
from slurm_colloc.runtime.outcome.collect_ends import EndCollector
from slurm_colloc.runtime.outcome.member_mails import MemberMails
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pack.attempt_fence import AttemptFence
from slurm_colloc.runtime.pack.end_pack import PackEnd
from slurm_colloc.runtime.pack.last_work import LastWork
from slurm_colloc.runtime.pack.member_dependencies import Dependents
from slurm_colloc.runtime.pack.serve_requests import RequestHandler
from slurm_colloc.runtime.pack.slurm_decision import SlurmDecision
from slurm_colloc.runtime.pausing.pause_members import MemberPauser
from slurm_colloc.runtime.queue.fill_places import MemberIntake, PlaceFiller
from slurm_colloc.runtime.queue.may_start import StartQueue
from slurm_colloc.runtime.queue.measured_degree import MeasuredDegree
from slurm_colloc.runtime.queue.members import PackMembers
from slurm_colloc.runtime.queue.pause_windows import ProbeWindow
from slurm_colloc.runtime.queue.sister_packs import JobSets
from slurm_colloc.runtime.queue.take_over_members import MemberTakeOver
from slurm_colloc.runtime.watch.pack_monitor import PackMonitor


@dataclasses.dataclass(frozen=True)
class RunnerParts:
    """The parts of a runner; what they do, and when, is the runner's.

    Attributes:
        lone: The pack has one member, which runs as its batch script would.
        passes_on: Slurm signals the wrapper of a step alone, which passes it on to the script.
    """

    lone: bool
    passes_on: bool
    steps: GuardedSteps
    starter: MemberStarter
    members: PackMembers
    states: StateWriter
    fence: AttemptFence
    slurm_decision: SlurmDecision
    gpu_mode: GpuMode
    monitor: PackMonitor
    control: MemberControl
    pauser: MemberPauser
    requests: RequestHandler
    probe_window: ProbeWindow
    measured_degree: MeasuredDegree
    start_queue: StartQueue
    place_filler: PlaceFiller
    intake: MemberIntake
    take_over: MemberTakeOver
    job_sets: JobSets
    starts: StartCollector
    ends: EndCollector
    pack_end: PackEnd
    dependents: Dependents
    mails: MemberMails
    last_work: LastWork
