"""The MIG instances of a pack while it runs: each member gets one, and free ones are changed."""

from __future__ import annotations

from collections.abc import Collection

from slurm_colloc.host.keeper.prepared_mig import PreparedGpu
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.why_not_now import CHANGING_INSTANCES, NO_INSTANCE
from slurm_colloc.runtime.gpu.discover_gpus import BackgroundCall
from slurm_colloc.runtime.gpu.mig_agent import ChangeAnswer, MigChange, begin_change
from slurm_colloc.runtime.gpu.mig_seats import MigSeats
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.members import Member
from slurm_colloc.store.pack.member_states import GpuUse


class PackInstances:
    """What root has made of the pack's GPU, and who has it.

    Args:
        gpu: The GPU with its instances.
        socket: Where root changes them on request; empty where it does not.
        journal: The pack's log.
    """

    def __init__(self, gpu: PreparedGpu, socket: str, journal: Journal) -> None:
        self._seats = MigSeats(gpu, can_change=bool(socket))
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
        return [] if self._call is None else [self._call.fileno()]

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

    def place(self, member: Member) -> tuple[GpuUse | None, dict[str, str]]:
        """How a member that starts now is put on its instance, and the environment that does it.

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
        return use, {"CUDA_VISIBLE_DEVICES": instance.uuid}

    def close(self) -> None:
        """Forget what is under way."""
        if self._call is not None:
            self._call.close()
            self._call = None
