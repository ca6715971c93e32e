"""On a real GPU: a job alone sees nothing of csub; members with a /tmp of their own share it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .gpu_node import GpuNode, running_gpu_node

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.timeout(420),
]

HERE = Path(__file__).parent
OPTIONS = ("--gres=gpu:1", "--cpus-per-task=2", "--mem=6G", "--time=5")
ALONE = """#!/bin/bash
listed=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader)
echo "listed=[$listed] cvd=[$CUDA_VISIBLE_DEVICES]"
{python} - <<'END'
import os, time
begin = time.monotonic()
import torch
loaded = time.monotonic()
torch.zeros(4, device="cuda").sum().item()
first = time.monotonic()
free, total = torch.cuda.mem_get_info()
held = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(GIB)]
print(f"index={int(os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0])}")
print(f"first_kernel_s={first - loaded:.2f}", f"total_gb={total / 2**30:.1f}")
print(f"took={len(held)}", flush=True)
open("up.%d" % GIB, "w").close()
while not os.path.exists("go"):
    (torch.rand(2048, 2048, device="cuda") @ torch.rand(2048, 2048, device="cuda")).sum().item()
END
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    with running_gpu_node(archive="kept-own-places.tar.gz") as found:
        yield found


def keep(bed: GpuNode, name: str, value: Any) -> None:
    path = bed.out / "own-places.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    bed.write("own-places.json", {**before, name: value})


def read_output(bed: GpuNode, job_id: str) -> dict[str, str]:
    text = (bed.user.home / f"slurm-{job_id}.out").read_text()
    return dict(re.findall(r"(\w+)=\[?([^\]\s]*)\]?", text))


def test_a_job_alone_sees_an_idle_gpu_of_which_it_may_take_all(bed: GpuNode) -> None:
    for name, gib in (("first", 40), ("second", 10)):
        path = bed.user.home / f"{name}.sh"
        path.write_text(ALONE.replace("GIB", str(gib)).replace("{python}", sys.executable))
        path.chmod(0o755)
    words = (*OPTIONS, "--share=mps!", "--join=auto", "--open=4")
    first = bed.submit("first", *words, "first.sh")
    bed.wait((bed.user.home / "up.40").exists, "the first works", 90)
    bed.wait_for_event(first, "start", member=1)
    second = bed.wait(lambda: join(bed, words), "a second one joins", 100)
    bed.wait((bed.user.home / "up.10").exists, "the second works", 60)
    why = bed.user.csub("why", f"{first}/1").stdout
    (bed.user.home / "go").touch()
    rows = bed.finish(first, patience_s=60)
    told: dict[str, Any] = {"why": why}
    told |= {"first": read_output(bed, first), "second": read_output(bed, second)}
    limits = {
        name: json.loads(bed.user.csub("history", "--json", one).stdout)[0]["gpu_memory_limit_mb"]
        for name, one in (("first", first), ("second", second))
    }
    keep(bed, "alone", {**told, "gpu_memory_limit_mb": limits})
    print(f"\n{told}")
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    assert told["first"]["listed"] == ""
    assert told["first"]["cvd"] == told["second"]["cvd"] == "0"
    assert told["first"]["took"] == "40"
    assert limits["first"] is None
    assert limits["second"] is not None


def join(bed: GpuNode, words: tuple[str, ...]) -> str:
    """The number of a job that has joined the running pack; empty while there is no room."""
    job_id = bed.user.csub(*words, "--parsable", "second.sh").stdout.strip()
    if int(job_id) > 1 << 27:
        return job_id
    bed.user.csub("cancel", "--yes", job_id)
    return ""


@pytest.mark.parametrize("private", [False, True])
def test_members_with_a_tmp_of_their_own_keep_limits_and_faults_apart(
    bed: GpuNode, *, private: bool
) -> None:
    name = "own-tmp" if private else "shared-tmp"
    folder = bed.user.home / name
    folder.mkdir()
    shutil.chown(folder, bed.user.uid, bed.user.gid)
    program = f"{sys.executable} {HERE / 'fault_member.py'}"
    head = "#!/bin/bash\n" + ("#CSUB --private-tmp\n" if private else "")
    look = "echo $1 >/tmp/whose.$SLURM_JOB_ID; sleep 2; ls -d /tmp/whose.*"
    body = f'{head}{look}; exec {program} "$@"\n'
    script = bed.user.home / f"{name}.sh"
    script.write_text(body)
    script.chmod(0o755)
    options = (*OPTIONS, "--share=mps!", "--gpu-mem=8G", "--requeue", "--no-pause", "--degree=4")
    jobs = [
        *(f"{script} work --seconds 20 --number {n} --flags {folder}" for n in (1, 2)),
        f"{script} memory-limit --flags {folder} --wait-for 1 2",
        f"{script} illegal-address --flags {folder} --wait-for 1 2",
    ]
    job_id = bed.submit(name, "pack", *options, *jobs)
    seen = bed.wait(lambda: find_figures(bed, job_id), "the monitor names each one's memory", 90)
    rows = bed.finish(job_id, patience_s=150)
    left = bed.wait_until_nothing_is_left()
    causes = {number: bed.user.csub("why", f"{job_id}/{number}").stdout for number in rows}
    told = {"states": {n: row["state"] for n, row in rows.items()}, "seen": seen, "why": causes}
    keep(bed, name, {**told, "left": left})
    print(f"\n{told}\n{left}")
    assert [rows[number]["state"] for number in (1, 2)] == ["COMPLETED", "COMPLETED"]
    # Out of memory at its limit, and then without one; the last has ended all clients' server.
    assert "OutOfMemoryError" in bed.user.output(f"slurm-{job_id}_3.out")
    assert rows[4]["state"] == "FAILED"
    assert "culprit" in causes[4]
    listed = [bed.user.output(f"slurm-{job_id}_{number}.out") for number in rows]
    most = max(len({*re.findall(r"/tmp/whose\.\S+", text)}) for text in listed)
    assert most == 1 if private else most > 1, listed
    assert left["left"] == {}


def find_figures(bed: GpuNode, job_id: str) -> str:
    """What csub top prints once both members that work have GPU memory; empty before that."""
    told = bed.user.csub("top", "--once", job_id, check=False).stdout
    rows = [line for line in told.splitlines() if line.startswith((f"{job_id}/1", f"{job_id}/2"))]
    taken = [re.search(r"(unknown +){3}[1-9][0-9.]* [MG]B", row) for row in rows]
    return told if len(list(filter(None, taken))) == 2 else ""
