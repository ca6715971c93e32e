"""The parts of a runner that measure its pack: how much room the GPU has, and which degree is best.

Who: the user; where: the pack's compute node.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.limits.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.runtime.gpu.gpu_mode import GpuMode
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pausing.pause_members import MemberPauser
from slurm_colloc.runtime.pausing.pause_obstacles import find_measuring_obstacle
from slurm_colloc.runtime.queue.measured_degree import MeasuredDegree
from slurm_colloc.runtime.queue.members import Member, PackMembers
from slurm_colloc.runtime.queue.room import GpuMemoryRoom, TimeLeft
from slurm_colloc.runtime.queue.sister_packs import count_waiting_in_sisters
from slurm_colloc.runtime.watch.known_curves import KnownCurves
from slurm_colloc.runtime.watch.member_progress import ProgressReader, choose_common_bound
from slurm_colloc.runtime.watch.pack_monitor import PackMonitor
from slurm_colloc.runtime.watch.window_rates import WindowRates
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.pack.pack_records import PackRecord


@dataclasses.dataclass(frozen=True)
class MeasuringParts:
    """What measures.

    Attributes:
        progress: Sees what members take and do.
        memory: How much of the GPU's memory is left for more members.
        degree: How many run at once best.
    """

    progress: ProgressReader
    memory: GpuMemoryRoom
    degree: MeasuredDegree


def build_measuring_parts(
    *,
    pack: Path,
    record: PackRecord,
    attempt: int,
    settings: Settings,
    members: PackMembers,
    time_left: TimeLeft,
    gpu_mode: GpuMode,
    monitor: PackMonitor,
    pauser: MemberPauser,
    journal: Journal,
    state: State,
    states: StateWriter,
) -> MeasuringParts:
    """Make what measures a pack.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        attempt: The attempt's number.
        settings: The settings of this node.
        members: Its members and places.
        time_left: What is left of its time.
        gpu_mode: How its members share the GPU.
        monitor: Watches them.
        pauser: Stops them for a moment.
        journal: The pack's log.
        state: The state directory.
        states: Writes what members have shown.
    """
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

    def count_elsewhere() -> int:
        return count_waiting_in_sisters(state, record, attempt)

    policy = record.policy
    degree = MeasuredDegree(
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
        planned_degree=record.degree if policy is None else min(policy.degree, record.degree),
        count_waiting=lambda: (
            len(members.waiting)
            + sum(member.is_at_door for member in members.with_process())
            + count_elsewhere()
        ),
    )
    return MeasuringParts(progress, memory, degree)
