"""Mixes of jobs under csub and under the rules of others, on real GPUs; see policies.py.

Figures are written to policies-N.csv and policies-N.json, and not judged. Where the machine has
several GPUs, each measures a mix of its own, with its share of the cores, all at the same time. One
call measures what fits into CSUB_GPU_SECONDS; calls with the same seed add to the same table.

CSUB_GPU_RULES: `csub,exclusive` and so on; `carma-live` and the like fill the GPU as jobs end.
CSUB_GPU_SEED and CSUB_GPU_USUAL_S: which mix on the first GPU (the next one has the next seed), and
the median length of its jobs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.mix_table import compute_results
from benchmarks.gpu.policies import read_all

from .gpu_node import read_number

pytestmark = [pytest.mark.gpu, pytest.mark.root, pytest.mark.torch, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
RULES = os.environ.get("CSUB_GPU_RULES", "csub,exclusive")
SECONDS = read_number("CSUB_GPU_SECONDS", 530)


def test_mixes_under_csub_and_other_rules(tmp_path: Path) -> None:
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if not gpus:
        pytest.skip("there is no GPU")
    out = Path(os.environ.get("GPU_SUITE_OUT") or tmp_path)
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // gpus
    running = []
    for gpu in range(gpus):
        of_gpu = cores[gpu * share : (gpu + 1) * share]
        arguments = ["--gpu", str(gpu), "--cores", ",".join(map(str, of_gpu)), "--rules", RULES]
        arguments += ["--seed", str(int(read_number("CSUB_GPU_SEED", 1)) + gpu)]
        arguments += ["--usual", str(read_number("CSUB_GPU_USUAL_S", 6))]
        arguments += ["--seconds", str(SECONDS), "--csv", str(out / f"policies-{gpu}.csv")]
        arguments += ["--json", str(out / f"policies-{gpu}.json")]
        program = [sys.executable, "-u", "-m", "benchmarks.gpu.policies"]
        running.append(subprocess.Popen([*program, *arguments], cwd=ROOT))
    assert [each.wait(SECONDS + 60) for each in running] == [0] * gpus
    for gpu in range(gpus):
        results = compute_results(read_all([out / f"policies-{gpu}.csv"]))
        assert results
        assert sum(result.failed for result in results) == 0
