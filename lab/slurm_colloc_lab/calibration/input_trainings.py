"""The trainings that wait for what they are fed; loaded only where one runs: it loads torch."""

from __future__ import annotations

import ctypes
import math
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import torch
from torch import nn

from slurm_colloc_lab.calibration.image_trainings import Trainer, make_plain
from slurm_colloc_lab.calibration.workloads import TINY, Training

_PR_SET_PDEATHSIG = 1
_LOADERS = 2


def _end_with_parent(_: int) -> None:
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _train_from(
    data: torch.utils.data.IterableDataset[Any],
    batch: int,
    device: str,
    build: Callable[[], Callable[..., object]],
) -> Training:
    """Train from two processes of a DataLoader.

    Args:
        data: Samples without end, as tuples of tensors.
        batch: Samples in a step.
        device: Where batches go.
        build: Makes what learns from one of them, once the processes have been forked: before this
            one has used the GPU.
    """
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=batch,
        num_workers=_LOADERS,
        pin_memory=device != "cpu",
        worker_init_fn=_end_with_parent,
        multiprocessing_context="fork",
    )
    batches: Any = iter(loader)
    next(batches)
    train = build()

    def move(part: Any) -> Any:
        is_images = part.dim() == 4
        form = torch.channels_last if is_images else torch.preserve_format
        return part.to(device, non_blocking=True, memory_format=form)

    def step() -> None:
        train(*map(move, next(batches)))

    return Training(
        step, batches._shutdown_workers, tuple(worker.pid for worker in batches._workers)
    )


# ---- Images that cost CPU time to make -----------------------------------------------------------


class _MadeImages(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Images without end, each of which costs CPU time to make."""

    def __init__(self, size: int, rounds: int) -> None:
        self._size = size
        self._rounds = rounds

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        image = torch.randn(3, self._size, self._size)
        while True:
            made = image
            for _ in range(self._rounds):
                made = (made.flip(2) * 0.9 + 0.1).clamp(-3.0, 3.0)
            yield made.contiguous(), 1


def build_loader(device: str, scale: str) -> Training:
    """A network that waits for two processes of a DataLoader (host CPU)."""
    batch, size, rounds = (4, 16, 2) if scale == TINY else (64, 64, 6)
    widths = (8,) if scale == TINY else (32, 64, 128)
    return _train_from(
        _MadeImages(size, rounds), batch, device, lambda: Trainer(make_plain(widths), device).train
    )


# ---- Images from files that no memory holds ------------------------------------------------------

_BEYOND = 1.25
"""So many times the job's memory: what was read is not there any more when it is read again."""
_USUAL_BYTES = 8 << 30
"""Where the job's memory is unknown; pages are dropped besides."""
_ROOM = 0.9
"""Of the free space of the disk, at most."""
_WRITTEN = 16 << 20
_MIB = 1 << 20


def read_job_memory(environ: Mapping[str, str]) -> int | None:
    """Bytes of host memory of the Slurm job; None where it does not say, as for all of a node."""
    try:
        if "SLURM_MEM_PER_NODE" in environ:
            memory_mb = int(environ["SLURM_MEM_PER_NODE"])
        else:
            memory_mb = int(environ["SLURM_MEM_PER_CPU"]) * int(environ["SLURM_CPUS_ON_NODE"])
    except (KeyError, ValueError):
        return None
    return memory_mb * _MIB if memory_mb > 0 else None


def compute_file_bytes(memory: int | None, free: int) -> int:
    """How large the file is to be.

    Args:
        memory: The job's memory in bytes; None where unknown.
        free: Free bytes of the disk.

    Raises:
        OSError: The disk has no room for it.
    """
    size = _USUAL_BYTES if memory is None else math.ceil(_BEYOND * memory)
    if size > _ROOM * free:
        raise OSError(
            f"the disk has {free >> 20} MiB free, and a file beyond the job's memory takes "
            f"{size >> 20} MiB: ask for less memory, or name another disk in TMPDIR"
        )
    return size


class ColdImages(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Images without end, each read from the disk at a place of its own.

    The file has no name, so that nothing is left of it however its process ends. The page cache
    forgets what was written and what was read: it is read from the disk each time.

    Args:
        folder: On the disk.
        size: Pixels of an image's side.
        length: Bytes of the file; at least one image is written.
    """

    def __init__(self, folder: str, size: int, length: int) -> None:
        self._size = size
        self._each = 4 * 3 * size * size
        self._count = max(1, length // self._each)
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        # The same for each: the disk gets all the same.
        block = random.Random(0).randbytes(min(_WRITTEN, length))
        left = self._count * self._each
        while left:
            left -= self.file.write(block[:left])
        os.fdatasync(self.file.fileno())
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        chance = random.Random(torch.initial_seed())
        descriptor = self.file.fileno()
        while True:
            begin = chance.randrange(self._count) * self._each
            read = bytearray(self._each)
            os.preadv(descriptor, [read], begin)
            os.posix_fadvise(descriptor, begin, self._each, os.POSIX_FADV_DONTNEED)
            # Any bytes are numbers, but not all of them are fit for a network.
            pixels = torch.frombuffer(read, dtype=torch.int32).to(torch.float32) / (1 << 31)
            yield pixels.view(3, self._size, self._size), 1


def build_disk(device: str, scale: str) -> Training:
    """A small network whose images are read from a file larger than the job's memory (disk).

    The file is in TMPDIR, else in /var/tmp, which is no file system in memory.
    """
    folder = os.environ.get("TMPDIR") or "/var/tmp"
    batch, size, length = 4, 16, 1 << 20
    widths: tuple[int, ...] = (8,)
    if scale != TINY:
        space = os.statvfs(folder)
        free = space.f_bavail * space.f_frsize
        length = compute_file_bytes(read_job_memory(os.environ), free)
        batch, size, widths = 64, 224, (16, 32)
    data = ColdImages(folder, size, length)
    training = _train_from(data, batch, device, lambda: Trainer(make_plain(widths), device).train)

    def close() -> None:
        training.close()
        data.file.close()

    return Training(training.step, close, training.helpers)


# ---- Speech --------------------------------------------------------------------------------------

RATE = 16_000
"""Samples of a waveform per second."""
_WINDOW, _HOP = 400, 160
MELS = 80
LETTERS = 26
"""Besides the blank, 0."""
_LETTER = 1_600
"""Samples of a letter."""


def make_mel_filters() -> Any:
    """Triangles that overlap by half, as wide as the ear hears: of shape (MELS, frequencies)."""
    highest = 2595.0 * math.log10(1.0 + RATE / 2 / 700.0)
    mels = torch.linspace(0.0, highest, MELS + 2)
    edges = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    heights = torch.linspace(0.0, RATE / 2, _WINDOW // 2 + 1)
    low, middle, high = (edges[place : MELS + place, None] for place in range(3))
    rises, falls = (heights - low) / (middle - low), (high - heights) / (high - middle)
    return torch.minimum(rises, falls).clamp(min=0.0)


def compute_log_mel(waveform: Any, filters: Any) -> Any:
    """What the ear hears of a waveform: of shape (frames, MELS)."""
    spectrum = torch.stft(
        waveform, _WINDOW, _HOP, window=torch.hann_window(_WINDOW), return_complex=True
    )
    return (filters @ spectrum.abs().square()).clamp(min=1e-6).log().T


class MadeSpeech(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Utterances without end: each letter is a tone of its own and its octave, in noise.

    Args:
        letters: In an utterance.
    """

    def __init__(self, letters: int) -> None:
        self._letters = letters
        self._filters = make_mel_filters()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        moments = torch.arange(_LETTER) / RATE
        while True:
            said = torch.randint(1, LETTERS + 1, (self._letters,))
            tones = 200.0 * 2.0 ** (said / 8.0)
            turns = 2 * math.pi * tones[:, None] * moments
            waveform = (turns.sin() + 0.5 * (2 * turns).sin()).flatten()
            waveform += 0.1 * torch.randn(waveform.shape)
            yield compute_log_mel(waveform, self._filters), said


class SpeechTrainer:
    """A small recurrent network that writes letters, and one step of it."""

    def __init__(self, width: int, device: str) -> None:
        self._hears = nn.GRU(MELS, width, num_layers=2, bidirectional=True, batch_first=True)
        self._writes = nn.Linear(2 * width, LETTERS + 1)
        both = nn.ModuleList([self._hears, self._writes]).to(device)
        self._optimizer = torch.optim.Adam(both.parameters(), lr=1e-3)
        # Connectionist temporal classification (Graves et al., 2006): nothing says which frames
        # are of which letter.
        self._loss = nn.CTCLoss()

    def train(self, frames: Any, said: Any) -> Any:
        """Learn from one batch; its loss, on the device."""
        scores = self._writes(self._hears(frames)[0]).log_softmax(2).transpose(0, 1)
        length, batch = scores.shape[:2]
        lengths = torch.full((batch,), length), torch.full((batch,), said.shape[1])
        loss = self._loss(scores, said, *lengths)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def build_speech(device: str, scale: str) -> Training:
    """A small recurrent network that waits for spectra of speech from two processes (host CPU)."""
    batch, letters, width = (4, 3, 8) if scale == TINY else (32, 40, 256)
    return _train_from(
        MadeSpeech(letters), batch, device, lambda: SpeechTrainer(width, device).train
    )
