"""Trains in short units, and switches counting and monitor of its own pack off and on in turn.

What csub's measuring costs is a fraction of a per cent, and the host of a virtual machine changes
its speed by half for seconds at a time. So what is compared has to lie close together. The unit is
four steps and a wait for the GPU, 25 to 45 ms on a large GPU, and every unit is written down.

Counting changes from unit to unit, in groups of four: without, with, with, without, or the other
way round, by chance, so that nothing that comes back every so many units is taken for it. Without
counting, the hooks of csub's instrument are taken out of torch's, which leaves the optimizer as it
is in a program that csub does not watch. Switching is no part of a unit.

The monitor changes from segment to segment: stopped by SIGSTOP, running, running, stopped. When it
goes on, it works for a second before the next segment begins: its tick is late then, and it has
more to do than usually. Its process lists (every 5 s) and pieces of files (every 10 s) fall into
segments in which it runs about a quarter more often than in real life.

The data lie on the GPU, so that launching kernels is what takes the time: the worst case. The
training is pinned to the first of its cores, the monitor to the last one.

As a program: paired.py --units FILE --seconds 150 --segment 4. A line of FILE is one unit.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from switches import Counting, Monitor, find_monitor  # type: ignore[import-not-found]
from torch import nn
from train_small import make_model  # type: ignore[import-not-found]

COLUMNS = ("begin_ns", "took_ns", "hooks", "monitor", "segment")
COUNTED = ((False, True, True, False), (True, False, False, True))
"""Groups of units, one of which is chosen by chance."""
RUNNING = (False, True, True, False)
"""Whether the monitor runs, segment by segment."""
STEPS_IN_UNIT = 4
# No unit is as short as this.
LEAST_UNIT_S = 0.002
PATIENCE_S = 40.0
SETTLES_S = 1.0
# The monitor's own start, in which it loads libraries, is over by then.
MONITOR_STARTS_S = 4.0


def make_light_model() -> tuple[nn.Module, str]:
    """What takes a processor about as long as the small training takes a GPU."""
    layers = (nn.Flatten(), nn.Linear(3072, 768), nn.ReLU(), nn.Linear(768, 10))
    return nn.Sequential(*layers), "two layers, for a processor"


class Training:
    """The small training, with images made on the device."""

    def __init__(self, device: str, batch: int) -> None:
        self._device = device
        self._batches = [
            (
                torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last),
                torch.randint(0, 10, (batch,), device=device),
            )
            for _ in range(STEPS_IN_UNIT)
        ]
        model, origin = make_model(10) if device == "cuda" else make_light_model()
        self.origin: str = origin
        self._model = model.to(device).to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._loss = nn.CrossEntropyLoss()

    def synchronize(self) -> None:
        """Wait until the GPU has done what was asked for."""
        if self._device == "cuda":
            torch.cuda.synchronize()

    def run_unit(self) -> None:
        """Make the steps of a unit, and wait until the GPU has made them."""
        for images, labels in self._batches:
            loss = self._loss(self._model(images), labels)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
        self.synchronize()

    def run(self, seconds: float) -> None:
        """Make units for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.run_unit()


class Units:
    """What is written down of units, in memory that is there from the beginning."""

    def __init__(self, room: int) -> None:
        self._begins = array("q", bytes(8 * room))
        self._lengths = array("q", bytes(8 * room))
        self._segments = array("q", bytes(8 * room))
        self._states = bytearray(room)
        self._count = 0

    def add(
        self, begin_ns: int, end_ns: int, *, hooks: bool, runs: bool, segment: int | None
    ) -> None:
        """Write one down.

        Args:
            begin_ns: Monotonic clock.
            end_ns: Likewise.
            hooks: It was counted.
            runs: The monitor was not stopped.
            segment: Its segment; None: the monitor has just begun to run again.

        Raises:
            IndexError: There are more than there is room for.
        """
        count = self._count
        self._begins[count] = begin_ns
        self._lengths[count] = end_ns - begin_ns
        self._segments[count] = -1 if segment is None else segment
        self._states[count] = 2 * runs + hooks
        self._count = count + 1

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        """Rows of the file."""
        columns = zip(self._begins, self._lengths, self._segments, self._states, strict=True)
        for begin, length, segment, state in itertools.islice(columns, self._count):
            runs = "running" if state & 2 else "stopped"
            yield begin, length, state & 1, runs, "" if segment < 0 else segment


@dataclass
class Comparison:
    """The training, what is switched, and what is written down."""

    training: Training
    counting: Counting
    monitor: Monitor
    units: Units
    chance: random.Random

    def run(self, seconds: float, segment_s: float) -> None:
        """Make pairs of segments, one of each kind, for about so long."""
        until = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until - segment_s:
            for _ in range(2):
                runs = RUNNING[number % len(RUNNING)]
                goes_on = runs and self.monitor.is_stopped
                self.monitor.switch(on=runs)
                if goes_on:
                    self._run_groups(SETTLES_S, runs=runs, segment=None)
                self._run_groups(segment_s, runs=runs, segment=number)
                number += 1

    def _run_groups(self, seconds: float, *, runs: bool, segment: int | None) -> None:
        """Make whole groups of units for so long."""
        until_ns = time.monotonic_ns() + int(1e9 * seconds)
        while time.monotonic_ns() < until_ns:
            for hooks in self.chance.choice(COUNTED):
                self.counting.switch(on=hooks)
                begin_ns = time.monotonic_ns()
                self.training.run_unit()
                end_ns = time.monotonic_ns()
                self.units.add(begin_ns, end_ns, hooks=hooks, runs=runs, segment=segment)


def read_clocks() -> tuple[float, float]:
    """The epoch's clock and the monotonic one, in seconds, at the same moment."""
    before = time.monotonic()
    epoch = time.time()
    return epoch, (before + time.monotonic()) / 2


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--segment", type=float, required=True, help="seconds")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()

    allowed = sorted(os.sched_getaffinity(0))
    own, other = allowed[0], allowed[-1]
    os.sched_setaffinity(0, {own})
    torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1)
    counting = Counting()
    training = Training(arguments.device, arguments.batch)
    found = None
    until = time.monotonic() + PATIENCE_S
    while found is None and time.monotonic() < until:
        training.run(0.5)
        found = find_monitor()
    if found is None:
        raise SystemExit("no monitor watches this program")
    training.run(MONITOR_STARTS_S)
    found.pin(other)
    # Whole segments, so a little longer than was asked for.
    room = int((arguments.seconds + 4 * arguments.segment + 60) / LEAST_UNIT_S)
    units = Units(room)
    clocks = [read_clocks()]
    try:
        comparison = Comparison(training, counting, found, units, random.Random(1))
        comparison.run(arguments.seconds, arguments.segment)
    finally:
        counting.switch(on=True)
        found.switch(on=True)
    clocks.append(read_clocks())
    with arguments.units.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(units)
    siblings = Path(f"/sys/devices/system/cpu/cpu{own}/topology/thread_siblings_list")
    told = {
        "model": training.origin,
        "torch": torch.__version__,
        "cpus": allowed,
        "own_core": own,
        "monitors_core": other,
        "siblings_of_own_core": siblings.read_text().strip() if siblings.exists() else None,
        "monitor_nice": os.getpriority(os.PRIO_PROCESS, found.pid),
        "clocks": clocks,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
