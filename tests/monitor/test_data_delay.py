"""Trainings that wait for data by a known delay, and members that go wrong: up to the summary."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.member import ExitCode, MemberState, SlurmJobState
from slurm_colloc.report.data_tables import render_csv
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import StateRecord, begin_attempt, write_state
from slurm_colloc.store.pack_directory import Setup, write_ended, write_setup

from ..instrument.counted_programs import ROOT, build_environment
from ..packs import build_member, build_pack, write_packs
from ..report.generated import build_summary, render_report
from ..simgpu.conftest import Simulation
from ..wait_until import wait_until
from .watched_pack import WatchedPack, environment_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing"),
]

# Truth is what the program's own clock says around `next`, once it has trained for half its time:
# what comes before is warm-up.
TRAINING = """\
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

workers, delay_s, step_s, length_s = int(sys.argv[1]), *map(float, sys.argv[2:])

class Delayed(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, row):
        time.sleep(delay_s / 4)
        return torch.ones(8)

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
batches = iter(DataLoader(Delayed(), batch_size=4, num_workers=workers))
begun = settled = None
waited_s, steps = 0.0, 0
while True:
    before = time.monotonic()
    batch = next(batches)
    now = time.monotonic()
    waited_s += now - before
    time.sleep(step_s)
    model(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    steps += 1
    now = time.monotonic()
    begun = begun or now
    if settled is None and now - begun >= length_s / 2:
        settled, waited_s = now, 0.0
    if now - begun >= length_s:
        break
print(f"steps {steps} share {waited_s / (now - settled)}", flush=True)
del batches
"""

# Without PyTorch; it says itself how far it is.
STEPPING = """\
import os, signal, sys, time
from slurm_colloc import progress

end, length_s = sys.argv[1], float(sys.argv[2])
child = os.fork() if end == "fork" else -1
steps, until = 0, time.monotonic() + length_s
while time.monotonic() < until:
    time.sleep(0.05)
    steps += 1
    progress.step()
print(f"steps {steps}", flush=True)
if child > 0:
    os.waitpid(child, 0)
if end == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
"""

SUBMISSION = "20260101-000000-a"
WITHOUT, TOO_SLOW, HIDDEN, CRASHED, SILENT, FORKED, BRIEF = range(1, 8)
LENGTH_S = 16
# Workers, delay of a batch and time of a step, in seconds: without workers all of a delay is waited
# for; two workers bring a batch every 60 ms, or every 10 ms.
DELAYS = {WITHOUT: (0, 0.02, 0.03), TOO_SLOW: (2, 0.12, 0.02), HIDDEN: (2, 0.02, 0.04)}


class ReportedPack(WatchedPack):
    """A pack of a state directory, so that there is a summary of it."""

    def __post_init__(self) -> None:
        self.state = State(self.directory / "state")
        self.state.prepare()
        self.progress.mkdir()

    @property
    def pack(self) -> Path:
        return self.directory / "state" / "packs" / f"{SUBMISSION}.0"

    def plan(self, numbers: range, gpu: str = "") -> None:
        # Scripts that are the same would be one file, and each is written anew when it is started.
        entries = [build_member(number, str(number).encode()) for number in numbers]
        write_packs(self.state, build_pack(SUBMISSION, members=entries), job_id="4711")
        assert begin_attempt(self.pack, 1) == 1
        gpus = (gpu,) if gpu else ()
        setup = Setup(1, "auto", "timeslice", "", "n1", "", gpus, 143771, "NVIDIA H200")
        write_setup(self.pack, setup)

    def start_program(
        self, number: int, text: str, *words: object, gpu: Mapping[str, str] | None = None
    ) -> None:
        """Start a Python program as a member that is counted.

        Args:
            number: The member.
            text: The program.
            words: Its arguments.
            gpu: The environment of a simulated GPU that something of it uses; None for no GPU.
        """
        program = self.directory / f"{number}.py"
        program.write_text(text)
        own = build_environment(self.progress / f"{number:04d}.1", **(gpu or {}))
        # As if slurm_colloc were installed for it.
        own["PYTHONPATH"] += f":{ROOT}"
        command = " ".join(map(str, (sys.executable, program, *words)))
        script = f"exec {command}"
        if gpu is not None:
            user = "simgpu run --sm 20 --seconds 300 &"
            script = f"{user}\n{command}\nstatus=$?; kill $!; exit $status"
        self.start_member(number, script, extra=own)

    def finish(self, monitor: Any) -> Any:
        """Wait for the members, write down how they ended as a runner does, and sum up."""
        for process in self.started:
            if process is not monitor:
                process.wait(300)
        wait_until(lambda: not (self.latest or {"members": 1})["members"], "all have ended")
        self.end_monitor(monitor)
        for path in sorted((self.pack / "members").glob("*/run.1.1.exit")):
            end = json.loads(path.read_text())
            code = ExitCode.from_wait_status(end["wait_status"])
            is_good = code.shell_status == 0
            record = StateRecord(
                state=MemberState.COMPLETED if is_good else MemberState.FAILED,
                attempt=1,
                starts=1,
                started_at=end["started_at"],
                ended_at=end["at"],
                exit_code=code,
                node="n1",
                reason="" if is_good else f"it was ended by signal {code.signal}",
            )
            write_state(self.pack, int(path.parent.name), record)
        self.state.forget_open(self.pack.name)
        write_ended(self.pack, SlurmJobState.COMPLETED)
        return build_summary(self.pack, self.state.root)

    def said(self, number: int) -> dict[str, list[float]]:
        """What a member printed: a word and a number, again and again."""
        found: dict[str, list[float]] = {}
        words = (self.pack / "members" / f"{number:04d}" / "out").read_text().split()
        for word, value in zip(words[::2], words[1::2], strict=True):
            found.setdefault(word, []).append(float(value))
        return found


@dataclass
class Seen:
    """A pack that has run, and its summary."""

    pack: ReportedPack
    summary: Any

    def member(self, number: int) -> Any:
        return next(dict(m) for m in self.summary["members"] if m["member"] == number)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """All of them side by side, with a real monitor; there is no GPU."""
    pack = ReportedPack(tmp_path_factory.mktemp("delay"))
    try:
        pack.plan(range(1, 8))
        monitor = pack.start_monitor(interval_s=1.0)
        for number, delay in DELAYS.items():
            pack.start_program(number, TRAINING, *delay, LENGTH_S)
        pack.start_program(CRASHED, STEPPING, "crash", LENGTH_S)
        pack.start_program(FORKED, STEPPING, "fork", LENGTH_S)
        pack.start_program(BRIEF, STEPPING, "end", 2)
        pack.start_member(SILENT, f"sleep {LENGTH_S}")
        yield Seen(pack, pack.finish(monitor))
    finally:
        pack.close()


@pytest.mark.parametrize("number", DELAYS)
def test_the_share_that_was_waited_for_data_is_the_programs_own(seen: Seen, number: int) -> None:
    said, member = seen.pack.said(number), seen.member(number)
    (truth,), stall = said["share"], member["stall"]
    _, delay_s, step_s = DELAYS[number]
    waited_s = {WITHOUT: delay_s, TOO_SLOW: delay_s / 2 - step_s, HIDDEN: 0.0}[number]
    # A busy machine makes steps longer; the delays are there all the same. One that is hidden comes
    # to light where the machine keeps the loader waiting, too.
    if waited_s:
        assert truth == pytest.approx(waited_s / (waited_s + step_s), abs=0.25)
    assert stall["data"] == pytest.approx(truth, abs=0.05)
    assert member["steps"] == said["steps"][0]
    assert member["progress"] == "optimizer"
    # Seven members on no GPU at all: nothing more is known, and why.
    assert (stall["host"], stall["device"], stall["overlap"]) == (None, None, None)
    (reason,) = [note for note in member["notes"] if note.startswith("host and device unknown")]
    assert "in company the GPU's utilization cannot be split" in reason


def test_a_member_that_crashes_is_known_up_to_its_crash(seen: Seen) -> None:
    member, (steps,) = seen.member(CRASHED), seen.pack.said(CRASHED)["steps"]
    assert (member["state"], member["cause"]) == ("FAILED", "signal")
    assert member["steps"] == steps
    assert member["rate"]["steps_per_s"] == pytest.approx(steps / LENGTH_S, rel=0.2)
    assert any("signal 11" in note for note in member["notes"])
    # It has no DataLoader, which is not the same as no wait.
    assert member["stall"]["data"] is None
    assert "wait for data unknown: no DataLoader that is seen was waited for" in member["notes"]


def test_a_member_that_never_reports_progress_has_no_shares(seen: Seen) -> None:
    member = seen.member(SILENT)
    for name in ("steps", "samples", "skipped", "progress", "solo", "slowdown"):
        assert member[name] is None, name
    assert set(member["stall"].values()) == {None}
    assert member["rate"]["unknown"] == "it never reported progress"
    assert member["cpu_s"] is not None, "it was watched all the same"


def test_of_a_member_that_forks_both_are_counted(seen: Seen) -> None:
    member, said = seen.member(FORKED), seen.pack.said(FORKED)
    assert len(said["steps"]) == 2
    assert member["steps"] == sum(said["steps"])
    rate = sum(said["steps"]) / LENGTH_S
    assert member["rate"]["steps_per_s"] == pytest.approx(rate, rel=0.2)
    assert member["stall"]["data"] is None


def test_a_member_that_runs_two_seconds_has_steps_and_no_rate(seen: Seen) -> None:
    member = seen.member(BRIEF)
    assert member["steps"] == seen.pack.said(BRIEF)["steps"][0]
    assert member["rate"]["steps_per_s"] is None
    assert member["rate"]["unknown"].startswith("too short: it was there for ")
    assert (member["slowdown"], member["solo_time_s"]) == (None, None)
    assert set(member["stall"].values()) == {None}


def test_the_report_says_what_is_unknown_and_never_nothing(seen: Seen) -> None:
    text = render_report(seen.summary, 140)
    assert "Time:" not in text, "nobody's time could be split"
    assert "it never reported progress" in text
    *_, brief = csv.DictReader(render_csv([(seen.summary, None)]).splitlines())
    assert brief["member"] == "4711/7"
    unknown = ("data_wait_share", "host_share", "device_share")
    assert [brief[name] for name in unknown] == ["", "", ""]


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_alone_on_a_gpu_the_time_is_split(tmp_path: Path, simulation: Simulation) -> None:
    h200, _ = simulation.uuids
    pack = ReportedPack(tmp_path)
    try:
        pack.plan(range(1, 2), h200)
        monitor = pack.start_monitor(environment_of(simulation), interval_s=1.0)
        gpu = {**environment_of(simulation), "CUDA_VISIBLE_DEVICES": h200}
        pack.start_program(1, TRAINING, *DELAYS[WITHOUT], LENGTH_S, gpu=gpu)
        summary = pack.finish(monitor)
    finally:
        pack.close()
    (member,) = summary["members"]
    (truth,), stall = pack.said(1)["share"], member["stall"]
    assert stall["data"] == stall["data_alone"] == pytest.approx(truth, abs=0.05)
    # The simulated driver says that something runs for 0.2^0.6 of the time.
    assert stall["device"] == pytest.approx(0.38, abs=0.05)
    total = stall["data_alone"] + stall["host"] + stall["device"]
    assert total == pytest.approx(1 + stall["overlap"])
    assert stall["attribution"] == "exact"
    assert not [note for note in member["notes"] if "unknown" in note]
    text = " ".join(render_report(summary, 140).split())
    assert f"Time: 4711/1 waited {100 * stall['data']:.0f} % of its time for data" in text
    assert f"had a kernel running for {100 * stall['device']:.0f} %" in text
