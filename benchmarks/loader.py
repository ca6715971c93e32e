"""What several trainings do together, each with its own loader and with a shared one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measuring import Figures, Section, compute_ratio, interleave

TRAININGS = 4
MANY = 8
"""Are measured too where each has a core of its own."""
SAMPLES = 256
BATCH = 16
EPOCHS = 3
STEP_S = 0.01
RUNS = 3
GOAL = 1.8
LIMIT_S = 120.0
WAYS = {
    "own": "each its own loader",
    "shared": "`slurm_colloc.shared`",
    "tensorsocket": "`tensorsocket`",
}

# A picture of noise is blurred and made smaller, some 10 ms on one core; the step is the GPU's.
_TRAINING = f"""
import json, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
way, number, epochs = sys.argv[1], int(sys.argv[2]), {EPOCHS}

class Pictures(Dataset):
    def __len__(self):
        return {SAMPLES}
    def __getitem__(self, index):
        picture = torch.rand(1, 3, 256, 256)
        kernel = torch.ones(3, 1, 5, 5) / 25
        for _ in range(2):
            picture = torch.nn.functional.conv2d(picture, kernel, padding=2, groups=3)
        picture = torch.nn.functional.interpolate(picture, (128, 128), mode="bilinear")
        return picture[0], index

torch.manual_seed(number)
loader = DataLoader(Pictures(), batch_size={BATCH}, shuffle=True, num_workers=2)
if way == "producer":
    from tensorsocket.producer import TensorProducer
    producer = TensorProducer(loader)
    for _ in range(epochs):
        for _ in producer:
            pass
    producer.join()
    sys.exit()
if way == "shared":
    import slurm_colloc
    loader = slurm_colloc.shared(loader)
if way == "tensorsocket":
    from tensorsocket.consumer import TensorConsumer
    loader = TensorConsumer(batch_size={BATCH})
exact, taken = True, 0
for epoch in range(epochs):
    if epoch == 1:
        begun, taken = time.monotonic(), 0
    seen = []
    for pictures, ids in loader:
        pictures.mean().item()
        time.sleep({STEP_S})
        seen += ids.tolist()
        taken += len(ids)
    exact &= sorted(seen) == list(range({SAMPLES}))
print(json.dumps([taken / (time.monotonic() - begun), exact]), flush=True)
if way == "tensorsocket":
    os._exit(0)
"""


def measure_loader() -> Section:
    """Trainings with heavy transforms on the cores at hand, each way in turn."""
    figures = Figures()
    notes: list[str] = []
    at_hand = sorted(os.sched_getaffinity(0))
    for count, cores in choose_rows(len(at_hand)):
        os.sched_setaffinity(0, at_hand[:cores])
        try:
            notes += _measure(figures, count)
        finally:
            os.sched_setaffinity(0, at_hand)
    return figures.build_section("One loader for several trainings", notes)


def choose_rows(cores: int) -> list[tuple[int, int]]:
    """How many trainings at once, and on how many cores; pure."""
    return [(TRAININGS, cores), *([(MANY, MANY)] if cores >= MANY else [])]


def _measure(figures: Figures, count: int) -> list[str]:
    """Add the rows of so many trainings; gives notes on them."""
    exact: dict[str, list[int]] = {}
    ways = [way for way in WAYS if way != "tensorsocket" or find_spec("tensorsocket")]

    def run(way: str) -> float:
        rates, whole = _run_trainings(way, count)
        exact.setdefault(way, []).append(whole)
        return sum(rates)

    series = interleave({way: partial(run, way) for way in ways}, RUNS, warm_ups=0)
    for way in ways:
        ratio = ""
        if way != "own":
            found = compute_ratio(series[way], series["own"])
            ratio = f"{found:.2f} x own"
            if way == "shared":
                ratio += f" (goal {GOAL:g} x: {'met' if found >= GOAL else 'MISSED'})"
        figures.add(f"{count}: {WAYS[way]}", series[way], "samples/s", ratio=ratio)
    return [
        (
            f"{count} trainings at once, {len(os.sched_getaffinity(0))} cores, 2 workers in "
            f"each loader, {SAMPLES} samples; the sum of the rates after the first of {EPOCHS} "
            "epochs."
        ),
        "Trainings that had each sample once in each epoch, by run: "
        + "; ".join(f"{WAYS[way]} {exact[way]} of {count}" for way in ways)
        + ".",
    ]


def _run_trainings(way: str, count: int) -> tuple[list[float], int]:
    """Rates of the trainings that came to their end, and how many had each sample once."""
    with tempfile.TemporaryDirectory() as folder:
        started = []
        if way == "tensorsocket":
            started.append(_start("producer", 0, {}))
        for number in range(count):
            more = {}
            if way == "shared":
                own = Path(folder, f"{number + 1:04}.1")
                own.mkdir()
                more = {"SLURM_COLLOC_PROGRESS": str(own)}
            started.append(_start(way, number, more))
        until = time.monotonic() + LIMIT_S
        answers = [_finish(each, until) for each in started]
    # tensorsocket prints its log.
    lines = [line for answer in answers for line in answer.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("[")]
    return [rate for rate, _ in found], sum(exact for _, exact in found)


def _start(way: str, number: int, more: dict[str, str]) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_COLLOC")}
    path = os.pathsep.join([str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", _TRAINING, way, str(number)],
        env={**environment, **more, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _finish(training: subprocess.Popen[str], until: float) -> str:
    try:
        return training.communicate(timeout=max(0.0, until - time.monotonic()))[0]
    except subprocess.TimeoutExpired:
        return ""
    finally:
        # With its workers.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(training.pid, signal.SIGKILL)
        training.wait()
