"""A mix of jobs under csub and under the rules of others, on a real GPU; see policies.py.

Figures are written to policies.csv and policies.json, and not judged. One call measures what fits
into CSUB_GPU_SECONDS; calls with the same seed add to the same table.

CSUB_GPU_RULES: `csub,exclusive` and so on; `carma-live` and the like fill the GPU as jobs end.
CSUB_GPU_SEED and CSUB_GPU_USUAL_S: which mix, and the median length of its jobs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .bed import read_number
from .mix_table import compute_results
from .policies import main, read_all

pytestmark = [pytest.mark.gpu, pytest.mark.root, pytest.mark.torch, pytest.mark.timeout(900)]

RULES = os.environ.get("CSUB_GPU_RULES", "csub,exclusive")


def test_a_mix_under_csub_and_other_rules(tmp_path: Path) -> None:
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("there is no GPU")
    out = Path(os.environ.get("GPU_SUITE_OUT") or tmp_path)
    cores = sorted(os.sched_getaffinity(0))
    arguments = ["--gpu", "0", "--cores", ",".join(map(str, cores)), "--rules", RULES]
    arguments += ["--seed", str(int(read_number("CSUB_GPU_SEED", 1)))]
    arguments += ["--usual", str(read_number("CSUB_GPU_USUAL_S", 6))]
    arguments += ["--seconds", str(read_number("CSUB_GPU_SECONDS", 530))]
    arguments += ["--csv", str(out / "policies.csv"), "--json", str(out / "policies.json")]
    assert main(arguments) == 0
    results = compute_results(read_all([out / "policies.csv"]))
    assert results
    assert sum(result.failed for result in results) == 0
