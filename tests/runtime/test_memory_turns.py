"""Where the GPU memory of a member is that takes turns, and who makes the driver's calls."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.runtime.memory_turns import (
    ANSWER_S,
    Act,
    MemoryState,
    MemoryTurns,
    MovingProcess,
    Step,
    Where,
    compute_turn_s,
    leave,
    note_away,
    note_resumed,
    note_silence,
    note_there,
)
from slurm_colloc.runtime.step_command import StartedProcess
from slurm_colloc_lab.simgpu.gpu_models import A100_40

from ..simgpu.conftest import Simulation, running_simulation
from ..wait_until import wait_until
from .degree_stage import Counters, Stage

# ---- The states; no effects ----------------------------------------------------------------------


@dataclass
class Simulated:
    """A member, and a driver that does what it is asked, or fails as a test wants."""

    state: MemoryState = field(default_factory=MemoryState)
    is_stopped: bool = False
    is_held: bool = False
    has_memory: bool = True
    asked: str = ""

    def do(self, step: Step) -> None:
        self.state, acts = step
        for act in acts:
            if act is Act.STOP:
                # Never stopped before its memory has left.
                assert not self.has_memory
                assert not self.asked
                self.is_stopped = True
            elif act is Act.GO_ON:
                self.resume()
            else:
                # One that is stopped cannot be moved.
                assert not self.is_stopped or act is not Act.SEND_AWAY
                self.asked = act.value

    def resume(self) -> None:
        self.is_stopped = False
        self.do(note_resumed(self.state))

    def answer(self, problem: str, *, is_undone: bool) -> None:
        asked, self.asked = self.asked, ""
        if asked == "away":
            self.has_memory = bool(problem) and is_undone
        elif asked == "back":
            self.has_memory = not problem
        self.is_held = not self.has_memory
        if self.has_memory:
            self.do(note_there(self.state, problem))
        else:
            self.do(note_away(self.state, 20480, problem))

    def check(self) -> None:
        # What runs while it is held is on its way back, or leaving.
        if self.is_held and not self.is_stopped:
            assert self.state.where in (Where.LEAVING, Where.RETURNING)
        if self.is_stopped:
            assert self.state.where is Where.HOST
        if self.state.where is Where.GPU:
            assert self.has_memory
            assert not self.is_stopped


_EVENTS = st.sampled_from(["leave", "resume", "ok", "undone", "stuck", "silence", "lease", "again"])


@given(st.lists(_EVENTS, max_size=40))
def test_it_never_runs_on_while_it_is_held_nor_is_stopped_before_it_has_left(
    events: Sequence[str],
) -> None:
    member = Simulated()
    for event in events:
        if event == "leave":
            member.do(leave(member.state))
        elif event == "resume":
            member.resume()
        elif event == "silence":
            # What was asked for may have been done by half.
            if member.asked:
                member.asked, member.has_memory, member.is_held = "", False, True
            member.do(note_silence(member.state, "no answer"))
        elif event == "lease" and member.state.where is Where.HOST:
            member.has_memory, member.is_held = True, False
            member.is_stopped = False
            member.do(note_there(member.state, ""))
        elif event == "again" and member.state.where is Where.RETURNING:
            member.asked = "back"
        elif event in ("ok", "undone", "stuck") and member.asked:
            member.answer("" if event == "ok" else "it failed", is_undone=event == "undone")
        member.check()
    # In the end it runs, or is stopped with its memory in host memory.
    for _ in range(3):
        if member.state.where is Where.RETURNING:
            member.asked = "back"
        if member.asked:
            member.answer("", is_undone=False)
    assert member.state.where in (Where.GPU, Where.HOST)
    assert member.is_stopped == (member.state.where is Where.HOST)
    assert member.has_memory != member.is_stopped


def test_one_that_failed_is_never_moved_again() -> None:
    state, _ = leave(MemoryState())
    state, acts = note_there(state, "not supported")
    assert (state.where, state.kept, acts) == (Where.GPU, "not supported", ())
    assert leave(state) == (state, ())


def test_moving_costs_at_most_a_twentieth_of_a_turn() -> None:
    assert compute_turn_s(120.0, 2.0, 2.0) == 120.0
    assert compute_turn_s(120.0, 15.0, 10.0) == pytest.approx(500.0)


# ---- Whose turn it is; the driver is played ------------------------------------------------------


class PlayedMoving(MovingProcess):
    """The process that makes the calls, as a test wants it to answer."""

    def __init__(self) -> None:
        super().__init__({}, "")
        self.answers: list[dict[str, Any]] = []
        self.problem = ""
        self.has_memory = True
        self.is_silent = False
        self.kills = 0
        self.is_dead = False
        self.asked: list[tuple[str, int]] = []

    @property
    def has_ended(self) -> bool:
        return self.is_dead

    def send(self, **request: Any) -> None:
        if request["do"] == "renew":
            return
        self.asked.append((request["do"], request["member"]))
        if request["do"] == "adopt" or self.is_silent:
            return
        is_away = self.has_memory and (request["do"] == "away") != bool(self.problem)
        self.answers.append(
            {
                "member": request["member"],
                "at": "away" if is_away else "there",
                "pid": 0,
                "mb": 20_000 if self.has_memory else 0,
                "seconds": 1.0,
                "reason": self.problem,
            }
        )

    def read(self) -> list[dict[str, Any]]:
        answers, self.answers = self.answers, []
        return answers

    def kill(self) -> None:
        self.kills += 1
        self.is_dead = False


class Turns:
    """A pack of which one member at a time fits, with turns of 10 s."""

    def __init__(self, folder: Path, process: StartedProcess, *, members: int = 3) -> None:
        self.stage = stage = Stage(
            folder, process, members=members, usable_mb=38_000, known_mb=20_000, enforces=False
        )
        for member in stage.members.by_number.values():
            job = replace(member.spec.job, turn_s=10.0, gpu_memory_mb=20_000)
            plan = replace(member.spec.plan, host_memory_mb=50_000)
            member.spec = replace(member.spec, job=job, plan=plan)
        self.moving = PlayedMoving()
        self.turns = MemoryTurns(
            pack=stage.context,
            pauser=stage.pauser,
            memory=stage.memory,
            gpu_mode=stage.gpu_mode,
            rates=Counters(stage),
            progress=cast("Any", SimpleNamespace(find_gpu_process_mb=lambda _: 20_000.0)),
            moving=self.moving,
        )
        stage.start_all()

    def pass_time(self, seconds: float, *, is_going_on: bool = True) -> None:
        end = self.stage.now + seconds
        while self.stage.now < end:
            self.stage.now += 0.5
            self.turns.work(self.stage.look, is_going_on=is_going_on)
            self.stage.start_all()

    @property
    def going(self) -> list[int]:
        return [m.number for m in self.stage.members.running() if m.paused_at is None]

    def keeps(self) -> list[str]:
        return [moved.problem for moved in self.turns.list_moved() if moved.mb is None]


@pytest.fixture
def turns(tmp_path: Path, process: StartedProcess) -> Turns:
    return Turns(tmp_path, process)


def test_each_starts_in_turn_and_then_goes_on_in_turn(turns: Turns) -> None:
    seen = []
    for _ in range(5):
        assert len(turns.going) == 1
        seen += turns.going
        turns.pass_time(21.0)
    # A turn is 20 times as long as the second that each way took.
    assert seen[:3] == [1, 2, 3]
    assert set(seen[3:]) <= {1, 2}
    assert turns.keeps() == []


def test_one_that_cannot_be_moved_runs_to_its_end_and_then_the_next_one_starts(
    turns: Turns,
) -> None:
    turns.moving.problem = "not supported (801)"
    # It is undone: the answer to `away` is `there`.
    turns.pass_time(60.0)
    assert (turns.going, turns.keeps()) == ([1], ["not supported (801)"])
    assert turns.moving.asked.count(("away", 1)) == 1
    turns.moving.problem = ""
    turns.stage.end(1)
    turns.pass_time(1.0)
    assert turns.going == [2]


def test_the_turn_of_one_without_gpu_memory_begins_anew(turns: Turns) -> None:
    # A program that loads its libraries for longer than a turn.
    turns.moving.has_memory = False
    turns.pass_time(25.0)
    assert (turns.going, turns.keeps()) == ([1], [])
    assert turns.moving.asked == [("away", 1), ("away", 1)]
    turns.moving.has_memory = True
    turns.pass_time(10.0)
    assert turns.going == [2]


def test_one_that_is_ended_comes_back_first_and_the_others_make_room(turns: Turns) -> None:
    turns.pass_time(12.0)
    (away,) = [m for m in turns.stage.members.running() if m.paused_at is not None]
    turns.moving.problem = "out of memory (2)"
    turns.stage.pauser.resume([away])
    turns.moving.problem = ""
    turns.pass_time(8.0)
    assert away.paused_at is None
    assert not away.is_moved
    assert turns.going == [away.number]


def test_a_driver_that_hangs_costs_its_process_and_the_member_keeps_its_memory(
    turns: Turns,
) -> None:
    turns.moving.is_silent = True
    turns.pass_time(ANSWER_S + 15.0)
    assert turns.moving.kills == 1
    assert turns.going == [1]
    assert turns.moving.asked == [("away", 1), ("back", 1)]
    turns.moving.is_silent = False
    turns.moving.answers.append(
        {"member": 1, "at": "there", "pid": 0, "mb": None, "seconds": 1.0, "reason": ""}
    )
    turns.pass_time(30.0)
    assert turns.keeps() == [f"the driver did not answer within {ANSWER_S:g} s"]
    assert turns.going == [1]


def test_where_the_process_that_calls_was_killed_another_one_knows_what_is_away(
    turns: Turns,
) -> None:
    turns.pass_time(12.0)
    turns.moving.is_dead = True
    turns.pass_time(1.0)
    assert turns.moving.asked == [("away", 1), ("adopt", 1)]
    turns.pass_time(60.0)
    assert turns.keeps() == []


def test_without_host_memory_for_it_none_is_moved(turns: Turns) -> None:
    for member in turns.stage.members.by_number.values():
        member.spec = replace(member.spec, plan=replace(member.spec.plan, host_memory_mb=5000))
    turns.pass_time(30.0)
    assert turns.moving.asked == []
    (told,) = turns.keeps()
    assert told.startswith("it needs 20000 MB of host memory, and its part of the pack's --mem")


def test_as_the_pack_ends_all_come_back(turns: Turns) -> None:
    turns.pass_time(12.0)
    assert [m.is_moved for m in turns.stage.members.running()] == [True, False]
    turns.stage.measured_degree.stop()
    turns.pass_time(2.0, is_going_on=False)
    assert ("back", 1) in turns.moving.asked
    assert not any(m.is_moved or m.paused_at for m in turns.stage.members.running())


# ---- The process that makes the calls, on a simulated GPU ----------------------------------------


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with running_simulation("sgm", {"n1": [A100_40]}) as made:
        yield made


class Moving:
    """The process, and what it has said."""

    def __init__(self, simulation: Simulation) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-IB", "-m", "slurm_colloc.runtime.programs.move_memory"],
            env=simulation.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def send(self, do: str, member: int = 1, pids: Sequence[int] = ()) -> None:
        assert self.process.stdin is not None
        line = json.dumps({"do": do, "member": member, "pids": list(pids)})
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def ask(self, do: str, member: int = 1, pids: Sequence[int] = ()) -> dict[str, Any]:
        self.send(do, member, pids)
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 60.0)[0], "no answer"
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(60.0)
        self.close()
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout):
            if file is not None:
                file.close()


@pytest.fixture
def moving(simulation: Simulation) -> Iterator[Moving]:
    made = Moving(simulation)
    try:
        yield made
    finally:
        made.close()


def read_mb(simulation: Simulation, pid: int) -> int:
    return next(one.gpu_memory_mb for one in simulation.node.read_processes() if one.pid == pid)


def test_it_moves_the_one_process_that_has_gpu_memory(
    simulation: Simulation, moving: Moving
) -> None:
    pid = simulation.start("--gpu-memory", "20G", "--seconds", "600").pid
    answer = moving.ask("away", pids=[os.getpid(), pid])
    assert (answer["at"], answer["pid"], answer["mb"]) == ("away", pid, 20 * 1024 + 512)
    assert (answer["reason"], read_mb(simulation, pid)) == ("", 0)
    os.kill(pid, signal.SIGSTOP)
    answer = moving.ask("back")
    assert (answer["at"], answer["reason"]) == ("there", "")
    assert read_mb(simulation, pid) == 20 * 1024 + 512


def test_none_or_several_processes_with_gpu_memory_are_left_alone(
    simulation: Simulation, moving: Moving
) -> None:
    pids = [simulation.start("--seconds", "600").pid for _ in range(2)]
    answer = moving.ask("away", pids=pids)
    assert answer["at"] == "there"
    assert answer["reason"] == "2 of its processes have GPU memory, and one must"
    answer = moving.ask("away", pids=[os.getpid()])
    assert (answer["at"], answer["mb"], answer["reason"]) == ("there", 0, "")


@pytest.mark.parametrize("call", ["Lock", "Checkpoint"])
def test_what_fails_is_undone(simulation: Simulation, moving: Moving, call: str) -> None:
    pid = simulation.start("--seconds", "600").pid
    simulation.run("faults", f"fail=cuCheckpointProcess{call}:999")
    answer = moving.ask("away", pids=[pid])
    assert answer["at"] == "there"
    assert answer["reason"] == f"cuCheckpointProcess{call}: unknown error (999)"
    simulation.run("faults")
    # It was unlocked.
    assert moving.ask("away", pids=[pid])["at"] == "away"


def test_where_it_cannot_be_brought_back_that_is_said(
    simulation: Simulation, moving: Moving
) -> None:
    pid = simulation.start("--gpu-memory", "20G", "--seconds", "600").pid
    moving.ask("away", pids=[pid])
    other = simulation.start("--gpu-memory", "30G", "--seconds", "600")
    answer = moving.ask("back")
    assert answer["at"] == "away"
    assert answer["reason"] == "cuCheckpointProcessRestore: out of memory (2)"
    other.kill()
    other.wait()
    assert moving.ask("back")["at"] == "there"


def test_when_its_runner_is_gone_all_is_brought_back_as_soon_as_there_is_room(
    simulation: Simulation, moving: Moving
) -> None:
    pid = simulation.start("--gpu-memory", "20G", "--seconds", "600").pid
    moving.ask("away", pids=[pid])
    os.kill(pid, signal.SIGSTOP)
    other = simulation.start("--gpu-memory", "30G", "--seconds", "600")
    moving.process.send_signal(signal.SIGTERM)
    assert moving.process.stdin is not None
    moving.process.stdin.close()
    time.sleep(0.5)
    assert moving.process.poll() is None
    other.kill()
    other.wait()
    assert moving.process.wait(60.0) == 0
    wait_until(lambda: read_mb(simulation, pid) == 20 * 1024 + 512, "it has its memory again")


def test_another_process_takes_over_what_one_that_hung_has_moved(
    simulation: Simulation, moving: Moving
) -> None:
    pid = simulation.start("--gpu-memory", "20G", "--seconds", "600").pid
    moving.ask("away", pids=[pid])
    moving.process.kill()
    moving.process.wait()
    successor = Moving(simulation)
    successor.send("adopt", pids=[pid])
    assert successor.end() == 0
    assert read_mb(simulation, pid) == 20 * 1024 + 512


def test_a_driver_without_the_calls_is_named(simulation: Simulation) -> None:
    (simulation.directory / "lib" / "libcuda.so.1").unlink()
    pid = simulation.start("--seconds", "600").pid
    moving = Moving(simulation)
    answer = moving.ask("away", pids=[pid])
    assert answer["at"] == "there"
    assert "libcuda.so.1" in answer["reason"]
    assert moving.end() == 0
