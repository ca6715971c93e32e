"""The MIG instances of a pack while it runs: each member gets one, and free ones are changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from slurm_colloc.host.keeper.prepared_mig import PreparedGpu
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.why_not_now import CHANGING_INSTANCES, NO_INSTANCE
from slurm_colloc.runtime.gpu.discover_gpus import BackgroundCall
from slurm_colloc.runtime.gpu.gpu_share import AS_PLANNED, GpuShare
from slurm_colloc.runtime.gpu.mig.mig_agent import ChangeAnswer, MigChange, begin_change
from slurm_colloc.runtime.gpu.mig.mig_seats import MigSeats
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.store.pack.member_states import GpuUse

if TYPE_CHECKING:
    from slurm_colloc.runtime.gpu.mig.instance_daemons import InstanceDaemons


class PackInstances:
    """What root has made of the pack's GPU, and who has it.

    Args:
        gpu: The GPU with its instances.
        socket: Where root changes them on request; empty where it does not.
        journal: The pack's log.
        places: How many members share an instance, by UUID; one has each that is not named.
    """

    def __init__(
        self,
        gpu: PreparedGpu,
        socket: str,
        journal: Journal,
        places: Mapping[str, int] | None = None,
    ) -> None:
        self._seats = MigSeats(gpu, can_change=bool(socket), places=places)
        self._shared = tuple(places or {})
        self._daemons: InstanceDaemons | None = None
        self._socket = socket
        self._journal = journal
        self._call: BackgroundCall[ChangeAnswer] | None = None
        self._change: MigChange | None = None
        self._problem = ""

    @property
    def gpu(self) -> PreparedGpu:
        """The GPU, with what stands on it now."""
        return self._seats.gpu

    @property
    def is_changing(self) -> bool:
        """Root is at work; members that run are not disturbed, and none starts meanwhile."""
        return self._call is not None

    def filenos(self) -> list[int]:
        """What wakes the runner."""
        found = [] if self._call is None else [self._call.fileno()]
        return found if self._daemons is None else found + self._daemons.filenos()

    def use_mps(self, daemons: InstanceDaemons) -> None:
        """Start MPS in the instances that members share."""
        self._daemons = daemons
        daemons.start(self._shared)

    @property
    def is_ready(self) -> bool:
        """Members can start, as far as MPS inside goes: each daemon answers, or there is none."""
        return self._daemons is None or all(map(self._daemons.is_settled, self._shared))

    def list_members(self, uuid: str) -> list[int]:
        """The members on an instance."""
        return self._seats.list_members(uuid)

    def count_places(self, uuid: str) -> int:
        """How many members share an instance."""
        return self._seats.count_places(uuid)

    def follow_daemons(self) -> list[str]:
        """Hear what has become of MPS inside; what is worth telling of it, a sentence each."""
        if self._daemons is None:
            return []
        self._daemons.work()
        for uuid in self._daemons.list_without():
            self._seats.close_to_others(uuid)
        return self._daemons.take_notes()

    def work(self) -> str | None:
        """Hear what has become of a change: why it failed, empty where it was done.

        None where there is nothing new.
        """
        if self._call is None or self._change is None or (answer := self._call.poll()) is None:
            return None
        self._call.close()
        change, self._call, self._change = self._change, None, None
        self._seats.note_change(change, answer.reason, answer.instances)
        self._journal.write(
            "mig_change",
            destroyed=change.destroy,
            created=change.create,
            reason=answer.reason,
            instances=[one.uuid for one in self.gpu.instances],
        )
        self._problem = answer.reason
        return answer.reason

    def keep(self, running: Collection[int]) -> None:
        """Free the instances of members that no longer have a place."""
        self._seats.keep(running)

    def describe(self, member: Member) -> str:
        """Why a member waits although it has a place; empty where it has an instance.

        Where one can be made for it that is begun here.
        """
        if self._call is not None:
            return CHANGING_INSTANCES
        why = self._seats.describe(member)
        if not why:
            return ""
        change = self._seats.find_change(member)
        if change is not None:
            self._change = change
            self._call = begin_change(self._socket, change)
            return f"{NO_INSTANCE}: {change.create[0]} is being made of free ones"
        return f"{why} ({self._problem})" if self._problem else why

    def has_free(self, member: Member) -> bool:
        """Whether a member fits an instance that is free."""
        return self._seats.find(member) is not None

    def lets_pass(self, member: Member) -> bool:
        """Whether those behind a member that waits may take what is free.

        It waits for an instance that is taken: what is free would not be enough for it. Where one
        has to be made for it, what is free is kept for that.
        """
        return self._call is None and self._seats.waits_for_taken(member)

    def place(
        self, member: Member, share: GpuShare = AS_PLANNED
    ) -> tuple[GpuUse | None, dict[str, str]]:
        """How a member that starts now is put on its instance, and the environment that does it.

        Args:
            member: The member.
            share: What it is given of an instance that it shares.

        Raises:
            OSError: None is free, which nothing but an error of ours makes happen.
        """
        instance = self._seats.take(member)
        if instance is None:
            raise OSError(f"no MIG instance is free for member {member.number}")
        use = GpuUse(
            SharingMode.MIG.value,
            gpu_memory_limit_mb=instance.memory_mb,
            uuids=(instance.uuid,),
            instance=instance.profile,
            gpu_instance=instance.gpu_instance,
            gpu=self.gpu.uuid,
            instance_sms=instance.sms,
            gpu_sms=max((profile.sms for profile in self.gpu.profiles), default=None),
        )
        # CUDA sees one instance at most, and of several GPUs none by its index.
        environment = {"CUDA_VISIBLE_DEVICES": instance.uuid}
        daemon = None if self._daemons is None else self._daemons.get(instance.uuid)
        if daemon is None or not daemon.pipe_directory or member.record.retries.apart:
            return use, environment
        from slurm_colloc.runtime.gpu.member_limits import SharedGpu, place_under_mps

        count = self._seats.count_places(instance.uuid)
        given_mb = member.spec.plan.gpu_memory_limit_mb
        if given_mb is None and instance.memory_mb is not None:
            given_mb = instance.memory_mb // max(1, count)
        is_limited = not member.record.retries.gpu_memory_mb
        inside, environment = place_under_mps(
            SharedGpu((instance.uuid,), instance.memory_mb, count, daemon.pipe_directory),
            thread_percentage=member.spec.plan.thread_percentage,
            limit_mb=given_mb if is_limited else None,
            client_priority=share.client_priority,
        )
        limit_mb = inside.gpu_memory_limit_mb
        return dataclasses.replace(
            use,
            inside=SharingMode.MPS.value,
            thread_percentage=inside.thread_percentage,
            gpu_memory_limit_mb=use.gpu_memory_limit_mb if limit_mb is None else limit_mb,
        ), environment

    # -- MPS inside ---------------------------------------------------------------------------

    def list_stuck(self) -> list[int]:
        """Members that a fault has hit and that keep their server from taking new clients."""
        return [] if self._daemons is None else self._daemons.list_stuck()

    def catch_up(self) -> None:
        """Hear all that the daemons have said up to now; waits for a moment at most."""
        if self._daemons is not None:
            self._daemons.catch_up()

    def let_go(self) -> None:
        """Leave no files behind: Slurm is about to kill all that is left of the pack."""
        if self._daemons is not None:
            self._daemons.let_go()

    def close(self) -> None:
        """Forget what is under way, and end the daemons."""
        if self._call is not None:
            self._call.close()
            self._call = None
        if self._daemons is not None:
            self._daemons.close()
