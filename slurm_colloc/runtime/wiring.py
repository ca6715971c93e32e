"""All who take part in an attempt of a pack: each looks after one thing, and knows whom it needs.

Who: the user; where: the pack's compute node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.gpu.gpu_mode import GpuMode
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.member_processes import InnerSteps
from slurm_colloc.runtime.launch.start_member import MemberStarter
from slurm_colloc.runtime.launch.stop_member import MemberControl
from slurm_colloc.runtime.outcome.collect_ends import EndCollector
from slurm_colloc.runtime.outcome.judge_end import BlameFinder
from slurm_colloc.runtime.outcome.member_mails import MemberMails
from slurm_colloc.runtime.outcome.verdict import StopReason
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pack.attempt_fence import AttemptFence
from slurm_colloc.runtime.pack.end_pack import PackEnd
from slurm_colloc.runtime.pack.member_dependencies import Dependents, judge_own_dependency
from slurm_colloc.runtime.pack.requeue_after_kill import find_killed_before
from slurm_colloc.runtime.pack.slurm_decision import SlurmDecision
from slurm_colloc.runtime.queue.allocation import (
    Allocation,
    read_kill_wait_s,
    requeues_jobs,
    signals_tasks_alone,
)
from slurm_colloc.runtime.queue.fill_places import MemberIntake, PlaceFiller
from slurm_colloc.runtime.queue.may_start import StartQueue
from slurm_colloc.runtime.queue.measured_degree import MeasuredDegree
from slurm_colloc.runtime.queue.members import PackMembers
from slurm_colloc.runtime.queue.probe_members import ProbeWindow
from slurm_colloc.runtime.queue.time_left import TimeLeft
from slurm_colloc.runtime.watch.member_progress import ProgressReader, choose_common_bound
from slurm_colloc.runtime.watch.pack_monitor import PackMonitor
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.pack.pack_records import PackRecord


class RunnerParts:
    """Puts them together; what they do, and when, is the runner's.

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
        self.lone = record.degree == 1 and record.request is None
        self.roster = PackMembers([])
        self.ledger = StateWriter(pack, attempt)
        self.fate = SlurmDecision(allocation, slurm, journal, slurm_log)
        self.fence = AttemptFence(pack, attempt, self.roster)
        self.sharing = GpuMode(
            pack,
            record,
            allocation,
            attempt,
            journal,
            lone=self.lone,
            announce=announce,
            identifies=settings.probe and record.degree > 1,
            find_likely_degree=lambda: self.ramping.likely_degree,
        )
        self.watching = PackMonitor(pack, record, allocation, attempt, journal, settings=settings)
        config = _read_config(slurm)
        kill_wait_s = float(settings.kill_wait_s or read_kill_wait_s(config))
        self.passes_on = signals_tasks_alone(config)
        self.starter = MemberStarter(
            pack=pack,
            record=record,
            allocation=allocation,
            attempt=attempt,
            launcher="process" if self.lone or slurm is None else settings.launcher,
            kill_wait_s=kill_wait_s,
            passes_on=self.passes_on,
            lone=self.lone and slurm is not None,
            journal=journal,
            place_on_gpu=self.sharing.place,
            watch=self.watching.place,
        )
        inner_steps = InnerSteps(allocation, slurm)
        self.control = MemberControl(
            pack=pack,
            roster=self.roster,
            inner_steps=inner_steps,
            ledger=self.ledger,
            journal=journal,
            kill_wait_s=kill_wait_s,
        )
        self.probing = ProbeWindow(
            pack=pack,
            shown_id=allocation.shown_job_id,
            roster=self.roster,
            ledger=self.ledger,
            journal=journal,
            is_wanted=settings.probe,
            instruments=settings.instrument,
            find_gpu_model=lambda: self.sharing.setup.gpu_name,
            why_unwatched=lambda: self.watching.obstacle,
            end=lambda member: self.control.end(member, StopReason.PROBED),
        )
        self.tender = EndCollector(
            allocation=allocation,
            roster=self.roster,
            starter=self.starter,
            inner_steps=inner_steps,
            ledger=self.ledger,
            fate=self.fate,
            journal=journal,
            keeps_time=not (self.lone and slurm is not None),
            assessor=BlameFinder(
                pack=pack,
                allocation=allocation,
                roster=self.roster,
                ledger=self.ledger,
                sharing=self.sharing,
                journal=journal,
                site_requeues=requeues_jobs(config),
            ),
            clients=self.sharing.clients,
        )
        state = State(pack.parent.parent, record.cluster)
        time_left = TimeLeft(
            pack,
            record,
            self.roster,
            self.ledger,
            journal,
            # As csub asks it, which submits them again.
            site_requeues=config.get("JobRequeue") == "1",
        )
        self.gate = StartQueue(
            pack,
            self.roster,
            self.ledger,
            journal,
            lambda job: judge_own_dependency(state, slurm, job),
            time_left=time_left,
        )
        self.ramping = MeasuredDegree(
            pack=pack,
            attempt=attempt,
            start_degree=record.start_degree,
            time_left=time_left,
            roster=self.roster,
            ledger=self.ledger,
            journal=journal,
            probing=self.probing,
            site_requeues=requeues_jobs(config),
            why_unwatched=lambda: self.watching.obstacle,
            lookout=ProgressReader(
                pack,
                self.roster,
                self.probing,
                instruments=settings.instrument,
                has_mps=lambda: self.sharing.mode is SharingMode.MPS,
                find_gpu_memory_mb=lambda: self.sharing.setup.gpu_memory_mb,
                bound=choose_common_bound(record.policy),
            ),
            step_back=self.control.step_back,
        )
        self.postman = MemberMails(
            pack=pack,
            record=record,
            allocation=allocation,
            config=None if slurm is None else config,
            roster=self.roster,
            journal=journal,
        )
        self.intake = MemberIntake(
            pack=pack,
            attempt=attempt,
            killed_before=find_killed_before(pack, allocation),
            roster=self.roster,
            ledger=self.ledger,
            note_requeue=self.postman.note_requeue,
        )
        self.ending = PackEnd(
            pack=pack,
            is_carried=record.carried,
            roster=self.roster,
            ledger=self.ledger,
            fate=self.fate,
            tender=self.tender,
            sharing=self.sharing,
            adopt=self.intake.adopt,
            kill_wait_s=read_kill_wait_s(config),
        )
        self.refill = PlaceFiller(
            pack=pack,
            roster=self.roster,
            gate=self.gate,
            probing=self.probing,
            ramping=self.ramping,
            sharing=self.sharing,
            starter=self.starter,
            tender=self.tender,
            ledger=self.ledger,
            intake=self.intake,
            check_fence=self.fence.check,
        )
        self.dependents = Dependents(pack, allocation.job_id, self.roster, slurm, journal)
        self.ledger.listeners.append(self.postman.note)


def _read_config(slurm: SlurmAccess | None) -> dict[str, str]:
    """Slurm's configuration, empty where it cannot be read."""
    if slurm is not None:
        with contextlib.suppress(SlurmError):
            return slurm.read_config()
    return {}
