"""What a pack has measured of how many run at once, the next submission begins with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until
from .mps import explained, journal, pack_directory
from .test_measured_packs import TRAIN, read_degree, wait_for_decision

pytestmark = pytest.mark.slurm

OPTIONS = ("--share=mps", "--gres=gpu:1", "-c1", "--mem=500M", "--time=30")


@pytest.fixture(scope="module")
def one_a100() -> Iterator[Sandbox]:
    """One simulated A100, which tells no activity: nothing can be predicted of its jobs."""
    if shutil.which("cc") is None:
        pytest.skip("the simulated NVML library needs a C compiler")
    with running_sandbox(
        nodes=1, gpus_per_node=1, cpus_per_node=16, simgpu=True, gpu_type="a100"
    ) as sandbox:
        yield sandbox


@pytest.fixture
def user(one_a100: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(one_a100, accounts[0]) as somebody:
        (somebody.home / "train.py").write_text(TRAIN)
        stop = somebody.home / "stop"
        somebody.script("cv.sh", f'exec python3 "$HOME/train.py" 5 {stop}')
        yield somebody


def plan(user: CsubUser, *words: str) -> dict[str, Any]:
    return dict(json.loads(user.csub("plan", "--json", *OPTIONS, *words).stdout))


def measure_twelve(user: CsubUser, stop: Path) -> str:
    """Run twelve of which nothing is known, until it is decided how many run; their id."""
    job_id = user.submit("--array=1-12", *OPTIONS, "cv.sh")
    with explained(user, job_id):
        user.wait_for_states(job_id, dict.fromkeys(range(1, 13), "RUNNING"))
        wait_until(
            lambda: (
                max((p["degree"] for p in read_degree(user, job_id).get("curve", [])), default=0)
                == 12
            ),
            "all twelve were measured together",
            patience_s=240,
        )
    wait_for_decision(user, job_id)
    stop.touch()
    user.finish(job_id)
    stop.unlink()
    return job_id


def test_twelve_that_were_measured_together_start_together(user: CsubUser) -> None:
    stop = user.home / "stop"
    before = plan(user, "--array=1-12", "cv.sh")
    assert [len(pack["members"]) for pack in before["packs"]] == [4, 4, 4]
    job_id = measure_twelve(user, stop)
    measured = {p["degree"]: p["stp"] for p in read_degree(user, job_id)["curve"]}

    (profile, *_) = json.loads(user.csub("profile", "show", "--json", "cv.sh").stdout)
    (curve,) = profile["curves"]
    assert {p["degree"]: p["stp"] for p in curve["points"]} == {
        degree: stp for degree, stp in measured.items() if degree > 1
    }
    # The script with an argument is a relative of the script without one.
    for words in (("--array=1-12", "cv.sh"), ("--array=1-12", "cv.sh", "1")):
        (pack,) = plan(user, *words)["packs"]
        assert len(pack["members"]) == 12
        told = f"12 at once made {measured[12]:.1f} times the progress of one alone on "
        assert any(reason.startswith(told) for reason in pack["reasons"])

    again = user.submit("--array=1-12", *OPTIONS, "cv.sh")
    with explained(user, again):
        user.wait_for_states(again, dict.fromkeys(range(1, 13), "RUNNING"))
        record = json.loads((pack_directory(user, again) / "pack.json").read_text())
        assert len(record["members"]) == 12
        # None waits until it is known what the others take, or how they slow each other down.
        assert journal(user, again, "measures") == []
        wait_for_decision(user, again)
    stop.touch()
    rows = user.finish(again)
    stop.unlink()
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    (curve,) = json.loads(user.csub("profile", "show", "--json", "cv.sh").stdout)[0]["curves"]
    assert max(point["runs"] for point in curve["points"]) == 1, "it was not measured again"

    user.csub("profile", "forget", "cv.sh")
    after = plan(user, "--array=1-12", "cv.sh")
    assert [len(pack["members"]) for pack in after["packs"]] == [4, 4, 4]
