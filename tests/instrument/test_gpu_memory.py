"""What PyTorch's allocator has reserved is in the counter file; a program never notices.

There is no GPU here: the program brings a `torch.cuda` of its own that has the functions which are
asked, and says what is asked of it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from .counted_programs import Ended, run_python

MIB = 1 << 20

CUDA = """
import sys, types

class Cuda(types.ModuleType):
    initialized, devices, peak, now, looks = True, 1, 0, 0, 0

    def is_initialized(self):
        return self.initialized

    def device_count(self):
        return self.devices

    def memory_stats_as_nested_dict(self, device):
        assert self.initialized, "CUDA would have been started"
        self.looks += 1
        return {"reserved_bytes": {"all": {"peak": self.peak << 20, "current": self.now << 20}}}

cuda = sys.modules["torch.cuda"] = Cuda("torch.cuda")
from slurm_colloc import progress
"""


def count(tmp_path: Path, code: str) -> Ended:
    ended = run_python(CUDA + code, tmp_path)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.progress is not None
    return ended


def read_mib(ended: Ended) -> tuple[float | None, float | None]:
    assert ended.progress is not None
    (process,) = ended.progress.processes
    found = process.gpu_reserved_peak, process.gpu_reserved
    return found[0] and found[0] / MIB, found[1] and found[1] / MIB


def test_the_peak_of_the_first_step_stays(tmp_path: Path) -> None:
    ended = count(tmp_path, "cuda.peak, cuda.now = 6042, 154\nprogress.step()\n")
    assert read_mib(ended) == (6042, 154)


def test_what_comes_after_the_last_look_is_read_at_the_end(tmp_path: Path) -> None:
    code = "cuda.peak = cuda.now = 5\nprogress.step()\ncuda.peak, cuda.now = 700, 20\n"
    assert read_mib(count(tmp_path, code)) == (700, 20)


def test_a_program_that_resets_its_peak_has_had_it_all_the_same(tmp_path: Path) -> None:
    code = "cuda.peak = cuda.now = 900\nprogress.step()\ncuda.peak = cuda.now = 20\n"
    assert read_mib(count(tmp_path, code)) == (900, 20)


def test_all_gpus_of_a_process_are_added_up(tmp_path: Path) -> None:
    code = "cuda.devices, cuda.peak, cuda.now = 3, 100, 10\nprogress.step()\n"
    assert read_mib(count(tmp_path, code)) == (300, 30)


def test_it_is_asked_at_few_steps(tmp_path: Path) -> None:
    code = "cuda.peak = 5\nfor _ in range(5000): progress.step()\nprint(cuda.looks)\n"
    ended = count(tmp_path, code)
    # At 1, 2, 4, ..., 4096, and where a slow machine takes two seconds or more for all that.
    assert 13 <= int(ended.stdout) <= 40
    assert ended.progress is not None
    assert ended.progress.steps == 5000


def test_cuda_that_is_not_in_use_is_not_started(tmp_path: Path) -> None:
    ended = count(tmp_path, "cuda.initialized = False\nprogress.step()\n")
    assert read_mib(ended) == (None, None)


def test_cuda_that_is_started_later_is_seen(tmp_path: Path) -> None:
    code = (
        "cuda.initialized = False\nprogress.step()\n"
        "cuda.initialized, cuda.peak, cuda.now = True, 64, 32\nprogress.step()\n"
    )
    assert read_mib(count(tmp_path, code)) == (64, 32)


def test_a_torch_that_has_the_older_functions_alone(tmp_path: Path) -> None:
    code = (
        "del Cuda.memory_stats_as_nested_dict\n"
        "cuda.max_memory_reserved = lambda device: 80 << 20\n"
        "cuda.memory_reserved = lambda device: 40 << 20\n"
        "progress.step()\n"
    )
    assert read_mib(count(tmp_path, code)) == (80, 40)


@pytest.mark.parametrize(
    "broken",
    [
        "del Cuda.is_initialized",
        "Cuda.memory_stats_as_nested_dict = lambda self, device: 1 / 0",
        "Cuda.memory_stats_as_nested_dict = lambda self, device: {'reserved_bytes': {}}",
        "Cuda.memory_stats_as_nested_dict = lambda self, device: {}",
        "Cuda.device_count = lambda self: None",
        "sys.modules['torch.cuda'] = None",
    ],
)
def test_an_allocator_that_says_nothing_disturbs_nothing(tmp_path: Path, broken: str) -> None:
    ended = count(tmp_path, f"{broken}\nfor _ in range(3): progress.step()\nprint('done')\n")
    assert ended.stdout == "done\n"
    assert read_mib(ended) == (None, None)
    assert ended.progress is not None
    assert ended.progress.steps == 3


def test_a_forked_child_does_not_have_its_parent_s_peak(tmp_path: Path) -> None:
    code = (
        "import os\ncuda.peak = cuda.now = 50\nprogress.step()\nchild = os.fork()\n"
        "if not child: cuda.initialized = False\nprogress.step()\nif child: os.wait()\n"
    )
    ended = count(tmp_path, code)
    assert ended.progress is not None
    peaks = {p.gpu_reserved_peak for p in ended.progress.processes}
    assert peaks == {50 * MIB, None}
    assert ended.progress.gpu_reserved_peak == 50 * MIB


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing")
def test_a_real_torch_without_a_gpu_is_counted_and_not_started(tmp_path: Path) -> None:
    code = (
        "import torch\np = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.SGD([p], lr=0.1)\n"
        "for _ in range(5): optimizer.zero_grad(); p.sum().backward(); optimizer.step()\n"
        "print(torch.cuda.is_initialized())\n"
    )
    ended = run_python(code, tmp_path)
    assert (ended.code, ended.stdout) == (0, "False\n"), ended.stderr
    assert ended.progress is not None
    assert ended.progress.steps == 5
    assert read_mib(ended) == (None, None)
