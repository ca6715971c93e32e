"""Trains, and switches counting and monitor of its own pack off and on in turn.

What csub's measuring costs is a fraction of a per cent, and two runs of a program differ by far
more. So one process alternates, within seconds, between time in which it is watched and time in
which it is not, in groups of four segments: without, with, with, without. The two in the middle
follow each other, so that the monitor's seconds and its process lists (every 5 s) fall into
watched time as often as in real life where a segment lasts 2.5 s. A piece of its files (every
10 s) is then written twice as often as in real life.

Without counting: the hooks of csub's instrument are taken out of torch's, which leaves the
optimizer as it is in a program that csub does not watch. Without monitor: the monitor is stopped
by SIGSTOP. What it does when it goes on, a tick that is late, falls into watched time.

The data lie on the GPU, so that launching kernels is what takes the time: the worst case. The
training is pinned to the first of its cores. Phases:

  both          counting and monitor; the monitor on another core of the job
  one-core      counting and monitor; the monitor on the training's own core, as in a pack of which
                every core belongs to a member
  instrument    counting alone; the monitor stands still all the time

As a program: paired.py --segments FILE PHASE:SECONDS:GROUPS... A line of FILE is one segment.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from train_small import make_model  # type: ignore[import-not-found]

COLUMNS = (
    "phase",
    "group",
    "place",
    "watched",
    "begin_s",
    "seconds",
    "steps",
    "monitor_cpu_s",
)
GROUP = (False, True, True, False)
STEPS_PER_LOOK = 4
PATIENCE_S = 40.0
# The monitor's own start, in which it loads libraries, is over by then.
MONITOR_SETTLES_S = 4.0
INSTRUMENT = "_slurm_colloc_instrument"
MONITOR = b"slurm_colloc.monitor"


class Counting:
    """The hooks by which csub's instrument counts steps.

    Raises:
        RuntimeError: There are none: the program is not counted.
    """

    def __init__(self) -> None:
        module: Any = sys.modules["torch.optim.optimizer"]
        self._places: list[dict[int, Any]] = [
            module._global_optimizer_pre_hooks,
            module._global_optimizer_post_hooks,
        ]
        self._ours = [
            {key: hook for key, hook in place.items() if hook.__module__.startswith(INSTRUMENT)}
            for place in self._places
        ]
        if not all(self._ours):
            raise RuntimeError("csub's instrument is not in this process")

    def switch(self, *, on: bool) -> None:
        """Count from now on, or not."""
        for place, ours in zip(self._places, self._ours, strict=True):
            for key, hook in ours.items():
                if on:
                    place[key] = hook
                else:
                    place.pop(key, None)


@dataclass
class Monitor:
    """The monitor of this program's pack.

    Attributes:
        pid: Its pid.
        pack: The pack's directory.
    """

    pid: int
    pack: Path
    is_stopped: bool = False

    def switch(self, *, on: bool) -> None:
        """Let it work from now on, or stand still."""
        if on is self.is_stopped:
            os.kill(self.pid, signal.SIGCONT if on else signal.SIGSTOP)
            self.is_stopped = not on

    def pin(self, core: int) -> None:
        """Keep all its threads on one core."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})

    def read_cpu_s(self) -> float | None:
        """Processor time of all its threads; None where the kernel does not tell."""
        total_ns = 0
        try:
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                # Nanoseconds on a core: Documentation/scheduler/sched-stats.rst.
                total_ns += int((task / "schedstat").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None
        return total_ns / 1e9


def find_monitor() -> Monitor | None:
    """The only monitor that this user runs."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            owner = entry.stat().st_uid
        except OSError:
            continue
        if MONITOR in words and owner == os.geteuid():
            pack = Path(os.fsdecode(words[words.index(MONITOR) + 1]))
            # Its first record says that it has begun to sample.
            if (pack / "report" / "monitor.json").exists():
                return Monitor(int(entry.name), pack)
    return None


class Training:
    """The small training, with images made on the device."""

    def __init__(self, device: str, batch: int) -> None:
        self._device = device
        self._batches = [
            (
                torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last),
                torch.randint(0, 10, (batch,), device=device),
            )
            for _ in range(4)
        ]
        model, self.origin = make_model(10)
        self._model = model.to(device).to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._loss = nn.CrossEntropyLoss()

    def synchronize(self) -> None:
        """Wait until the GPU has done what was asked for."""
        if self._device == "cuda":
            torch.cuda.synchronize()

    def run(self, seconds: float) -> tuple[float, int]:
        """Make steps for so long; how long it really was, and how many steps."""
        steps = 0
        begin = now = time.monotonic()
        while now < begin + seconds:
            for number in range(STEPS_PER_LOOK):
                images, labels = self._batches[number]
                loss = self._loss(self._model(images), labels)
                self._optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self._optimizer.step()
            steps += STEPS_PER_LOOK
            # Only work that the GPU has finished counts.
            self.synchronize()
            now = time.monotonic()
        return now - begin, steps


def run_phase(
    training: Training,
    monitor: Monitor,
    words: str,
    switch: Callable[[bool], None],
    write: Callable[[list[Any]], Any],
) -> None:
    """Make the groups of one phase.

    Args:
        training: What is measured.
        monitor: Its time is read around each segment.
        words: PHASE:SECONDS:GROUPS.
        switch: Turns on or off what is compared.
        write: Takes a row for each segment.
    """
    phase, seconds, groups = words.split(":")
    switch(False)
    training.run(float(seconds))
    for group in range(int(groups)):
        for place, is_watched in enumerate(GROUP):
            switch(is_watched)
            before_s = monitor.read_cpu_s()
            begin_s = time.monotonic()
            length_s, steps = training.run(float(seconds))
            after_s = monitor.read_cpu_s()
            used_s = None if before_s is None or after_s is None else after_s - before_s
            shown = "" if used_s is None else f"{used_s:.6f}"
            row = [phase, group, place, int(is_watched)]
            write([*row, f"{begin_s:.6f}", f"{length_s:.6f}", steps, shown])


def main() -> None:
    """Measure all phases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phases", nargs="+")
    parser.add_argument("--segments", type=Path, required=True)
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
    training.run(MONITOR_SETTLES_S)
    monitor = found

    def switch_both(on: bool) -> None:
        counting.switch(on=on)
        monitor.switch(on=on)

    def switch_counting(on: bool) -> None:
        counting.switch(on=on)
        monitor.switch(on=False)

    try:
        with arguments.segments.open("w", newline="", buffering=1) as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for words in arguments.phases:
                name = words.partition(":")[0]
                monitor.pin(own if name == "one-core" else other)
                switch = switch_counting if name == "instrument" else switch_both
                run_phase(training, monitor, words, switch, writer.writerow)
    finally:
        switch_both(True)
    siblings = Path(f"/sys/devices/system/cpu/cpu{own}/topology/thread_siblings_list")
    told = {
        "model": training.origin,
        "torch": torch.__version__,
        "cpus": allowed,
        "own_core": own,
        "monitors_core": other,
        "siblings_of_own_core": siblings.read_text().strip() if siblings.exists() else None,
        "monitor_nice": os.getpriority(os.PRIO_PROCESS, monitor.pid),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
