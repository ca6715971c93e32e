"""MPS inside MIG instances that members share: a daemon for each, by the instance's UUID.

A daemon sees its instance alone, and what hits it hits the members on that instance. Where one
cannot be had, that instance takes one member at a time: members in the same walls that share by
time slices are not what was asked for.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.runtime.mps_clients import InstanceClients, MpsClients
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pack_daemon import PackDaemon
from slurm_colloc.runtime.pack_instances import MigSeats
from slurm_colloc.runtime.settled_mode import GpuPatience

if TYPE_CHECKING:
    from slurm_colloc.host.mps.mps_state import StopReport


class InstanceDaemon:
    """The daemon of one instance, and what has become of it.

    Attributes:
        pipe_directory: Where its clients find it; empty where there is none.
        is_ready: Its server takes clients.
        problem: Why there is none, and will be none; empty where that is not so.
        notes: What is worth knowing of it and was not told yet, a sentence each.
    """

    def __init__(self, uuid: str, announce: Callable[[str], None] | None) -> None:
        self.pipe_directory = ""
        self.is_ready = False
        self.problem = ""
        self.notes: list[str] = []
        self._uuid = uuid
        self._announce = announce
        self._directory = ""

    def note_control(
        self, pipe_directory: str, control_ms: float, restarts: int, notes: tuple[str, ...]
    ) -> None:
        """It answers."""
        del control_ms
        self._directory = pipe_directory
        if self._announce is not None:
            self._announce(os.path.dirname(pipe_directory))
        self.notes += notes
        if restarts:
            self.notes.append(f"the MPS daemon inside {self._uuid} was started again")

    def note_ready(self, active_ms: float | None) -> None:
        """Members can be started."""
        del active_ms
        self.pipe_directory, self.is_ready = self._directory, True

    def note_unprepared(self, reason: str) -> None:
        """No prolog prepares one inside an instance."""
        del reason

    def note_lost(self) -> None:
        """It is gone, and is being started again."""
        self.pipe_directory, self.is_ready = "", False

    def note_given_up(self, reason: str) -> None:
        """There is none, and there will be none."""
        self.note_lost()
        self.problem = reason
        self.notes.append(f"no MPS inside {self._uuid}, one member at a time there: {reason}")

    def note_stopped(self, report: StopReport) -> None:
        """It has been ended."""
        if report.unkillable:
            pids = ", ".join(map(str, report.unkillable))
            self.notes.append(f"processes that cannot be killed: {pids}")
        self.notes += [f"left behind: {text}" for text in report.left]


@dataclass(eq=False, kw_only=True)
class InstanceDaemons:
    """The daemons of a pack's instances.

    Attributes:
        pack: The attempt of the pack.
        clients: Is told which members are clients, and what hits them.
        patience: How patient to be.
        seats: Which members are on an instance.
    """

    pack: PackContext
    clients: MpsClients
    patience: GpuPatience
    seats: MigSeats

    def __post_init__(self) -> None:
        self._states: dict[str, InstanceDaemon] = {}
        self._daemons: dict[str, PackDaemon] = {}

    def start(self, uuids: Collection[str]) -> None:
        """Begin to start one in each of these instances."""
        for uuid in uuids:
            state = InstanceDaemon(uuid, self.pack.announce)
            daemon = PackDaemon(
                pack=self.pack,
                gpus=(uuid,),
                clients=InstanceClients(
                    self.clients, functools.partial(self.seats.list_members, uuid)
                ),
                listener=state,
                patience=self.patience,
                logs=uuid,
                has_guard=self.pack.announce is not None,
            )
            self._states[uuid], self._daemons[uuid] = state, daemon
            daemon.start()

    def get(self, uuid: str) -> InstanceDaemon | None:
        """What has become of an instance's daemon; None for an instance that has none."""
        return self._states.get(uuid)

    def is_settled(self, uuid: str) -> bool:
        """Whether members can start on an instance, as far as its daemon goes."""
        state = self._states.get(uuid)
        if state is None or state.problem:
            return True
        return state.is_ready and not self._daemons[uuid].is_mending

    def list_without(self) -> list[str]:
        """Instances that have no daemon, and will have none."""
        return [uuid for uuid, state in self._states.items() if state.problem]

    def take_notes(self) -> list[str]:
        """What is worth knowing and was not told yet, a sentence each."""
        notes = []
        for state in self._states.values():
            notes += state.notes
            state.notes = []
        return notes

    def filenos(self) -> list[int]:
        """What wakes the runner."""
        return [number for daemon in self._daemons.values() for number in daemon.filenos()]

    def work(self) -> None:
        """Hear what has happened."""
        for daemon in self._daemons.values():
            daemon.work()

    def list_stuck(self) -> list[int]:
        """Members that a fault has hit and that keep their server from taking new clients."""
        return [number for daemon in self._daemons.values() for number in daemon.list_stuck()]

    def catch_up(self) -> None:
        """Hear all that the daemons have said up to now; waits for a moment at most."""
        for daemon in self._daemons.values():
            daemon.catch_up()

    def let_go(self) -> None:
        """Leave no files behind: Slurm is about to kill all that is left of the pack."""
        for daemon in self._daemons.values():
            daemon.let_go()

    def close(self) -> None:
        """End them, once all members have ended."""
        for daemon in self._daemons.values():
            daemon.close()
