"""A runner's parts as they work together on a pack's directory, without Slurm and without a GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slurm_colloc.model.job import Job
from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import PackRequest
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.members import Member, PackPlace
from slurm_colloc.runtime.step_command import StartedProcess
from slurm_colloc.runtime.wiring import RunnerParts, build_context
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.inbox import format_number, take
from slurm_colloc.store.member_states import StateRecord, begin_attempt, read_state
from slurm_colloc.store.pack_directory import read_pack

from ..packs import build_member, build_pack, replace_job, write_packs
from ..wait_until import wait_until

CONFIG = {"KillWait": "30 sec", "JobRequeue": "1", "ProctrackType": "proctrack/linuxproc"}

NOBODY = 2**30
"""A process id that no process can have (proc(5), pid_max)."""


class PlainSlurm(SlurmAccess):
    """Answers what a test has set, and keeps what it was asked to do."""

    def __init__(self) -> None:
        super().__init__({})
        self.fields: dict[str, str] | None = {"JobState": "RUNNING", "Restarts": "0"}
        self.steps: list[tuple[str, str]] = []
        self.done: list[tuple[Any, ...]] = []

    def read_config(self) -> dict[str, str]:
        return dict(CONFIG)

    def read_job(self, job_id: str) -> dict[str, str] | None:  # noqa: ARG002
        return self.fields

    def list_steps(self, job_id: str) -> list[tuple[str, str]]:  # noqa: ARG002
        return self.steps

    def signal_steps(self, steps: Sequence[str], signal: int) -> None:
        self.done.append(("signal", *steps, signal))

    def end_steps(self, steps: Sequence[str]) -> None:
        self.done.append(("end", *steps))


class PlainProcess(StartedProcess):
    """A process that ends when a test says so."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.kills = 0

    @property
    def pid(self) -> int:
        return NOBODY

    def poll(self) -> int | None:
        return self.status

    def kill(self) -> None:
        self.kills += 1


class SteppedRunner:
    """The runner of one attempt of a pack.

    A test does itself what the runner's loop does, one step at a time, and says what Slurm answers.

    Args:
        folder: Where its state is.
        members: How many it has; all wait in its inbox.
        places: How many run at once.
        change: What makes each member's job another one.
        attempt: The attempt's number.
        launcher: How members are started.
        has_slurm: Without it the pack runs locally.
        settings: Of its node; by default nothing is watched.
        **record: Fields of its pack.json.
    """

    def __init__(
        self,
        folder: Path,
        *,
        members: int = 3,
        places: int = 2,
        change: Callable[[Job], Job] = lambda job: job,
        attempt: int = 1,
        launcher: str = "process",
        has_slurm: bool = True,
        settings: Settings | None = None,
        **record: Any,
    ) -> None:
        self.state = State(folder / "state", "here")
        request = PackRequest(1, None, 4, None, record.pop("time_limit_s", None))
        entries = [build_member(number, gpus=0) for number in range(1, members + 1)]
        entries = [replace_job(entry, change) for entry in entries]
        planned = build_pack("s", members=entries, request=request, degree=places, **record)
        self.pack = write_packs(self.state, planned)
        found = read_pack(self.pack)
        assert found is not None
        self.record = found
        self.entries = planned.members
        self.slurm = PlainSlurm()
        self.allocation = Allocation(
            "7", "7", "node1", attempt - 1, 4, ((0,), (1,)), (), {"PATH": os.environ["PATH"]}
        )
        self.log = folder / "slurm.log"
        self._log = os.open(self.log, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self.context = build_context(
            self.pack,
            self.record,
            attempt=begin_attempt(self.pack, attempt),
            allocation=self.allocation,
            settings=settings
            or Settings(monitor=False, instrument=False, pause=False, launcher=launcher),
            slurm=self.slurm if has_slurm else None,
        )
        self.journal = self.context.journal
        self.parts = RunnerParts(self.context, slurm_log=self._log)
        self.parts.gpu_mode.open()
        self.parts.monitor.open()
        self.members = self.parts.members
        self.members.places = [PackPlace(index, 2, ()) for index in range(places)]

    def close(self) -> None:
        """End what runs."""
        for member in self.members.running():
            if not isinstance(member.process, PlainProcess):
                assert member.process is not None
                end_process(member.process)
        os.close(self._log)

    def adopt(self, *numbers: int) -> list[Member]:
        """Take members from the inbox; they wait for their start."""
        for number in numbers:
            assert take(str(self.pack), number)
            self.parts.intake.adopt(number)
        return [self.members.by_number[number] for number in numbers]

    def folder(self, number: int) -> Path:
        """A member's directory."""
        return self.pack / "members" / format_number(number)

    def run_member(
        self, number: int, *, launcher: str = "srun", is_up: bool = True
    ) -> tuple[Member, PlainProcess]:
        """Have a member run as a plain process, as though it had been started in the next place."""
        (member,) = self.adopt(number)
        self.members.waiting.remove(number)
        process = PlainProcess()
        member.process, member.launcher = process, launcher
        member.prefix = str(self.folder(number) / "run.1.1")
        next(place for place in self.members.places if place.occupant is None).occupant = number
        if is_up:
            self.write(member, "started", pid=NOBODY, wrapper_pid=None, step=str(number), at=5.0)
            self.parts.starts.collect()
        return member, process

    def write(self, member: Member, kind: str, **value: Any) -> None:
        """Write what a member's wrapper writes, `started` or `exit`."""
        assert member.prefix, "it has no start"
        Path(f"{member.prefix}.{kind}").write_text(json.dumps({"schema": 1, **value}))

    def end_member(
        self, member: Member, wait_status: int = 0, signals: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Have a member that runs end, and the runner look at it."""
        self.write(member, "exit", wait_status=wait_status, foreign_signals=list(signals), at=9.0)
        assert isinstance(member.process, PlainProcess)
        member.process.status = 0
        self.parts.ends.collect()

    def read(self, number: int) -> StateRecord:
        """A member's state as it stands on disk."""
        record = read_state(self.pack, number, 9)
        assert record is not None
        return record

    def states(self) -> dict[int, MemberState]:
        """All members' states on disk."""
        return {number: self.read(number).state for number in self.members.by_number}

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What stands in the pack's log of one kind."""
        lines = (self.pack / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]


def end_process(process: StartedProcess) -> None:
    """End a process and wait for it."""
    process.kill()
    wait_until(lambda: process.poll() is not None, "it has ended")
