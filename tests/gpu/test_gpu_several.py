"""Packs over two real GPUs of one host, and what else could be done with them.

Through a real Slurm. Figures are written to several.json and several.csv and not judged. Wall times
are from the moment when Slurm starts the first job to the end of the last member. What is said to
be computed was not run: members one after the other take as often as long as one alone.

CSUB_GPU_GPUS names the parts: `small` (trainings over both GPUs in one pack of two, against a pack
a GPU, against one after the other), `pairs` (two torchrun pairs that share both GPUs), `mixed` (a
pair next to six small ones), `lost` (a GPU's programs are told to fail, NVML to call it lost).
CSUB_GPU_MEMBERS says how many small ones, CSUB_GPU_WORK_S how many seconds of work each has alone.
With CSUB_GPU_SIMULATED=1 it runs on two simulated GPUs.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shlex
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from .gpu_node import HERE, GpuNode, read_number, running_gpu_node
from .planned import IMAGES_PER_S, look_at_speeds
from .trainings import read_printed

pytestmark = [pytest.mark.gpu, pytest.mark.slurm, pytest.mark.root, pytest.mark.timeout(1800)]

PARTS = os.environ.get("CSUB_GPU_GPUS", "small pairs mixed lost").split()
MEMBERS = int(read_number("CSUB_GPU_MEMBERS", 24))
WORK_S = read_number("CSUB_GPU_WORK_S", 30)
BUDGET_S = read_number("CSUB_GPU_LIMIT_S", 570) - 40
SCALE = max(0.6, WORK_S / 30)
NEEDS_S = {"small": 240 * SCALE, "pairs": 150 * SCALE, "mixed": 130 * SCALE, "lost": 100 * SCALE}
"""A part is not begun where less is left of the time."""
SMALL_ONES = 6
PATIENCE_S = 400.0
RUN_S = 5.0
"""How long a member is to have run before its GPU is called lost: its first steps are made."""
ASKED = ("--mem=4G", "--time=20", "--join=never", "--max-slowdown=1.5")
STARTED = time.monotonic()
RESULTS: dict[str, Any] = {}
ROWS: list[list[Any]] = []


@pytest.fixture(scope="module")
def bed() -> Iterator[GpuNode]:
    """One node with two GPUs, and one user for all of it."""
    with running_gpu_node(
        archive="kept-several.tar.gz",
        gpus_per_node=2,
        host_memory_mb_per_node=220_000,
        cpus_per_node=max(32, os.cpu_count() or 1),
    ) as found:
        RESULTS.update(gpu=found.gpu_before, simulated=found.is_simulated)
        yield found


def write_small(bed: GpuNode, name: str, *, gpus: int = 1) -> Path:
    """A script with as much work as one alone does in WORK_S."""
    images = 50_000 if bed.is_simulated else int(WORK_S * IMAGES_PER_S["small"])
    program = [sys.executable, str(HERE / "train_sized.py"), "--size", "small"]
    program += ["--images", str(images)]
    program += ["--device", "cpu"] if bed.is_simulated else []
    progress = f"{bed.user.home}/{name}.${{SLURM_ARRAY_TASK_ID:-0}}"
    return write_script(bed, name, f"{shlex.join(program)} --progress {progress}", gpus, cores=1)


def write_pair(bed: GpuNode, name: str, steps: int) -> Path:
    """A script of a training on two GPUs, as its user would write it."""
    program = [str(HERE / "train_pair.py"), "--steps", str(steps)]
    program += ["--progress", f"{bed.user.home}/{name}.progress"]
    if bed.is_simulated:
        program += ["--device", "cpu", "--width", "64", "--layers", "2", "--batch", "2"]
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *program]
    return write_script(bed, name, shlex.join(run), gpus=2, cores=4)


def write_script(bed: GpuNode, name: str, command: str, gpus: int, *, cores: int) -> Path:
    script = bed.user.home / f"{name}.sh"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --gres=gpu:{gpus}\n#SBATCH --cpus-per-task={cores}\n"
        f"# {name}\nexec {command}\n"
    )
    script.chmod(0o755)
    return script


def run_job(bed: GpuNode, name: str, *words: str, states: Sequence[str] = ("COMPLETED",)) -> Any:
    """Submit, wait until all have ended; how long that took, and what csub and its members say."""
    planned = bed.user.csub("plan", "--json", *words, check=False).stdout
    job_id = bed.submit(name, *words)
    bed.finish(job_id, patience_s=PATIENCE_S)
    rows = bed.user.members(job_id)
    starts = [row["started_at"] for row in rows.values() if row["started_at"]]
    entry = {
        "job_id": job_id,
        "words": list(words),
        "members": len(rows),
        "wall_s": max(row["ended_at"] for row in rows.values()) - min(starts),
        "states": sorted({row["state"] for row in rows.values()}),
        "gpus": {number: row["gpu_uuids"] for number, row in rows.items()},
        "starts": {number: row["starts"] for number, row in rows.items()},
        "planned": json.loads(planned) if planned.startswith("{") else planned,
        "report": json.loads(bed.user.csub("report", "--json", job_id).stdout),
        "why": bed.user.csub("why", job_id, check=False).stdout.splitlines()[:4],
    }
    with (bed.out / "several-reports.txt").open("a") as file:
        file.write(f"== {name}: csub {shlex.join(words)}\n")
        file.write(bed.user.csub("report", "--detail", job_id).stdout)
    assert set(entry["states"]) <= set(states), bed.user.describe(job_id)
    return entry


def note(bed: GpuNode, part: str, name: str, entry: dict[str, Any], *, against_s: float) -> None:
    """Keep a measurement, and what it was measured against."""
    entry["times"] = against_s / entry["wall_s"]
    RESULTS.setdefault(part, {})[name] = entry
    bed.write("several.json", RESULTS)
    ROWS.append(
        [part, name, entry["members"], round(entry["wall_s"], 2), round(against_s, 2),
         round(entry["times"], 3), entry.get("communication_share", "")]
    )  # fmt: skip
    with (bed.out / "several.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["part", "run", "members", "wall_s", "one_after_the_other_s", "times_faster",
             "communication_share"]
        )  # fmt: skip
        table.writerows(ROWS)
    print(
        f"\n{time.monotonic() - STARTED:5.0f} s  {part} {name}: {entry['members']} in "
        f"{entry['wall_s']:.1f} s, {entry['times']:.2f} times faster than one after the other",
        flush=True,
    )


def may_begin(part: str) -> bool:
    left_s = BUDGET_S - (time.monotonic() - STARTED)
    if part in PARTS and left_s < NEEDS_S[part]:
        print(f"\nno time for {part}: {left_s:.0f} s are left", flush=True)
    return part in PARTS and left_s >= NEEDS_S[part]


def run_small_alone(bed: GpuNode, *, gpus: int = 1) -> tuple[Path, float]:
    """The script of the small ones, and how long one takes alone; it is measured once."""
    script = bed.user.home / "small.sh"
    if "alone" not in RESULTS:
        look_at_speeds(bed, ["small"])
        script = write_small(bed, "small", gpus=gpus)
        RESULTS["alone"] = run_job(bed, "small-alone", *ASKED, "--array=0", str(script))
    return script, float(RESULTS["alone"]["wall_s"])


def test_many_small_trainings_over_both_gpus(bed: GpuNode) -> None:
    if not may_begin("small"):
        pytest.skip("not asked for, or no time")
    script, alone_s = run_small_alone(bed)
    # One after the other on each of two GPUs.
    serial_s = MEMBERS * alone_s / 2
    array = f"--array=1-{MEMBERS}"
    apart = ("--gpus-per-pack=1", f"--pack-size={-(-MEMBERS // 2)}")
    for name, how in (("one-pack-of-two", ("--gpus-per-pack=2",)), ("a-pack-a-gpu", apart)):
        words = (*ASKED, *how, array, str(script))
        entry = run_job(bed, name, *words)
        note(bed, "small", name, entry, against_s=serial_s)
        used = {uuid for uuids in entry["gpus"].values() for uuid in uuids}
        assert bed.is_simulated or len(used) == 2


def run_pair_alone(bed: GpuNode) -> tuple[int, dict[str, Any]]:
    """Steps of about WORK_S, and a pair alone on both GPUs; it is measured once."""
    if "pair-alone" not in RESULTS:
        per_s = 20.0
        if not bed.is_simulated:
            look = run_job(bed, "pair-look", *ASKED, str(write_pair(bed, "look", 200)))
            told = read_printed(bed, look["job_id"], 1)
            per_s = told["steps"] / told["training_s"]
        steps = max(20, int(WORK_S * per_s))
        entry = run_job(bed, "pair-alone", *ASKED, str(write_pair(bed, "alone", steps)))
        entry["printed"] = [read_printed(bed, entry["job_id"], 1)]
        entry["communication_share"] = entry["printed"][0]["communication_share"]
        entry["steps"] = steps
        RESULTS["pair-alone"] = entry
        note(bed, "pairs", "one-alone", entry, against_s=entry["wall_s"])
    found = RESULTS["pair-alone"]
    return int(found["steps"]), found


def add_communication(bed: GpuNode, entry: dict[str, Any], numbers: Sequence[int]) -> None:
    printed = [read_printed(bed, entry["job_id"], number) for number in numbers]
    entry["printed"] = printed
    entry["communication_share"] = round(
        statistics.mean(told["communication_share"] for told in printed), 4
    )


def test_two_pairs_share_both_gpus(bed: GpuNode) -> None:
    if not may_begin("pairs"):
        pytest.skip("not asked for, or no time")
    steps, alone = run_pair_alone(bed)
    scripts = [str(write_pair(bed, f"pair{number}", steps)) for number in (1, 2)]
    words = ("pack", *ASKED, "--gpus-per-pack=2", "--degree=2", *scripts)
    entry = run_job(bed, "two-pairs", *words)
    add_communication(bed, entry, (1, 2))
    note(bed, "pairs", "two-sharing", entry, against_s=2 * alone["wall_s"])
    ports = {told["port"] for told in entry["printed"]}
    assert len(ports) == 2


def test_a_pair_next_to_six_small_ones(bed: GpuNode) -> None:
    if not may_begin("mixed"):
        pytest.skip("not asked for, or no time")
    script, small_s = run_small_alone(bed)
    steps, pair = run_pair_alone(bed)
    text = script.read_text()
    smalls = []
    for number in range(SMALL_ONES):
        one = bed.user.home / f"other{number}.sh"
        one.write_text(text.replace("# small", f"# other {number}"))
        one.chmod(0o755)
        smalls.append(str(one))
    words = ("pack", *ASKED, "--gpus-per-pack=2", f"--degree={1 + SMALL_ONES}",
             str(write_pair(bed, "mixed", steps)), *smalls)  # fmt: skip
    entry = run_job(bed, "mixed", *words)
    add_communication(bed, entry, (1,))
    serial_s = pair["wall_s"] + SMALL_ONES * small_s / 2
    note(bed, "mixed", "pair-and-six", entry, against_s=serial_s)


def write_failing(bed: GpuNode, script: Path, mark: Path) -> Path:
    """A small training that ends as PyTorch's do, as soon as its GPU is named in a file."""
    command = next(line for line in script.read_text().splitlines() if line.startswith("exec "))
    lines = [
        "#!/bin/bash",
        "#SBATCH --gres=gpu:1",
        "#SBATCH --cpus-per-task=1",
        f"{command.removeprefix('exec ')} &",
        "while kill -0 $! 2>/dev/null; do",
        f'    if grep -qs "$CUDA_VISIBLE_DEVICES" {mark}; then',
        "        kill -KILL $!",
        '        echo "torch.AcceleratorError: CUDA error: unknown error" >&2',
        "        exit 1",
        "    fi",
        "    sleep 0.2",
        "done",
        "wait $!",
    ]
    failing = bed.user.home / "failing.sh"
    failing.write_text("\n".join(lines) + "\n")
    failing.chmod(0o755)
    return failing


def find_busy_gpus(bed: GpuNode, job_id: str, *, gpus: int) -> list[str]:
    """The GPUs on which a member trains by now; none before there are as many as are wanted."""
    since = time.time() - RUN_S
    found = {
        uuid
        for row in bed.user.members(job_id).values()
        if row["state"] == "RUNNING" and row["started_at"] < since
        for uuid in row["gpu_uuids"]
    }
    return sorted(found) if len(found) >= gpus else []


def test_what_ran_on_a_gpu_that_is_lost_goes_to_the_other(bed: GpuNode) -> None:
    if not may_begin("lost"):
        pytest.skip("not asked for, or no time")
    script, alone_s = run_small_alone(bed)
    mark = bed.user.home / "lost"
    failing = write_failing(bed, script, mark)
    count = 8
    words = (*ASKED, "--requeue", "--gpus-per-pack=2", "--degree=2", f"--array=1-{count}")
    with breaking_nvml() as lose:
        job_id = bed.submit("lost", *words, str(failing))
        busy = bed.wait(
            lambda: find_busy_gpus(bed, job_id, gpus=2),
            "members have run on both GPUs for a while",
            patience_s=120,
        )
        uuid = busy[-1]
        mark.write_text(f"{uuid}\n")
        lose(uuid)
        bed.finish(job_id, patience_s=PATIENCE_S)
    rows = bed.user.members(job_id)
    entry = {
        "job_id": job_id,
        "lost": uuid,
        "members": len(rows),
        "wall_s": max(row["ended_at"] for row in rows.values())
        - min(row["started_at"] for row in rows.values() if row["started_at"]),
        "states": {number: row["state"] for number, row in rows.items()},
        "starts": {number: row["starts"] for number, row in rows.items()},
        "gpus": {number: row["gpu_uuids"] for number, row in rows.items()},
        "report": json.loads(bed.user.csub("report", "--json", job_id).stdout),
    }
    note(bed, "lost", "one-of-two-gpus", entry, against_s=count * alone_s)
    assert set(entry["states"].values()) == {"COMPLETED"}, bed.user.describe(job_id)
    assert all(uuid not in uuids for uuids in entry["gpus"].values())


# -- an NVML that calls a GPU lost -------------------------------------------------------------
# No one takes a GPU off its bus for a test. What is played is what programs see of it: NVIDIA's
# Python binding answers GPU_IS_LOST for that GPU, by whichever way it is asked for.

_NAME = "csub_lossy_nvml"
_MODULE = """
import ctypes, importlib.abc, importlib.util, os, sys

LOST = {lost!r}


def read_lost():
    try:
        with open(LOST) as file:
            return file.read().split()
    except OSError:
        return []


def patch(nvml):
    uuids = {{}}
    ask_uuid = nvml.nvmlDeviceGetUUID

    def key_of(handle):
        return ctypes.cast(handle, ctypes.c_void_p).value

    def fail():
        raise nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)

    def wrap_find(find):
        def found(*arguments, **named):
            handle = find(*arguments, **named)
            uuid = ask_uuid(handle)
            uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
            uuids[key_of(handle)] = uuid
            return fail() if uuid in read_lost() else handle
        return found

    def wrap(call):
        def called(handle, *arguments, **named):
            try:
                uuid = uuids.get(key_of(handle))
            except (ctypes.ArgumentError, TypeError):
                uuid = None
            if uuid is not None and uuid in read_lost():
                fail()
            return call(handle, *arguments, **named)
        return called

    for name in dir(nvml):
        call = getattr(nvml, name)
        if not callable(call) or not name.startswith(("nvmlDevice", "nvmlGpmSampleGet")):
            continue
        if name.startswith("nvmlDeviceGetHandleBy"):
            setattr(nvml, name, wrap_find(call))
        elif not name.startswith("nvmlDeviceGetCount"):
            setattr(nvml, name, wrap(call))


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "pynvml":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def execute(module):
                load(module)
                patch(module)

            spec.loader.exec_module = execute
        return spec


sys.meta_path.insert(0, Finder())
"""


@contextlib.contextmanager
def breaking_nvml() -> Iterator[Callable[[str], None]]:
    """While it lasts, programs that start in this environment believe what is said to be lost.

    Returns:
        Says that a GPU is lost, by UUID.
    """
    site = Path(sysconfig.get_path("purelib"))
    lost = site / f"{_NAME}.lost"
    files = {
        site / f"{_NAME}.py": _MODULE.format(lost=str(lost)),
        site / f"{_NAME}.pth": f"import {_NAME}\n",
        lost: "",
    }
    try:
        for path, text in files.items():
            path.write_text(text)
            path.chmod(0o644)

        def lose(uuid: str) -> None:
            lost.write_text(f"{uuid}\n")

        yield lose
    finally:
        for path in files:
            path.unlink(missing_ok=True)
