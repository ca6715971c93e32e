"""Whether `csub probe --stalls` recovers delays that were injected: points by which it is off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import Figures, Section, Series, build_environment
from slurm_colloc.instrument.layout import STALLS
from slurm_colloc.metrics.input_stalls import InputStalls, compute_stalls
from slurm_colloc.runtime.pack_monitor import injected_environment

RUNS = 1
FILES = 4000
OFF_TARGET = 5.0
LONGEST_S = 300.0
PARTS = ("gpu", "exchange", "copies", "decoding", "disk")
BATCH = 8

# All delays are sleeps, in seconds. A read of a file whose pages are not in the page cache sleeps,
# as one from a slow disk would.
_PROGRAM = """\
import ctypes, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
folder, result, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
gpu, exchange, copies, item, disk = map(float, sys.argv[4:])
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def is_cached(descriptor):
    begin, flags = libc.mmap(None, 4096, 1, 1, descriptor, 0), ctypes.create_string_buffer(1)
    libc.mincore(begin, 4096, flags)
    libc.munmap(begin, 4096)
    return flags.raw[0] & 1
class Files(Dataset):
    def __len__(self):
        return len(os.listdir(folder))
    def __getitem__(self, number):
        with open(f"{folder}/{number}", "rb") as file:
            if not is_cached(file.fileno()):
                time.sleep(disk)
            file.read()
        time.sleep(item)
        return torch.zeros(8)
move = torch.Tensor.to
def move_slowly(tensor, *args):
    time.sleep(copies)
    return move(tensor, *args)
torch.set_num_threads(1)
torch.Tensor.to = move_slowly
model = torch.nn.Linear(8, 1)
def send(_, bucket):
    time.sleep(exchange)
    sent = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
    return sent.then(lambda done: done.value()[0])
if exchange:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(None, send)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def is_over():
    over = torch.zeros(1)
    over += os.path.exists(result) and '"final": true' in open(result).read()
    if exchange:
        # Both end after the same batch.
        torch.distributed.all_reduce(over)
    return bool(over)
while not is_over():
    for number, batch in enumerate(DataLoader(Files(), 8, shuffle=True, num_workers=workers)):
        batch = batch.to("cpu")
        time.sleep(gpu)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        if number % 50 == 0 and is_over():
            break
"""

# Name, workers, and seconds of: the GPU, exchange (of two processes, over gloo) and copies for a
# batch; decoding and disk for a sample.
CASES = (
    ("GPU alone", 2, 0.05, 0.0, 0.0, 0.0, 0.0),
    ("exchange", 0, 0.06, 0.04, 0.0, 0.0, 0.0),
    ("copies", 0, 0.06, 0.0, 0.04, 0.0, 0.0),
    ("decoding", 0, 0.05, 0.0, 0.0, 0.00625, 0.0),
    ("decoding, 2 workers", 2, 0.04, 0.0, 0.0, 0.02, 0.0),
    ("disk", 0, 0.05, 0.0, 0.0, 0.0, 0.00625),
    ("all", 0, 0.04, 0.03, 0.02, 0.005, 0.0025),
)


def measure_stalls() -> Section:
    """The largest difference of a share from what was injected, for each kind of delay."""
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="stalls", dir="/var/tmp") as home:
        folder = Path(home) / "files"
        folder.mkdir()
        for number in range(FILES):
            (folder / str(number)).write_bytes(os.urandom(4096))
        os.sync()
        for name, workers, *delays in CASES:
            expected = expect(workers, delays)
            runs = [_run(Path(home), folder, workers, delays) for _ in range(RUNS)]
            off = [
                max(100 * abs((getattr(found, part) or 0.0) - expected[part]) for part in PARTS)
                for found in runs
            ]
            shares = ", ".join(f"{part} {100 * expected[part]:.0f} %" for part in PARTS)
            figures.add(name, Series(tuple(off)), "points", target=OFF_TARGET, ratio=shares)
    return figures.build_section(
        "Stalls",
        [
            "The largest difference of a share from what was injected, which stands at the right.",
            "Delays are sleeps. What a step and loading take besides is part of the difference.",
        ],
    )


def expect(workers: int, delays: Sequence[float]) -> dict[str, float]:
    """The shares that delays make: workers load while the GPU computes."""
    gpu, exchange, copies, item, disk = delays
    busy = gpu + exchange + copies
    if workers:
        cached = max(busy, BATCH * item / workers)
        ordinary = max(busy, BATCH * (item + disk) / workers)
    else:
        cached, ordinary = busy + BATCH * item, busy + BATCH * (item + disk)
    return {
        "gpu": gpu / ordinary,
        "exchange": exchange / ordinary,
        "copies": copies / ordinary,
        "decoding": (cached - busy) / ordinary,
        "disk": (ordinary - cached) / ordinary,
    }


def _run(home: Path, folder: Path, workers: int, delays: list[float]) -> InputStalls:
    with tempfile.TemporaryDirectory(dir=home) as place:
        result = f"{place}/stalls"
        environment = build_environment(Path(place), Path(sys.executable).parent)
        environment |= injected_environment(environment, place)
        environment[STALLS] = result
        program = Path(place) / "train.py"
        program.write_text(_PROGRAM)
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        subprocess.run(
            [
                sys.executable, *(launch if delays[1] else []), program,
                folder, result, str(workers), *map(str, delays),
            ],
            env=environment,
            check=True,
            timeout=LONGEST_S,
        )  # fmt: skip
        found = compute_stalls(json.loads(Path(result).read_text()))
    assert found is not None
    return found
