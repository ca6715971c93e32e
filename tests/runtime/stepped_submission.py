"""A submission of several packs, each of which a test may let begin, on what squeue shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import SlurmUnreachable
from slurm_colloc.model.job import Job
from slurm_colloc.model.measured_curve import DegreeState
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.plan import PackRequest, Policy
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.members import Member, PackPlace
from slurm_colloc.runtime.wiring import RunnerParts, build_context
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmJob
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import begin_attempt
from slurm_colloc.store.pack_directory import list_members, read_pack
from slurm_colloc.store.runner_requests import DegreeRecord, write_degree

from ..packs import build_member, build_pack, replace_job, write_packs
from ..wait_until import wait_until
from .stepped_runner import PlainProcess, PlainSlurm

GROUP = (("account", "a"), ("partition", "p"))


class Queue(PlainSlurm):
    """What squeue shows, as a test has set it."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, SlurmJob] = {}
        self.dependencies: list[str] = []
        self.is_silent = False

    def list_jobs(self) -> dict[str, SlurmJob]:
        if self.is_silent:
            raise SlurmUnreachable("no answer")
        return dict(self.jobs)

    def list_dependencies(self) -> list[str]:
        return list(self.dependencies)

    def cancel(self, *job_ids: str) -> None:
        self.done.append(("cancel", *job_ids))

    def show(self, job_id: str, state: SlurmJobState, reason: str = "Resources") -> None:
        self.jobs[job_id] = SlurmJob(job_id, state, "0:00", "1:00", "", reason, "")


class Submission:
    """One submission: packs of an array, each of which a test may let begin.

    Args:
        folder: A directory of the test's own.
        name: The submission's name in the state.
        job_id: Its id.
        slurm: What squeue shows; None for a queue of its own.
    """

    def __init__(
        self, folder: Path, name: str = "s", job_id: str = "7", slurm: Queue | None = None
    ) -> None:
        self.state = State(folder / "state", "here")
        self.folder = folder
        self.name = name
        self.job_id = job_id
        self.slurm = slurm or Queue()
        self.room: dict[int, int] = {}
        self.parts: dict[int, RunnerParts] = {}
        self._logs: list[int] = []

    def submit(
        self,
        *counts: int,
        change: Callable[[Job], Job] = lambda job: job,
        policy: Policy = Policy(),  # noqa: B008
        host_memory_mb: int | None = None,
        **record: object,
    ) -> None:
        """Packs with so many members each, numbered through."""
        indices = tuple(101 + at for at in range(len(counts)))
        packs, first = [], 1
        for index, count in zip(indices, counts, strict=True):
            members = [
                replace_job(build_member(number, gpus=0, time_limit_s=60), change)
                for number in range(first, first + count)
            ]
            first += count
            values: dict[str, Any] = {
                "is_array": True,
                "degree": 8,
                "request": PackRequest(1, None, 16, host_memory_mb, 600),
                "group": GROUP,
                "policy": policy,
                "closed": "it is an element of a job array",
                **record,
            }
            packs.append(build_pack(self.name, index, members, indices, **values))
        write_packs(self.state, *packs, job_id=self.job_id)
        for index in indices:
            self.slurm.show(f"{self.job_id}_{index}", SlurmJobState.PENDING)

    def path(self, index: int) -> Path:
        return self.state.pack_path(f"{self.name}.{index}")

    def begin(self, index: int, *, places: int = 8, attempt: int = 1) -> RunnerParts:
        """Let a pack's runner begin; the test does what its loop would."""
        pack = self.path(index)
        record = read_pack(pack)
        assert record is not None
        log = os.open(self.folder / "slurm.log", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._logs.append(log)
        context = build_context(
            pack,
            record,
            attempt=begin_attempt(pack, attempt),
            allocation=Allocation(
                f"{self.job_id}_{index}", self.job_id, "node1", attempt - 1, 4, ((0,), (1,)), (),
                {"PATH": os.environ["PATH"]},
            ),
            settings=Settings(monitor=False, instrument=False, pause=False, launcher="process"),
            slurm=self.slurm,
        )  # fmt: skip
        parts = RunnerParts(context, slurm_log=log)
        parts.gpu_mode.open()
        parts.monitor.open()
        parts.members.places = [PackPlace(at, 2, ()) for at in range(places)]
        parts.take_over.find_room = (  # type: ignore[method-assign]
            lambda view: self.room.get(index, 0)  # noqa: ARG005
        )
        parts.intake.adopt_taken()
        self.slurm.show(f"{self.job_id}_{index}", SlurmJobState.RUNNING)
        self.parts[index] = parts
        return parts

    def look(self, index: int) -> None:
        """Let a pack look for members, as often as it takes until Slurm has answered."""
        taker = self.parts[index].take_over
        for _ in range(2):
            taker.work(at_once=True)
            wait_until(lambda: not taker.jobs.is_asking, "Slurm has answered")
        taker.work(at_once=True)

    def where(self) -> dict[int, int]:
        """In which pack each member is."""
        indices = [int(each.partition(".")[2]) for each in self.state.list_all()]
        return {number: index for index in indices for number in list_members(self.path(index))}

    def settle(self, index: int, **values: object) -> None:
        """Say what a pack's runner has found out."""
        record = DegreeRecord(1, DegreeState.SETTLED, **values)  # type: ignore[arg-type]
        write_degree(self.path(index), record)

    def close(self) -> None:
        for log in self._logs:
            os.close(log)


def run_plainly(monkeypatch: pytest.MonkeyPatch, parts: RunnerParts) -> list[int]:
    """Start plain processes; who was started."""
    started: list[int] = []

    def start(member: Member, _place: PackPlace, _likely: int | None = None) -> bool:
        member.process = PlainProcess()
        started.append(member.number)
        return True

    monkeypatch.setattr(parts.starter, "start", start)
    return started
