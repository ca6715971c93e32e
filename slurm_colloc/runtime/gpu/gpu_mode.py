"""How the members of a pack share its GPU: the mode that really holds, and why.

What MPS needs is loaded only by packs that are to have it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.share_request import ShareRequest
from slurm_colloc.model.why_not_now import ONE_AT_A_TIME
from slurm_colloc.runtime.gpu.gpu_patience import GpuPatience
from slurm_colloc.runtime.gpu.gpu_share import AS_PLANNED, GpuShare
from slurm_colloc.runtime.gpu.mps_clients import MpsClients
from slurm_colloc.runtime.gpu.setup_record import SetupRecord
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.store.pack.member_states import GpuUse
from slurm_colloc.store.pack.node_setup import Setup
from slurm_colloc.store.pack.pack_records import PackRecord

if TYPE_CHECKING:
    from slurm_colloc.host.keeper.prepared_daemon import PreparedDaemon
    from slurm_colloc.host.mps.mps_options import StopReport
    from slurm_colloc.runtime.gpu.discover_gpus import BackgroundCall, GpuFinding
    from slurm_colloc.runtime.gpu.node_daemon import InstancesFinding
    from slurm_colloc.runtime.gpu.pack_daemon import PackDaemon
    from slurm_colloc.runtime.gpu.pack_instances import PackInstances

_ONE_PROCESS = "EXCLUSIVE_PROCESS"
_PREPARED = (SharingMode.MPS, SharingMode.MIG)
"""What needs something on the node, and falls back to the next where it cannot be had."""


class GpuMode:
    """Prepares the GPU for an attempt of a pack, and watches over it.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        allocation: What Slurm gave.
        attempt: The attempt's number.
        journal: The pack's log.
        lone: The pack has one member, which runs as its batch script would.
        announce: Told of a directory that must be gone before the batch script ends.
        identifies: The GPU's model is wanted whatever the mode.
        patience: How patient to be.
    """

    def __init__(
        self,
        pack: Path,
        record: PackRecord,
        allocation: Allocation,
        attempt: int,
        journal: Journal,
        *,
        lone: bool,
        announce: Callable[[str], None] | None = None,
        identifies: bool = False,
        patience: GpuPatience | None = None,
    ) -> None:
        self._pack = pack
        self._record = record
        self._allocation = allocation
        self._journal = journal
        self._patience = patience or GpuPatience()
        self._announce = announce
        self._identifies = identifies
        self._request = ShareRequest.parse(record.share)
        setup = Setup(attempt, str(self._request), "", "", allocation.node, gpus=allocation.gpus)
        self._preparation = SetupRecord(pack, setup, journal)
        self._search: BackgroundCall[GpuFinding] | None = None
        self._look: BackgroundCall[tuple[int, ...]] | None = None
        self._daemon: PackDaemon | None = None
        self._pipe_directory = ""
        self._takes_one_process = False
        self.clients = MpsClients(pack, journal, self._patience)
        self.mode: SharingMode | None = SharingMode.EXCLUSIVE if lone else None
        """The mode that holds; None while it is being prepared."""
        self.instances: PackInstances | None = None
        """The MIG instances, of which each member has one; None where there are none."""
        self._lacks_mig = ""
        self._has_told = False
        self.refusal = ""
        """Why nothing may start: another mode than the one asked for is not allowed."""

    @property
    def setup(self) -> Setup:
        """What is prepared, as far as it is known."""
        return self._preparation.setup

    # -- preparing ----------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to prepare the GPU; `work` goes on with it."""
        if self.mode is not None:
            return
        if not self._allocation.gpus and not self._record.local:
            self._settle(SharingMode.TIMESLICE, "the pack has no GPU")
        elif self._record.mode not in _PREPARED and not self._identifies:
            self._settle(self._record.mode, "as planned")
        elif self._record.mode is SharingMode.MIG and (self._use_instances() or self.refusal):
            return
        else:
            from slurm_colloc.runtime.gpu.discover_gpus import search_gpus

            self._search = search_gpus(self._allocation.environment, self._patience.nvml_s)

    @property
    def is_settled(self) -> bool:
        """It is known how members share the GPU, or that they must not."""
        if self.refusal:
            return True
        if self.instances is not None and not self.instances.is_ready:
            return False
        is_mending = self._daemon is not None and self._daemon.is_mending
        return self.mode is not None and not (self.mode is SharingMode.MPS and is_mending)

    @property
    def takes_one_member(self) -> bool:
        """The GPU lets one process in at a time, and there is no MPS server to be that one."""
        unwalled = self.mode not in (SharingMode.MPS, SharingMode.MIG)
        return self._takes_one_process and unwalled

    @property
    def why_unmeasured(self) -> str:
        """Why nothing is measured by pausing; empty where it may be."""
        return "" if self.instances is None else "each member has a MIG instance of its own"

    @property
    def needs_mps(self) -> bool:
        """No process can use the GPU alongside the MPS server unless it is a client of that."""
        return self._takes_one_process and self.mode is SharingMode.MPS

    def filenos(self) -> list[int]:
        """What wakes the runner."""
        found = [call.fileno() for call in (self._search, self._look) if call is not None]
        if self.instances is not None:
            found += self.instances.filenos()
        return found if self._daemon is None else found + self._daemon.filenos()

    def work(self) -> None:
        """Do all that can be done now."""
        if self._search is not None and (finding := self._search.poll()) is not None:
            self._search.close()
            self._search = None
            try:
                self._note_finding(finding)
            except Exception as error:  # noqa: BLE001 - what was found is not found again
                self._fall_back(f"it could not be prepared: {error!r}")
        if self.instances is not None:
            self._follow_instances(self.instances)
        if self._daemon is not None:
            self._daemon.work()
            self._look_outside()

    def _use_instances(self) -> bool:
        """Take the MIG instances that the prolog has made; False where there are none."""
        from slurm_colloc.runtime.gpu.node_daemon import find_instances

        found = find_instances({} if self._record.local else self._allocation.environment)
        if found.gpu is None or found.reason:
            return self._go_without_layout(found)
        from slurm_colloc.runtime.gpu.mig_seats import match_places
        from slurm_colloc.runtime.gpu.pack_instances import PackInstances

        record = self._record
        wanted = match_places(found.gpu, record.layout, record.layout_places)
        places = wanted if found.mps_inside else {}
        # What an MPS server is on is not cut anew.
        socket = "" if places else found.socket
        self.instances = PackInstances(found.gpu, socket, self._journal, places)
        if wanted and not places:
            self._preparation.add_notes(
                "the node's policy lets no MPS run inside an instance (mig_mps_inside): each takes "
                "one member at a time"
            )
        if places:
            self._share_instances(self.instances)
        self._preparation.note_instances(found.gpu, self.instances, can_change=bool(socket))
        self._settle(SharingMode.MIG, "the node has cut the GPU for this pack")
        return True

    def _share_instances(self, instances: PackInstances) -> None:
        """Start MPS in the instances that members share."""
        from slurm_colloc.runtime.gpu.instance_daemons import InstanceDaemons

        instances.use_mps(
            InstanceDaemons(
                self._pack,
                self._allocation.environment,
                self._allocation.job_id,
                clients=self.clients,
                journal=self._journal,
                patience=self._patience,
                find_members=instances.list_members,
                announce=self._announce,
            )
        )

    def _go_without_layout(self, found: InstancesFinding) -> bool:
        """What follows where the layout could not be had; True where that settles it.

        Args:
            found: Why there is no layout; with the GPU where one instance has all of it.
        """
        whole, reason = found.gpu, found.reason
        if whole is not None:
            self._preparation.note_whole_instance(whole)
        if self._request.strict:
            self._fall_back(reason)
            return True
        if self._request.mode is None:
            # csub has chosen it because MPS does not hold these members together.
            self._takes_one_process = True
            self._preparation.add_notes(f"without MIG instances {ONE_AT_A_TIME}")
            self._settle(SharingMode.TIMESLICE, reason)
            self._tell(f"members run one at a time: {reason}")
            return True
        self._lacks_mig = reason
        if whole is not None and found.mps_inside:
            self._start_daemon()
        elif whole is not None:
            self._fall_back("the node's policy lets no MPS run inside an instance (mig_mps_inside)")
        return whole is not None

    def _follow_instances(self, instances: PackInstances) -> None:
        """Write down what stands after a change."""
        problem, notes = instances.work(), instances.follow_daemons()
        if problem is None and not notes:
            return
        self._preparation.add_notes(*notes)
        can_change = self.setup.can_change or problem is not None
        self._preparation.note_instances(instances.gpu, instances, can_change=can_change)
        if problem:
            self._preparation.add_notes(f"its MIG instances were not changed: {problem}")
        self._preparation.write()

    def _look_outside(self) -> None:
        """See which use the GPU without being clients, as long as one is not known as a client."""
        if self._look is not None:
            pids = self._look.poll()
            if pids is not None:
                self._look.close()
                self._look = None
                self.clients.note_outside(pids)
        elif self.clients.wants_gpu_look():
            from slurm_colloc.runtime.gpu.discover_gpus import search_outside

            self._look = search_outside(self.setup.gpus, self._patience.nvml_s)

    def _note_finding(self, finding: GpuFinding) -> None:
        from slurm_colloc.runtime.gpu.node_daemon import find_prepared

        gpu = finding.gpu
        prepared = find_prepared(
            {} if self._record.local else self._allocation.environment, finding.uuids
        )
        self._takes_one_process = gpu is not None and gpu.compute_mode == _ONE_PROCESS
        self._preparation.note_gpu(finding, prepared.gpus)
        if self._record.mode not in _PREPARED:
            self._settle(self._record.mode, "as planned")
            return
        # What NVML does not tell the job, it may have told root.
        problem = "" if prepared.gpus and not finding.uuids else finding.problem
        cap = finding.client_cap
        if not problem and cap is not None and self._record.degree > cap:
            problem = f"{self._record.degree} members at once are more than {cap} MPS clients"
        if problem:
            self._fall_back(problem)
            return
        self._preparation.add_notes(*prepared.notes)
        self._start_daemon(prepared.daemon)

    def _start_daemon(self, prepared: PreparedDaemon | None = None) -> None:
        """Start the pack's MPS daemon, or take the one that the prolog has prepared."""
        from slurm_colloc.runtime.gpu.pack_daemon import PackDaemon

        self._daemon = PackDaemon(
            self._pack,
            self.setup.gpus,
            self._allocation.environment,
            self._allocation.job_id,
            clients=self.clients,
            journal=self._journal,
            listener=self,
            patience=self._patience,
            prepared=prepared,
        )
        self._daemon.start()

    def give_up(self, error: Exception) -> bool:
        """Do without what cannot be prepared; True where that settles it."""
        if not self.is_settled:
            self._search = None
            self._fall_back(f"it could not be prepared: {error}")
        return self.is_settled

    def _settle(self, mode: SharingMode, reason: str) -> None:
        self.mode = mode
        self._preparation.write(mode=mode.value, reason=reason)
        self._journal.write("sharing", mode=mode.value, reason=reason)

    def _fall_back(self, reason: str) -> None:
        """Go on without MPS, or not at all where that is not allowed."""
        self._pipe_directory = ""
        if self._request.strict:
            self.refusal = f"{self._request} was asked for, and {reason}"
            self.mode = None
            self._preparation.write(mode="", reason=reason)
            self._journal.write("no_sharing", asked=str(self._request), reason=reason)
            return
        if self._takes_one_process:
            self._preparation.add_notes(
                f"the GPU is in compute mode {_ONE_PROCESS}: without MPS {ONE_AT_A_TIME}"
            )
        reason = "; ".join(filter(None, (self._lacks_mig, reason)))
        self._settle(SharingMode.TIMESLICE, reason)
        if self._request.mode in _PREPARED:
            self._tell(f"members share the GPU by time slices: {reason}")

    @staticmethod
    def _tell(text: str) -> None:
        sys.stderr.write(f"csub: {text}\n")
        sys.stderr.flush()

    # -- what becomes of the daemon -----------------------------------------------------------

    def note_control(
        self, pipe_directory: str, control_ms: float, restarts: int, notes: tuple[str, ...]
    ) -> None:
        """The daemon answers. Whether its server comes up is not known yet."""
        self._pipe_directory = pipe_directory
        by = "runner" if self._daemon is None else self._daemon.by
        if self._announce is not None and by == "runner":
            self._announce(os.path.dirname(pipe_directory))
        self._preparation.note_control(by, control_ms, restarts)
        self._preparation.add_notes(*notes)

    def note_ready(self, active_ms: float | None, notes: tuple[str, ...]) -> None:
        """Its server is ACTIVE: members can be started."""
        self.mode = SharingMode.MPS
        self._preparation.add_notes(*notes)
        self._preparation.write(
            mode=SharingMode.MPS.value,
            reason=self._lacks_mig or "the node has MPS, and its GPU takes it",
            active_ms=active_ms,
        )
        if self._lacks_mig and not self._has_told:
            self._has_told = True
            self._tell(f"members share the GPU by MPS: {self._lacks_mig}")
        self._journal.write(
            "sharing", mode=SharingMode.MPS.value, ms=self.setup.control_ms, active_ms=active_ms
        )

    def note_unprepared(self, reason: str) -> None:
        """The node's own daemon cannot be used; the pack gets one of its own."""
        self._preparation.add_notes(f"the node's own MPS daemon is not used: {reason}")

    def note_lost(self) -> None:
        """It is gone, and is being started again: nothing can start meanwhile."""
        self._pipe_directory = ""
        self.mode = None

    def note_given_up(self, reason: str) -> None:
        """There is none, and there will be none."""
        self._fall_back(reason)

    def note_stopped(self, report: StopReport) -> None:
        """It has been ended."""
        self._preparation.note_stopped(report)

    # -- members ------------------------------------------------------------------------------

    def place(
        self, member: Member, share: GpuShare = AS_PLANNED
    ) -> tuple[GpuUse | None, dict[str, str]]:
        """How a member that starts now is put on the GPU, and the environment that does it.

        Args:
            member: The member.
            share: What it is given.
        """
        retries = member.record.retries
        is_apart = retries.apart and not self.needs_mps
        if self.mode is SharingMode.MPS and self._pipe_directory and not is_apart:
            from slurm_colloc.runtime.gpu.member_limits import SharedGpu, place_under_mps

            policy, planned = self._record.policy, self._record.degree
            if policy is not None and member.spec.plan.thread_percentage is None:
                # It has room for more than was planned to run.
                planned = min(planned, policy.degree)
            degree = likely = max(1, share.likely_degree or planned)
            if policy is not None:
                # There may be places for more than are likely to run.
                degree = max(likely, policy.degree)
            shared = SharedGpu(
                self.setup.gpus,
                self.setup.gpu_memory_mb,
                max(1, min(degree, self._record.degree)),
                likely,
                self._pipe_directory,
            )
            plan = member.spec.plan
            if share.gpu_memory_mb is not None:
                plan = dataclasses.replace(plan, gpu_memory_limit_mb=share.gpu_memory_mb)
            return place_under_mps(
                shared,
                plan,
                retries.places,
                is_wide=member.is_wide,
                client_priority=share.client_priority,
            )
        if self.instances is not None:
            return self.instances.place(member, share)
        if not self.setup.gpus:
            return None, {}
        mode = self.mode or SharingMode.TIMESLICE
        apart = SharingMode.TIMESLICE if mode is SharingMode.MPS else mode
        uuids = tuple(gpu for gpu in self.setup.gpus if gpu.startswith(("GPU-", "MIG-")))
        is_instance = any(uuid.startswith("MIG-") for uuid in uuids)
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(uuids)} if is_instance else {}
        return GpuUse(apart.value, uuids=uuids), environment

    def list_stuck(self) -> list[int]:
        """Members that a fault has hit and that keep the server from taking new clients."""
        stuck = [] if self._daemon is None else self._daemon.list_stuck()
        return stuck if self.instances is None else stuck + self.instances.list_stuck()

    def catch_up(self) -> None:
        """Hear all that the daemon has said up to now; waits for a moment at most."""
        if self._daemon is not None:
            self._daemon.catch_up()
        if self.instances is not None:
            self.instances.catch_up()

    # -- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Leave no files behind: Slurm is about to kill all that is left of the pack."""
        if self._daemon is not None:
            self._daemon.let_go()
        if self.instances is not None:
            self.instances.let_go()

    def close(self) -> None:
        """End the daemon, once all members have ended."""
        for call in (self._search, self._look, self.instances):
            if call is not None:
                call.close()
        self._search = self._look = None
        if self._daemon is not None:
            self._daemon.close()
