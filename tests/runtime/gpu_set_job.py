"""A Slurm job with several GPU sets, each of which a test may let begin; see stepped_submission."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurm_colloc.host.system.node_processes import identify
from slurm_colloc.model.job import Job
from slurm_colloc.model.member import MemberState, SlurmJobState
from slurm_colloc.model.plan import PackRequest, Policy
from slurm_colloc.runtime.verdict import Verdict
from slurm_colloc.runtime.wiring import RunnerParts
from slurm_colloc.store.all_packs import name_gpu_set
from slurm_colloc.store.indexes import build_pack_id
from slurm_colloc.store.pack_directory import list_members
from slurm_colloc.store.written_ends import RunnerProcess, write_runner

from ..packs import build_member, build_pack, replace_job, write_packs
from .stepped_submission import GROUP, Submission, run_plainly


class GpuSetJob(Submission):
    """One Slurm job; packs are named by their set's number."""

    def submit_sets(
        self,
        *counts: int,
        degree: int = 2,
        gpus: Sequence[int] = (),
        change: Callable[[Job], Job] = lambda job: job,
        wide: Sequence[int] = (),
        policy: Policy = Policy(),  # noqa: B008
        first: int = 1,
        parts: tuple[tuple[str, tuple[int, ...]], ...] = (),
    ) -> None:
        """Sets with so many members each, numbered through.

        Args:
            *counts: How many members each has.
            degree: Places of each.
            gpus: GPUs of each; one where nothing is said.
            change: What makes each member's job another one.
            wide: Numbers of members with two GPUs.
            policy: How they were planned.
            first: The first member's number.
            parts: Other Slurm jobs of the call.
        """
        sizes = tuple(gpus or [1] * len(counts))
        own = tuple((name_gpu_set(self.name, number), (0,)) for number in range(len(counts)))
        packs = []
        for number, count in enumerate(counts):
            members = []
            for each in range(first, first + count):
                plan = {"gpus": 2 if each in wide else 1}
                entry = build_member(each, gpus=0, time_limit_s=60, plan=plan)
                members.append(replace_job(entry, change))
            first += count
            pack = build_pack(
                self.name,
                members=members,
                pack_id=build_pack_id(name_gpu_set(self.name, number), 0),
                degree=degree,
                request=PackRequest(sizes[number], None, 2 * degree, None, 600),
                group=GROUP,
                policy=policy,
                closed="it has several GPU sets",
                parts=(*own, *parts),
                gpu_set=number,
                gpu_sets=sizes,
            )
            packs.append(pack)
        write_packs(self.state, *packs, job_id=self.job_id)
        self.slurm.show(self.job_id, SlurmJobState.RUNNING)

    def path(self, index: int) -> Path:
        return self.state.pack_path(build_pack_id(name_gpu_set(self.name, index), 0))

    def begin(self, index: int, *, places: int = 2, attempt: int = 1) -> RunnerParts:
        itself = identify(os.getpid())
        assert itself is not None
        runner = RunnerProcess(os.uname().nodename, itself.pid, itself.start_ticks)
        write_runner(self.path(index), runner)
        return super().begin(index, places=places, attempt=attempt)

    def where(self) -> dict[int, int]:
        """In which set each member is."""
        found: dict[int, int] = {}
        for number in range(len(self.state.list_all())):
            found |= dict.fromkeys(list_members(self.path(number)), number)
        return found

    def turn(self, index: int) -> None:
        """What a runner's turn does about its waiting members."""
        parts = self.parts[index]
        parts.take_over.work(at_once=True)
        parts.place_filler.work()

    def end_member(self, index: int, number: int, verdict: Verdict | None = None) -> None:
        """A member that runs in a set ends."""
        parts = self.parts[index]
        member = parts.members.by_number[number]
        parts.states.write(member, MemberState.RUNNING, starts=member.record.starts + 1)
        parts.ends.ends.end(member, verdict or Verdict(MemberState.COMPLETED, None))


def begin_sets(
    job: GpuSetJob, monkeypatch: pytest.MonkeyPatch, *numbers: int, places: int = 2
) -> list[list[int]]:
    """Let sets begin; whom each has started, as it goes on."""
    return [run_plainly(monkeypatch, job.begin(number, places=places)) for number in numbers]
