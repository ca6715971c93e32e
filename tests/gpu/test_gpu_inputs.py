"""The input side on a real GPU: one loader for many, cores by need, stalls told apart.

Figures are written to inputs.json and not judged. CSUB_GPU_INPUTS names the runs: `own` and
`shared` (eight trainings on JPEG pictures, a core each), `cores` (two trainings with six cores
each, of which one needs two and the other more, divided evenly and by need), `stalls` (what `csub
probe --stalls` says of trainings, and what they count themselves), `exchange` (the same of one on
two GPUs, through NCCL). CSUB_GPU_PICTURES is the number of pictures.
With CSUB_GPU_SIMULATED=1 it runs on the simulated GPU, and its figures mean nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .gpu_node import HERE, GpuNode, read_number, running_gpu_node

pytestmark = [pytest.mark.gpu, pytest.mark.slurm, pytest.mark.root, pytest.mark.timeout(1800)]

RUNS = os.environ.get("CSUB_GPU_INPUTS", "own shared cores stalls").split()
PICTURES = int(read_number("CSUB_GPU_PICTURES", 1600))
EPOCHS = int(read_number("CSUB_GPU_EPOCHS", 4))
TRAININGS = int(read_number("CSUB_GPU_MEMBERS", 8))
WINDOW_S = read_number("CSUB_GPU_WINDOW_S", 20.0)
PATIENCE_S = 240.0
LOAN_S = 35.0
"""From the first loan until it is judged and a second one is."""
STALLS = {
    "decoding": ("--workers=0",),
    "2 workers": ("--workers=2",),
    "slept": ("--workers=0", "--sleep=0.01"),
    "GPU": ("--workers=4", "--work=40"),
}
# Variables of a training on two GPUs. NCCL's multicast stays off: it may hang a host's GPUs.
EXCHANGES = {"NVLink": "", "host memory": "NCCL_P2P_DISABLE=1"}
RESULTS: dict[str, Any] = {}


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    gpus = 2 if "exchange" in RUNS else 1
    with running_gpu_node(
        archive="kept-inputs.tar.gz", gpus_per_node=gpus, host_memory_mb_per_node=110_000
    ) as found:
        RESULTS.update(gpu=found.gpu_before, simulated=found.is_simulated)
        yield found


@pytest.fixture(scope="module")
def pictures(bed: GpuNode) -> Path:
    return make_pictures(bed, PICTURES, 1)


def make_pictures(bed: GpuNode, count: int, scale: int) -> Path:
    folder = bed.user.home / f"pictures-{scale}"
    program = [sys.executable, str(HERE / "train_pictures.py"), "make", str(folder), str(count)]
    bed.user.run([*program, f"--scale={scale}"])
    return folder


def write_script(bed: GpuNode, name: str, pictures: Path, *words: str) -> tuple[Path, Path]:
    """A training's script, and where it writes."""
    out = bed.user.home / f"{name}.json"
    program = [sys.executable, str(HERE / "train_pictures.py"), "train", str(pictures), str(out)]
    device = ["--device=cpu"] if bed.is_simulated else []
    script = bed.user.home / f"{name}.sh"
    script.write_text(f"#!/bin/bash\nexec {shlex.join([*program, *words, *device])}\n")
    script.chmod(0o755)
    return script, out


def read_epochs(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def count_rate(epochs: list[dict[str, Any]]) -> float:
    """Samples per second after the first epoch, in which members meet."""
    rest = epochs[1:]
    return float(sum(each["samples"] for each in rest) / sum(each["seconds"] for each in rest))


@pytest.mark.parametrize("run", [run for run in RUNS if run in ("own", "shared")])
def test_eight_trainings(bed: GpuNode, pictures: Path, run: str) -> None:
    more = ["--shared"] if run == "shared" else []
    made = [
        write_script(bed, f"{run}-{n}", pictures, f"--epochs={EPOCHS}", *more)
        for n in range(TRAININGS)
    ]
    words = ("--gres=gpu:1", "--cpus-per-task=1", "--mem=6G", "--time=20", f"--degree={TRAININGS}")
    begun = time.time()
    job_id = bed.submit(run, "pack", *words, *(str(script) for script, _ in made))
    rows = bed.finish(job_id, patience_s=PATIENCE_S)
    epochs = [read_epochs(out) for _, out in made]
    RESULTS[run] = {
        "states": sorted(row["state"] for row in rows.values()),
        "samples_per_s": sum(map(count_rate, epochs)),
        "seconds": max(each[-1]["at"] for each in epochs) - begun,
        "exact": sum(all(each["exact"] for each in one) for one in epochs),
        "epochs": epochs,
    }
    show(bed, run)
    assert RESULTS[run]["states"] == ["COMPLETED"] * TRAININGS
    assert RESULTS[run]["exact"] == TRAININGS


def count_rates(outs: list[Path], begin: float) -> list[float]:
    """Samples per second that each program counted itself, in epochs that began after a moment."""
    found = []
    for out in outs:
        later = [each for each in read_epochs(out) if each["at"] - each["seconds"] > begin]
        seconds = sum(each["seconds"] for each in later)
        found.append(sum(each["samples"] for each in later) / seconds if later else 0.0)
    return found


@pytest.mark.skipif("cores" not in RUNS, reason="not asked for")
@pytest.mark.parametrize("run", ["even", "cores"])
def test_cores_by_need(bed: GpuNode, run: str) -> None:
    """Nothing is known of members without instrument, so cores stay divided evenly."""
    pictures = make_pictures(bed, PICTURES // 4, 2)
    # An epoch's end, where workers have nothing to load, is to be a small part.
    more = ("--repeat=4", "--epochs=1000")
    made = [
        write_script(bed, f"{run}-{workers}", pictures, f"--workers={workers}", *more)
        for workers in (2, 10)
    ]
    words = ["--gres=gpu:1", "--cpus-per-task=6", "--mem=12G", "--time=20", "--degree=2"]
    if run == "even":
        words.append("--no-instrument")
    job_id = bed.submit(run, "pack", *words, *(str(script) for script, _ in made))

    def list_loans() -> list[dict[str, Any]]:
        return [e for e in bed.read_events(job_id) if e["event"].startswith("cores")]

    def has_begun() -> bool:
        return all(read_epochs(out) for _, out in made) and (run == "even" or bool(list_loans()))

    bed.wait(has_begun, f"{run}: an epoch and, where there are loans, one", patience_s=150.0)
    settled_at = time.time() + (0.0 if run == "even" else LOAN_S)
    time.sleep(settled_at + WINDOW_S - time.time())
    told = [bed.user.csub("why", f"{job_id}/{n}", check=False).stdout for n in (1, 2)]
    report = bed.user.csub("report", job_id, "--detail", check=False).stdout
    bed.user.csub("cancel", "--yes", job_id)
    rates = count_rates([out for _, out in made], settled_at)
    RESULTS[run] = {"rates": rates, "loans": list_loans(), "told": told, "report": report}
    show(bed, run)
    assert all(rates)
    assert bool(list_loans()) == (run == "cores")


@pytest.mark.parametrize("kind", [*STALLS] if "stalls" in RUNS else [])
def test_stalls(bed: GpuNode, pictures: Path, kind: str) -> None:
    name = kind.replace(" ", "-")
    plain, out = write_script(bed, f"plain-{name}", pictures, *STALLS[kind], "--epochs=2")
    words = ("--gres=gpu:1", "--cpus-per-task=4", "--mem=12G", "--time=10")
    bed.finish(bed.submit(f"plain-{name}", *words, str(plain)), patience_s=PATIENCE_S)
    probed, _ = write_script(bed, f"probed-{name}", pictures, *STALLS[kind], "--epochs=1000")
    begun = time.monotonic()
    argv = ["csub", "probe", "--stalls", *words, str(probed)]
    told = bed.user.run(argv, check=False, timeout_s=PATIENCE_S)
    RESULTS.setdefault("stalls", {})[kind] = {
        "counted_wait": read_epochs(out)[-1]["wait_share"],
        "told": told.stdout + told.stderr,
        "seconds": time.monotonic() - begun,
    }
    show(bed, "stalls")


@pytest.mark.parametrize("kind", [*EXCHANGES] if "exchange" in RUNS else [])
def test_exchange_between_gpus(bed: GpuNode, kind: str) -> None:
    name = kind.replace(" ", "-")
    out = bed.user.home / f"{name}.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    scripts = {}
    for what, more in (("count", ["--count"]), ("probe", [])):
        program = [*torchrun, str(HERE / "train_exchange.py"), str(out), *more]
        program += ["--device=cpu", "--layers=2"] if bed.is_simulated else []
        scripts[what] = bed.user.home / f"{what}-{name}.sh"
        scripts[what].write_text(
            "#!/bin/bash\nexport NCCL_NVLS_ENABLE=0 NCCL_DEBUG=WARN "
            f"{EXCHANGES[kind]}\nexec {shlex.join(program)}\n"
        )
        scripts[what].chmod(0o755)
    words = ("--gres=gpu:2", "--cpus-per-task=8", "--mem=24G", "--time=10")
    counted_job = bed.submit(f"count-{name}", *words, str(scripts["count"]))
    bed.finish(counted_job, patience_s=PATIENCE_S)
    seconds = json.loads(out.read_text())
    argv = ["csub", "probe", "--stalls", *words, str(scripts["probe"])]
    told = bed.user.run(argv, check=False, timeout_s=PATIENCE_S)
    RESULTS.setdefault("exchange", {})[kind] = {
        "counted": {
            "gpu": seconds["apart"] / seconds["ordinary"],
            "exchange": (seconds["resident"] - seconds["apart"]) / seconds["ordinary"],
            "seconds": seconds,
        },
        "told": told.stdout + told.stderr,
    }
    show(bed, "exchange")


def show(bed: GpuNode, run: str) -> None:
    with contextlib.suppress(OSError):
        bed.write("inputs.json", RESULTS)
    print(f"\n{run}: {json.dumps(RESULTS[run])[:2000]}", flush=True)
