"""Unlike jobs that a user types one by one share one GPU, from the first minute."""

from __future__ import annotations

import json
import re

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import explained
from .test_joining import on_terminal

pytestmark = pytest.mark.slurm

OPTIONS = "#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=300M --time=20"
KINDS = {
    "residual": "--gpu-memory=6G --sm=10",
    "loader": "--gpu-memory=1G --sm=5",
    "trainer": "--gpu-memory=1500M --sm=12",
    "lightning": "--gpu-memory=900M --sm=6",
    "graph": "--gpu-memory=2G --sm=20",
}
EACH = 2


@pytest.mark.smoke
def test_ten_jobs_of_five_kinds_typed_one_by_one_run_together(mps_user: CsubUser) -> None:
    user, names = mps_user, []
    for kind, load in KINDS.items():
        body = (
            f"simgpu run --seconds 900 --rate=20 --report {load} & pid=$!; "
            "until [ -e end ]; do sleep 0.2; done; kill $pid"
        )
        user.script(f"{kind}.sh", body, directives=OPTIONS)
    for number in range(EACH):
        for kind in KINDS:
            told = on_terminal(user, "--open", "--join", f"{kind}.sh", str(number))
            found = re.search(r"Submitted batch job (\d+)(?: \((\d+/\d+), )?", told)
            assert found, told
            names.append(user.find_address(found.group(1)))
            assert found.group(2) in (names[-1], *([None] if len(names) == 1 else [])), told

    def count_running() -> int:
        rows = json.loads(user.csub("queue", "--json").stdout)
        return sum(row["member"] in names and row["state"] == "RUNNING" for row in rows)

    first = names[0].partition("/")[0]
    with explained(user, first):
        wait_until(lambda: count_running() == len(names), "all run", patience_s=240)
        listed = user.run(["squeue", "-h", "--states=RUNNING", "-o", "%A"]).stdout.split()
        assert listed == [first], "one Slurm job has all of them"
    (user.home / "end").touch()
    for name in dict.fromkeys(name.partition("/")[0] for name in names):
        user.run(["csub", "wait", name])
    rows = json.loads(user.csub("history", "--json").stdout)
    ended = {row["member"]: (row["state"], row["starts"]) for row in rows}
    assert {ended[name] for name in names} == {("COMPLETED", 1)}
