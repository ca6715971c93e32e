"""What a job has shown alone is known to the call that comes right after `csub wait`."""

from __future__ import annotations

import json

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import pack_directory

pytestmark = pytest.mark.slurm

OPTIONS = ("--share=mps", "--gres=gpu:1", "-c1", "--mem=1G", "--time=30")

# Its allocator is a stand-in: what it reserves for its first step it gives back at once.
TRAIN = """\
import subprocess, sys, time, types
from pathlib import Path

class Cuda(types.ModuleType):
    peak, now = 6042, 1500

    def is_initialized(self):
        return True

    def device_count(self):
        return 1

    def memory_stats_as_nested_dict(self, device):
        return {"reserved_bytes": {"all": {"peak": self.peak << 20, "current": self.now << 20}}}

sys.modules["torch.cuda"] = Cuda("torch.cuda")
from slurm_colloc import progress

use = subprocess.Popen(["simgpu", "run", "--seconds=300", "--gpu-memory=2G", "--sm=20"])
stop = Path(sys.argv[1])
while not stop.exists():
    time.sleep(0.02)
    progress.step(samples=8)
use.kill()
use.wait()
"""


def test_a_plan_right_after_wait_knows_what_has_just_ended(mps_user: CsubUser) -> None:
    user = mps_user
    stop = user.home / "stop"
    (user.home / "train.py").write_text(TRAIN)
    user.script("train.sh", f'exec python3 "$HOME/train.py" {stop}')
    job_id = user.submit(*OPTIONS, "train.sh")
    latest = pack_directory(user, job_id) / "latest.json"

    def has_settled() -> bool:
        member = json.loads(latest.read_text())["members"].get("1", {}) if latest.exists() else {}
        # 10 s alone after the warm-up make a usage profile.
        return bool((member.get("settled_s") or 0.0) > 15.0)

    wait_until(has_settled, "it was alone for long enough", patience_s=180)
    stop.touch()
    user.csub("wait", job_id)
    planned = json.loads(user.csub("plan", "--json", *OPTIONS, "train.sh").stdout)
    (pack,) = planned["packs"]
    (member,) = pack["members"]
    assert member["known_by"] == "exact"
    assert member["gpu_memory_by"] == "allocator"
    told = user.csub("plan", "--explain", *OPTIONS, "train.sh").stdout
    assert "exact" in told
    assert "the peak of earlier runs by PyTorch's allocator (train.sh)" in " ".join(told.split())
    (profile,) = json.loads(user.csub("profile", "list", "--json").stdout)
    assert profile["gpu_memory_by"] == "allocator"
    # The simulated process has 2 GiB and a context of 512 MiB, of which 1500 MiB are reserved.
    assert profile["gpu_memory_peak_mb"] == pytest.approx(6042 + 2048 + 512 - 1500)
    # The next submission goes by it, too: 2 such jobs, each known, start at once.
    twice = json.loads(user.csub("plan", "--json", *OPTIONS, "pack", "train.sh", "train.sh").stdout)
    assert [m["known_by"] for p in twice["packs"] for m in p["members"]] == ["exact", "exact"]
