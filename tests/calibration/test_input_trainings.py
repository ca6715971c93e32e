"""The trainings that wait for a disk or for speech are what they say, tiny and on the CPU."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slurm_colloc_lab.calibration.workloads import BY_NAME, TINY

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.long]

MIB = 1 << 20
PAGE = 4096


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder whose files are not in memory anyway."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        kind = subprocess.run(
            ["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True
        ).stdout
        if kind.strip() in ("tmpfs", "ramfs"):
            pytest.skip("/var/tmp is in memory")
        yield Path(folder)


def count_cached(descriptor: int, length: int) -> int:
    """Pages of a file in the page cache (mincore(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    begin = libc.mmap(None, length, 1, 1, descriptor, 0)
    flags = ctypes.create_string_buffer(-(-length // PAGE))
    assert libc.mincore(begin, length, flags) == 0
    libc.munmap(begin, length)
    return sum(flag & 1 for flag in flags.raw)


def test_images_are_those_of_the_file_and_the_page_cache_keeps_none(disk: Path) -> None:
    from slurm_colloc_lab.calibration.input_trainings import ColdImages

    images = ColdImages(str(disk), 64, 4 * MIB)
    descriptor = images.file.fileno()
    length = os.fstat(descriptor).st_size
    assert length >= 4 * MIB - 4 * 3 * 64 * 64
    assert list(disk.iterdir()) == [], "nothing is left of it when it is killed"
    os.pread(descriptor, MIB, 0)
    assert count_cached(descriptor, length) >= MIB // PAGE, "or it is not seen"
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    found = [image for image, _ in itertools.islice(images, 20)]
    assert count_cached(descriptor, length) <= 20
    assert len({image.sum().item() for image in found}) > 10
    written = bytearray(os.pread(descriptor, length, 0))
    numbers = torch.frombuffer(written, dtype=torch.int32).to(torch.float32) / (1 << 31)
    every = numbers.view(-1, 3, 64, 64)
    for image in found:
        assert image.abs().max() <= 1.0
        assert (every == image).flatten(1).all(1).any()
    images.file.close()


@pytest.mark.parametrize(
    ("environ", "memory"),
    [
        ({"SLURM_MEM_PER_NODE": "2000"}, 2000 * MIB),
        ({"SLURM_MEM_PER_CPU": "500", "SLURM_CPUS_ON_NODE": "4"}, 2000 * MIB),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({"SLURM_MEM_PER_CPU": "500"}, None),
        ({"SLURM_MEM_PER_NODE": "much"}, None),
        ({}, None),
    ],
)
def test_the_jobs_memory_is_what_slurm_says(environ: dict[str, str], memory: int | None) -> None:
    from slurm_colloc_lab.calibration.input_trainings import read_job_memory

    assert read_job_memory(environ) == memory


def test_the_file_is_larger_than_the_jobs_memory_or_there_is_none() -> None:
    from slurm_colloc_lab.calibration.input_trainings import compute_file_bytes

    for memory in (MIB, 7 * MIB + 1, 5 << 30):
        assert compute_file_bytes(memory, 1 << 40) >= 1.2 * memory
    assert compute_file_bytes(None, 1 << 40) == 8 << 30
    with pytest.raises(OSError, match=r"1024 MiB free, .* takes 1280 MiB: ask for less memory"):
        compute_file_bytes(1 << 30, 1 << 30)


@pytest.mark.parametrize("name", ["disk", "speech"])
def test_it_steps_and_leaves_no_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    training = BY_NAME[name].build("cpu", TINY)
    assert len(training.helpers) == 2
    assert all(Path(f"/proc/{pid}").exists() for pid in training.helpers)
    for _ in range(3):
        training.step()
    training.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in training.helpers)
    assert list(tmp_path.iterdir()) == []


def test_the_ear_hears_a_tone_where_it_is() -> None:
    from slurm_colloc_lab.calibration.input_trainings import (
        MELS,
        RATE,
        compute_log_mel,
        make_mel_filters,
    )

    filters = make_mel_filters()
    assert filters.shape == (MELS, 201)
    moments = torch.arange(RATE) / RATE
    loudest = []
    for tone in (200.0, 400.0, 1000.0, 3000.0, 6000.0):
        heard = compute_log_mel((2 * torch.pi * tone * moments).sin(), filters)
        assert heard.shape == (101, MELS)
        loudest.append(int(heard[50].argmax()))
        # 40 Hz apart, the frequencies of the spectrum.
        assert filters[loudest[-1], round(tone / 40)] > 0
    assert loudest == sorted(set(loudest))


def test_a_network_learns_to_write_what_is_said() -> None:
    from slurm_colloc_lab.calibration.input_trainings import MadeSpeech, SpeechTrainer

    torch.manual_seed(0)
    torch.set_num_threads(1)
    utterances = list(itertools.islice(MadeSpeech(3), 8))
    frames, said = (torch.stack(parts) for parts in zip(*utterances, strict=True))
    assert frames.shape == (8, 31, 80)
    assert said.shape == (8, 3)
    trainer = SpeechTrainer(16, "cpu")
    losses = [float(trainer.train(frames, said)) for _ in range(40)]
    assert all(loss > 0 for loss in losses)
    assert losses[-1] < 0.5 * losses[0]
