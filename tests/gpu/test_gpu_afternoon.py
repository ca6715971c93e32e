"""An afternoon: small trainings typed one by one, and the same under a wrapper of one line.

Through a real Slurm on a real GPU. Figures are written to afternoon.json and afternoon.csv and not
judged: the time from the first submission to the last end, and each training's from its own.

CSUB_GPU_AFTERNOON names the runs, in their order: `wrapper` (all with & at the times at which they
would be typed, in one job that has the GPU and all CPUs, under an MPS daemon of one line) and
`unknown` or `known` with the accepted slowdown, `unknown-3`: twenty of five unlike kinds, or with
`twelve-` before it twelve equal ones: `twelve-wrapper`, `twelve-known-3`. What is unknown is
forgotten before. CSUB_GPU_TYPED_S is the time between two submissions, CSUB_GPU_WORK a part of all
steps. With CSUB_GPU_SIMULATED=1 it runs on the simulated GPU.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .gpu_node import HERE, GpuNode, read_number, running_gpu_node

pytestmark = [pytest.mark.gpu, pytest.mark.slurm, pytest.mark.root, pytest.mark.timeout(1800)]

STEPS = {"residual": 3400, "loader": 3000, "trainer": 2600, "lightning": 6000, "graph": 4400}
EQUAL_STEPS = 2600
EACH, EQUAL = 4, 12
TYPED_S = read_number("CSUB_GPU_TYPED_S", 2.0)
WORK = read_number("CSUB_GPU_WORK", 1.0)
RUNS = os.environ.get("CSUB_GPU_AFTERNOON", "wrapper unknown-3 known-3").split()
BUDGET_S = read_number("CSUB_GPU_BUDGET_S", 560)
ASKED = ("--gres=gpu:1", "--cpus-per-task=1", "--mem=5G", "--time=20")
STARTED = time.monotonic()
RESULTS: dict[str, Any] = {}
ONE_LINE_MPS = (
    "export CUDA_MPS_PIPE_DIRECTORY=$PWD/p CUDA_MPS_LOG_DIRECTORY=$PWD/l; mkdir -p p l; "
    "nvidia-cuda-mps-control -d"
)


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    """One Slurm and one user for all of it; what is known is given by a file of an earlier call."""
    with running_gpu_node(
        archive="kept-afternoon.tar.gz", host_memory_mb_per_node=120_000
    ) as found:
        RESULTS.update(gpu=found.gpu_before, simulated=found.is_simulated)
        kept = Path(os.environ.get("CSUB_GPU_PROFILES", "-"))
        if kept.exists():
            found.user.script("import.json", kept.read_text(), directives="")
            found.user.csub("profile", "import", str(kept), check=False)
        yield found


def list_trainings(run: str) -> list[tuple[str, int, str]]:
    """Kind, steps, and an argument of its own for each."""
    if run.startswith("twelve"):
        return [("residual", round(WORK * EQUAL_STEPS), str(n)) for n in range(EQUAL)]
    return [
        (kind, round(WORK * steps), str(n)) for n in range(EACH) for kind, steps in STEPS.items()
    ]


def write_script(bed: GpuNode, kind: str) -> Path:
    program = [sys.executable, str(HERE / "afternoon_trainings.py"), kind]
    device = ["--device", "cpu"] if bed.is_simulated else []
    script = bed.user.home / f"{kind}.sh"
    # Lightning looks for MPI, which may not find an ssh here.
    script.write_text(
        "#!/bin/bash\nexport OMPI_MCA_plm_rsh_agent=sh\n"
        f'exec {shlex.join(program)} "$@" {shlex.join(device)}\n'
    )
    script.chmod(0o755)
    return script


def run_wrapper(bed: GpuNode, run: str) -> dict[str, Any]:
    """One job with all, each started when it would have been typed."""
    trainings = list_trainings(run)
    lines = ["#!/bin/bash", *([] if bed.is_simulated else [ONE_LINE_MPS]), "date +%s.%N >$1.begin"]
    for number, (kind, steps, note) in enumerate(trainings):
        script = write_script(bed, kind)
        word = f"{bed.user.home}/{run}.{number}"
        lines.append(
            f"( bash {script} {steps} {note} >{word}.out 2>&1; "
            f"echo $? $(date +%s.%N) >{word}.end ) &"
        )
        lines.append(f"sleep {TYPED_S:g}")
    lines += ["wait", *([] if bed.is_simulated else ["echo quit | nvidia-cuda-mps-control"])]
    lines.append("date +%s.%N >$1.end")
    wrapper, mark = bed.user.home / f"{run}.wrapper", bed.user.home / run
    wrapper.write_text("\n".join(lines) + "\n")
    cores = len(os.sched_getaffinity(0))
    words = ["sbatch", "--gres=gpu:1", f"-c{cores}", "--mem=110G", "--time=20"]
    bed.user.run([*words, "--output=/dev/null", str(wrapper), str(mark)])
    end = Path(f"{mark}.end")
    bed.wait(end.exists, f"{run} has ended", patience_s=500)
    bed.wait(end.read_text, f"{run} has ended")
    begin = float(Path(f"{mark}.begin").read_text())
    ends, codes = [], []
    for number in range(len(trainings)):
        code, moment = Path(f"{mark}.{number}.end").read_text().split()
        codes.append(int(code))
        ends.append(float(moment) - begin)
    times = [end_s - TYPED_S * number for number, end_s in enumerate(ends)]
    return {"ends_s": ends, "times_s": times, "failed": sum(code != 0 for code in codes)}


def run_csub(bed: GpuNode, run: str) -> dict[str, Any]:
    """Each typed by itself."""
    state, _, bound = run.removeprefix("twelve-").partition("-")
    if state == "unknown":
        bed.user.csub("profile", "forget", "--all", "--yes", check=False)
    begin, submitted, names = time.time(), [], []
    for number, (kind, steps, note) in enumerate(list_trainings(run)):
        script = write_script(bed, kind)
        while time.time() < begin + TYPED_S * number:
            time.sleep(0.02)
        submitted.append(time.time())
        words = (*ASKED, "--join", "--open", f"--max-slowdown={bound}", str(script))
        told = bed.user.csub(*words, str(steps), note)
        found = re.search(r"(?:member |csub: )(\d+/\d+)", told.stdout + told.stderr)
        assert found, told
        names.append(found.group(1))
    for job_id in dict.fromkeys(name.partition("/")[0] for name in names):
        bed.jobs.setdefault(f"{run}-{job_id}", job_id)
    patience = time.monotonic() + 500
    seen = ""
    while True:
        rows = json.loads(bed.user.csub("queue", "--json", "--all", check=False).stdout or "[]")
        rows += json.loads(bed.user.csub("history", "--json", check=False).stdout or "[]")
        by_name = {row["member"]: row for row in rows}
        over = [n for n in names if by_name.get(n, {}).get("ended_at") is not None]
        running = sum(by_name.get(n, {}).get("state") == "RUNNING" for n in names)
        line = f"{running} run, {len(over)} of {len(names)} have ended"
        if line != seen:
            seen = line
            print(f"{time.time() - begin:6.1f} s  {run}: {line}", flush=True)
        if len(over) == len(names):
            break
        if time.monotonic() > patience:
            print(bed.user.csub("why", *names, check=False).stdout, flush=True)
            pytest.fail(f"{run} is not over")
        time.sleep(1.0)
    rows = [by_name[name] for name in names]
    packs = list(dict.fromkeys(name.partition("/")[0] for name in names))
    report = bed.user.csub("report", *packs, check=False).stdout
    print(report[:3000], flush=True)
    return {
        "ends_s": [row["ended_at"] - begin for row in rows],
        "times_s": [row["ended_at"] - at for row, at in zip(rows, submitted, strict=True)],
        "starts_s": [
            None if row.get("started_at") is None else row["started_at"] - begin for row in rows
        ],
        "failed": sum(row["state"] != "COMPLETED" for row in rows),
        "packs": len(packs),
        "events": read_events(bed, begin),
        "degrees": read_degrees(bed, begin),
        "report": report,
    }


def read_events(bed: GpuNode, begin: float) -> list[dict[str, Any]]:
    """What runners have written down since then that matters here."""
    names = ("degree", "measures", "requeue", "took_over", "emptied", "culprit", "open_door")
    found = []
    for path in sorted((bed.user.state / "packs").glob("*/events.jsonl")):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["at"] >= begin and event["event"] in names:
                found.append({**event, "at": event["at"] - begin})
    return found


def read_degrees(bed: GpuNode, begin: float) -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text())
        for path in sorted((bed.user.state / "packs").glob("*/degree.json"))
        if path.stat().st_mtime >= begin
    ]


def test_an_afternoon(bed: GpuNode) -> None:
    rows = []
    for run in RUNS:
        if time.monotonic() - STARTED > BUDGET_S:
            print(f"\nno time for {run}", flush=True)
            break
        entry = (run_wrapper if run.endswith("wrapper") else run_csub)(bed, run)
        entry["last_end_s"] = max(entry["ends_s"])
        entry["mean_time_s"] = sum(entry["times_s"]) / len(entry["times_s"])
        RESULTS[run] = entry
        bed.write("afternoon.json", RESULTS)
        rows.append([run, len(entry["ends_s"]), entry["last_end_s"], entry["mean_time_s"],
                     entry["failed"]])  # fmt: skip
        print(
            f"\n{time.monotonic() - STARTED:5.0f} s  {run}: last end after "
            f"{entry['last_end_s']:.1f} s, mean {entry['mean_time_s']:.1f} s, "
            f"{entry['failed']} failed",
            flush=True,
        )
        with (bed.out / "afternoon.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["run", "trainings", "last_end_s", "mean_time_s", "failed"])
            table.writerows(rows)
    exported = bed.user.csub("profile", "export", check=False).stdout
    (bed.out / "profiles.json").write_text(exported)
