"""A pack of four places, whose ramp is tried without Slurm; the test says how fast members are."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_colloc.model.member import MemberState
from slurm_colloc.model.plan import PackRequest
from slurm_colloc.model.sbatch.dependency import ConditionOutlook
from slurm_colloc.runtime.gpu.gpu_mode import GpuMode
from slurm_colloc.runtime.guarded_steps import GuardedSteps
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.launch.step_command import StartedProcess
from slurm_colloc.runtime.outcome.write_states import StateWriter
from slurm_colloc.runtime.pack.slurm_decision import SlurmDecision
from slurm_colloc.runtime.queue.allocation import Allocation
from slurm_colloc.runtime.queue.may_start import StartQueue
from slurm_colloc.runtime.queue.measured_degree import MeasuredDegree
from slurm_colloc.runtime.queue.members import Member, PackMembers, PackPlace
from slurm_colloc.runtime.queue.probe_members import ProbeWindow
from slurm_colloc.runtime.queue.time_left import TimeLeft
from slurm_colloc.runtime.queue.waiting_facts import WaitingFacts
from slurm_colloc.runtime.watch.member_progress import ProgressReader
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.pack.member_states import StateRecord, begin_attempt
from slurm_colloc.store.pack.pack_directory import read_spec

from ..store.builders import build_pack

RATE = 10.0


class Stage:
    """A pack of four places, with its files and without Slurm.

    Args:
        folder: Where its state is.
        process: What every member that runs is given as its process.
        members: How many there are.
        start: Members that start without being measured.
        solo: The rate alone by their plans.
        unwatched: Why nothing is measured.
        time_limit_s: The pack's.
        has_mps: They share through MPS.
        probes: The first runs alone first.
    """

    def __init__(
        self,
        folder: Path,
        process: StartedProcess,
        *,
        members: int = 4,
        start: int | None = 1,
        solo: float | None = RATE,
        unwatched: str = "",
        time_limit_s: int | None = None,
        has_mps: bool = False,
        probes: bool = False,
    ) -> None:
        state = State(folder / "state", "here")
        state.prepare()
        with state.writing([build_pack("s", members=members)]):
            pass
        self.pack = state.pack_path("s.0")
        self.attempt = begin_attempt(self.pack, 1)
        self.process = process
        self.members = PackMembers([PackPlace(index, 2, ()) for index in range(4)])
        journal = Journal(self.pack)
        self.states = StateWriter(self.pack, self.attempt, steps=GuardedSteps(journal))
        for number in range(1, members + 1):
            spec = read_spec(self.pack, number)
            spec = dataclasses.replace(
                spec,
                job=dataclasses.replace(spec.job, time_limit_s=3600 if probes else 60),
                plan=dataclasses.replace(spec.plan, solo_steps_per_s=solo),
            )
            record = StateRecord(MemberState.PENDING, self.attempt)
            self.members.by_number[number] = Member(number, spec, record)
            self.members.waiting.append(number)
        self.stopped: list[int] = []
        self.probe_window = ProbeWindow(
            pack=self.pack, shown_id="1", members=self.members, journal=journal,
            is_wanted=probes, instruments=True, find_gpu_model=lambda: "NVIDIA H200",
            why_unwatched=lambda: "", end=lambda _: None,
        )  # fmt: skip
        progress = ProgressReader(
            self.pack, self.members, self.probe_window, instruments=True, has_mps=lambda: has_mps,
            find_gpu_memory_mb=lambda: 80_000, bound=1.5,
        )  # fmt: skip
        planned = state.read_pack("s.0")
        assert planned is not None
        request = PackRequest(1, None, 2, None, time_limit_s)
        self.clock = 0.0
        planned = dataclasses.replace(planned, request=request)
        self.time_left = TimeLeft(
            self.pack, planned, self.members, site_requeues=True, clock=lambda: self.clock
        )
        waiting = WaitingFacts(self.pack, "1", self.members, self.time_left)
        self.measured_degree = MeasuredDegree(
            pack=self.pack, attempt=self.attempt, start_degree=start, time_left=self.time_left,
            members=self.members, waiting=waiting, journal=journal,
            probe_window=self.probe_window, site_requeues=True, why_unwatched=lambda: unwatched,
            progress=progress, step_back=lambda member: self.stopped.append(member.number),
        )  # fmt: skip
        allocation = Allocation("1", "1", "n", 0, 1, (), (), {})
        self.slurm_decision = SlurmDecision(allocation, None, journal)
        self.gpu_mode = GpuMode(self.pack, planned, allocation, self.attempt, journal, lone=True)
        self.outlook = (ConditionOutlook.SATISFIED, "")
        self.start_queue = StartQueue(
            pack=self.pack, members=self.members, waiting=waiting, time_left=self.time_left,
            judge=lambda _: self.outlook, slurm_decision=self.slurm_decision,
            gpu_mode=self.gpu_mode, probe_window=self.probe_window,
            measured_degree=self.measured_degree, states=self.states, journal=journal,
        )  # fmt: skip
        self.at = time.time() + 1
        self.steady = False

    def start(self) -> int | None:
        """Start the next member, if it may start; in the first place that is free."""
        member = self.start_queue.find_start()
        if member is None:
            return None
        self.probe_window.open_for(member)
        number = member.number
        self.members.waiting.remove(number)
        next(place for place in self.members.places if place.occupant is None).occupant = number
        member.process, member.pid = self.process, self.process.pid
        started_at = self.at + number
        self.states.write(member, MemberState.RUNNING, starts=1, started_at=started_at, reason="")
        return number

    def pass_time(self, seconds: float, rate: Callable[[int], float], **activity: float) -> None:
        """The monitor writes its figures every two seconds: steps per second for so many."""
        end = self.at + seconds
        done: dict[int, float] = getattr(self, "done", {})
        while self.at < end:
            self.at += 2
            running = self.members.running()
            for member in running:
                done[member.number] = done.get(member.number, 0.0) + 2 * rate(len(running))
            rows = {
                str(member.number): {
                    "start": 1, "steps": int(done[member.number]), "steady": self.steady,
                    "steps_per_s": rate(len(running)),
                    "last_step_age_s": 0.0, "settled_s": self.at, "gpu_memory_mb": 5000.0,
                }
                for member in running
            }  # fmt: skip
            value: dict[str, Any] = {
                "at": self.at,
                "gpus": {"GPU-1": activity},
                "problems": {},
                "members": rows,
            }
            write_json(f"{self.pack}/latest.json", value)
            self.probe_window.work()
            self.measured_degree.work()
        self.done = done

    def events(self) -> list[dict[str, Any]]:
        lines = (self.pack / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "ramp"]
