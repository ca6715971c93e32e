"""How the members of a pack share its GPU: the mode that really holds, and why.

What MPS needs is loaded only by packs that are to have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slurm_colloc.model.job import ShareRequest
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.hard_limits import compute_usable_gpu_memory_mb
from slurm_colloc.runtime.gpu_daemon import GpuDaemon
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.place_member import (
    AS_PLANNED,
    GpuShare,
    name_by_index,
    place_on_shared_gpu,
    place_without_mps,
)
from slurm_colloc.runtime.settled_mode import (
    ONE_PROCESS,
    PREPARED,
    GpuPatience,
    SettledMode,
    SetupRecord,
)
from slurm_colloc.store.member_states import GpuUse
from slurm_colloc.store.pack_directory import Setup

if TYPE_CHECKING:
    from slurm_colloc.runtime.discover_gpus import BackgroundCall, GpuFinding
    from slurm_colloc.runtime.lost_gpu import LostGpu
    from slurm_colloc.runtime.pack_instances import PackInstances


@dataclass(eq=False, kw_only=True)
class GpuMode:
    """Prepares the GPU for an attempt of a pack, and watches over it.

    Attributes:
        pack: The attempt of the pack.
        lone: The pack has one member, which runs as its batch script would.
        identifies: The GPU's model is wanted whatever the mode.
        problem: Why nothing can run on the pack's GPUs, as the division of its job has found; empty
            where that is not so.
        patience: How patient to be.
    """

    pack: PackContext
    lone: bool
    identifies: bool = False
    problem: str = ""
    patience: GpuPatience = field(default_factory=GpuPatience)

    def __post_init__(self) -> None:
        allocation, request = self.pack.allocation, ShareRequest.parse(self.pack.record.share)
        setup = Setup(
            self.pack.attempt, str(request), "", "", allocation.node, gpus=allocation.gpus
        )
        self._preparation = SetupRecord(pack=self.pack, setup=setup)
        self._search: BackgroundCall[GpuFinding] | None = None
        self._settled = SettledMode(
            pack=self.pack,
            preparation=self._preparation,
            request=request,
            mode=SharingMode.EXCLUSIVE if self.lone else None,
        )
        self._daemon = GpuDaemon(
            pack=self.pack,
            settled=self._settled,
            preparation=self._preparation,
            patience=self.patience,
        )
        self.clients = self._daemon.clients
        self._lost: LostGpu | None = None
        self._sees_no_others = False
        self.instances: PackInstances | None = None
        """The MIG instances, of which each member has one; None where there are none."""

    @property
    def setup(self) -> Setup:
        """What is prepared, as far as it is known."""
        return self._preparation.setup

    @property
    def mode(self) -> SharingMode | None:
        """The mode that holds; None while it is being prepared."""
        return self._settled.mode

    @property
    def usable_mb(self) -> int | None:
        """GPU memory that members may take together on one GPU; None where that is unknown."""
        return compute_usable_gpu_memory_mb(self.setup.gpu_memory_mb)

    @property
    def enforces(self) -> bool:
        """Members are held to their limits of GPU memory."""
        return self.mode is SharingMode.MPS

    @property
    def refusal(self) -> str:
        """Why nothing may start here: no mode that was allowed can be had, or the GPU is gone."""
        return self._settled.refusal

    # -- preparing ----------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to prepare the GPU; `work` goes on with it."""
        if self.mode is not None:
            return
        if self.problem:
            self.refuse(self.problem)
        elif not self.pack.allocation.gpus and not self.pack.record.local:
            self._settled.settle(SharingMode.TIMESLICE, "the pack has no GPU")
        elif self.pack.record.mode not in PREPARED and not self.identifies:
            self._settled.settle(self.pack.record.mode, "as planned")
        elif self.pack.record.mode is SharingMode.MIG and self._has_settled_mig():
            return
        else:
            from slurm_colloc.runtime.discover_gpus import search_gpus

            self._search = search_gpus(self.pack.allocation.own_environment, self.patience.nvml_s)

    @property
    def is_settled(self) -> bool:
        """It is known how members share the GPU, or that they must not."""
        if self.refusal:
            return True
        if self.instances is not None and not self.instances.is_ready:
            return False
        is_mending = self.mode is SharingMode.MPS and self._daemon.is_mending
        return self.mode is not None and not is_mending

    @property
    def takes_one_member(self) -> bool:
        """The GPU lets one process in at a time, and there is no MPS server to be that one."""
        unwalled = self.mode not in (SharingMode.MPS, SharingMode.MIG)
        return self._settled.takes_one_process and unwalled

    @property
    def why_unmeasured(self) -> str:
        """Why nothing is measured by pausing; empty where it may be."""
        return "" if self.instances is None else "each member has a MIG instance of its own"

    @property
    def needs_mps(self) -> bool:
        """No process can use the GPU alongside the MPS server unless it is a client of that."""
        return self._settled.takes_one_process and self.mode is SharingMode.MPS

    def filenos(self) -> list[int]:
        """What wakes the runner."""
        found = [] if self._search is None else [self._search.fileno()]
        if self.instances is not None:
            found += self.instances.filenos()
        return found + self._daemon.filenos()

    def work(self) -> None:
        """Do all that can be done now."""
        if self._search is not None and (finding := self._search.poll()) is not None:
            self._search.close()
            self._search = None
            try:
                self._note_finding(finding)
            except Exception as error:  # noqa: BLE001 - what was found is not found again
                self._daemon.fall_back(f"it could not be prepared: {error!r}")
        if self.instances is not None:
            from slurm_colloc.runtime.pack_instances import follow_instances

            follow_instances(self.instances, self._preparation)
        self._daemon.work()
        self.clients.look_for_own_daemons()

    @property
    def _slurm_environment(self) -> Mapping[str, str]:
        """The batch script's environment; empty where there is no Slurm."""
        return {} if self.pack.record.local else self.pack.allocation.environment

    def _has_settled_mig(self) -> bool:
        """Try to take the node's MIG instances; True where nothing else is left to be tried."""
        from slurm_colloc.runtime.pack_instances import take_instances

        self.instances, is_done = take_instances(
            self.pack,
            self._slurm_environment,
            self._settled,
            self._preparation,
            share=self._share_instances,
            start_daemon=self._daemon.start,
        )
        return is_done

    def _share_instances(self, instances: PackInstances) -> None:
        """Start MPS in the instances that members share."""
        from slurm_colloc.runtime.instance_daemons import InstanceDaemons

        instances.use_mps(
            InstanceDaemons(
                pack=self.pack,
                clients=self.clients,
                patience=self.patience,
                seats=instances.seats,
            )
        )

    def _note_finding(self, finding: GpuFinding) -> None:
        from slurm_colloc.runtime.node_daemon import find_prepared

        gpu = finding.gpu
        self._sees_no_others = finding.sees_no_others
        prepared = find_prepared(self._slurm_environment, finding.uuids)
        self._settled.takes_one_process = gpu is not None and gpu.compute_mode == ONE_PROCESS
        self._preparation.note_gpu(finding, prepared.gpus)
        if self.pack.record.mode not in PREPARED:
            self._settled.settle(self.pack.record.mode, "as planned")
            return
        # What NVML does not tell the job, it may have told root.
        problem = "" if prepared.gpus and not finding.uuids else finding.problem
        cap = finding.client_cap
        if not problem and cap is not None and self.pack.record.degree > cap:
            problem = f"{self.pack.record.degree} members at once are more than {cap} MPS clients"
        if problem:
            self._daemon.fall_back(problem)
            return
        self._preparation.add_notes(*prepared.notes)
        self._daemon.start(prepared.daemon)

    def give_up(self, error: Exception) -> bool:
        """Do without what cannot be prepared; True where that settles it."""
        if not self.is_settled:
            self._search = None
            self._daemon.fall_back(f"it could not be prepared: {error}")
        return self.is_settled

    def refuse(self, reason: str) -> None:
        """Start nothing here any more: another GPU set of the job has to."""
        self._settled.refuse(reason, reason)

    def find_lost(self) -> str:
        """Which of the pack's GPUs NVML does not show any more; empty for none. Waits for NVML."""
        if self._lost is None:
            from slurm_colloc.runtime.lost_gpu import LostGpu

            self._lost = LostGpu()
        return self._lost.look(self.setup.gpus)

    def refuse_lost(self) -> None:
        """Start nothing here any more where `find_lost` has found that a GPU is gone."""
        if self._lost is not None and self._lost.problem and not self.refusal:
            self.refuse(self._lost.problem)

    @property
    def has_lost_gpu(self) -> bool:
        """A GPU of the pack is gone."""
        return self._lost is not None and bool(self._lost.problem)

    # -- members ------------------------------------------------------------------------------

    def place(
        self, member: Member, share: GpuShare = AS_PLANNED
    ) -> tuple[GpuUse | None, dict[str, str]]:
        """How a member that starts now is put on the GPU, and the environment that does it.

        Args:
            member: The member.
            share: What it is given.
        """
        is_apart = member.record.retries.apart and not self.needs_mps
        pipe_directory = self._daemon.pipe_directory
        if self.mode is SharingMode.MPS and pipe_directory and not is_apart:
            use, environment = place_on_shared_gpu(
                member, share, self.pack.record, self.setup, pipe_directory
            )
            return use, environment | name_by_index(
                use, self.setup, self.pack.settings.gpu_names, self._sees_no_others
            )
        if self.instances is not None:
            return self.instances.place(member, share)
        return place_without_mps(self.mode, share, self.setup)

    def list_stuck(self) -> list[int]:
        """Members that a fault has hit and that keep the server from taking new clients."""
        stuck = self._daemon.list_stuck()
        return stuck if self.instances is None else stuck + self.instances.list_stuck()

    def catch_up(self) -> None:
        """Hear all that the daemon has said up to now; waits for a moment at most."""
        self._daemon.catch_up()
        if self.instances is not None:
            self.instances.catch_up()

    # -- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Leave no files behind: Slurm is about to kill all that is left of the pack."""
        self._daemon.let_go()
        if self.instances is not None:
            self.instances.let_go()

    def close(self) -> None:
        """End the daemon, once all members have ended."""
        for call in (self._search, self.instances):
            if call is not None:
                call.close()
        self._search = None
        self._daemon.close()
