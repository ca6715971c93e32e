"""The fake sbatch: takes a batch script with the options that csub and the tests write."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

from tests.fake_slurm.program import Line, begin, fail, parse_length_s, parse_moment, refuse
from tests.fake_slurm.state import (
    CPUS_PER_NODE,
    GPUS_PER_NODE,
    HOST_MEMORY_MB,
    MAX_ARRAY_SIZE,
    NODES,
    expand_tasks,
    open_state,
    show_moment,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.fake_slurm.state import Job

_KNOWN = {
    "--array": 1, "--begin": 1, "--chdir": 1, "--comment": 1, "--cpus-per-task": 1,
    "--dependency": 1, "--error": 1, "--exclude": 1, "--export": 1, "--gres": 1, "--hold": 0,
    "--input": 1, "--job-name": 1, "--mem": 1, "--nodelist": 1, "--nodes": 1, "--no-requeue": 0,
    "--ntasks": 1, "--open-mode": 1, "--output": 1, "--parsable": 0, "--partition": 1,
    "--requeue": 0, "--test-only": 0, "--time": 1, "--wrap": 1,
}  # fmt: skip
_SAME = {"-H": "--hold", "-J": "--job-name", "-d": "--dependency", "-o": "--output", "-t": "--time"}
_CONDITIONS = ("after", "afterany", "afterok", "afternotok")
_FAILED = "sbatch: error: Batch job submission failed"
_HELP = """Usage: sbatch [OPTIONS(0)...] [ : [OPTIONS(N)...]] script(0) [args(0)...]

Parallel run options:
  -a, --array=indexes         job array index values
"""
"""No plug-in adds an option: what those add stands at the end, under a heading of its own."""


def main(argv: Sequence[str]) -> int:
    """Submit; prints the job id."""
    if list(argv) == ["--help"]:
        sys.stdout.write(_HELP)
        return 0
    begin("sbatch", argv, _FAILED)
    line = Line("sbatch", argv, _KNOWN, _SAME)
    job, script = build_job(line), read_script(line)
    if "--test-only" in line.options:
        words = f"using {job['cpus']} processors on nodes {NODES[0]} in partition"
        fail(f"sbatch: Job 1 to start at {show_moment(time.time())} {words} {job['partition']}", 0)
    with open_state() as state:
        for _, name in job["dependency"]:
            if not state.find(name):
                fail(f"{_FAILED}: Job dependency problem")
        first = str(state.next_id)
        tasks = [None] if "--array" not in line.options else expand_tasks(line.get("--array"))
        if any(task is not None and task >= MAX_ARRAY_SIZE for task in tasks):
            fail(f"{_FAILED}: Invalid job array specification")
        for task in tasks:
            number = str(state.next_id)
            state.next_id += 1
            state.jobs[number] = {**job, "id": number, "array_id": first, "task": task}
            folder = f"{state.directory}/spool/{number}"
            os.makedirs(folder)
            with open(f"{folder}/script", "wb") as file:
                file.write(script)
            os.chmod(f"{folder}/script", 0o700)
            kept = [(os.fsdecode(n), os.fsdecode(v)) for n, v in os.environb.items()]
            with open(f"{folder}/environment", "w") as text:
                json.dump(kept, text)
    sys.stdout.write(f"{'' if '--parsable' in line.options else 'Submitted batch job '}{first}\n")
    return 0


def read_script(line: Line) -> bytes:
    """The batch script; what it would ask for in #SBATCH lines, csub asks for by options."""
    if "--wrap" in line.options:
        return f"#!/bin/sh\n{line.get('--wrap')}\n".encode()
    if len(line.words) != 1:
        refuse("sbatch", f"the words {line.words}")
    with open(line.words[0], "rb") as file:
        script = file.read()
    if b"\n#SBATCH" in script:
        refuse("sbatch", "#SBATCH lines")
    return script


def build_job(line: Line) -> Job:
    """What is asked for, as one record."""
    if line.get("--export", "ALL") != "ALL":
        refuse("sbatch", f"--export={line.get('--export')}")
    if line.get("--nodes", "1") != "1":
        refuse("sbatch", f"--nodes={line.get('--nodes')}")
    kind, _, count = line.get("--gres", "gpu:0").partition(":")
    if kind != "gpu" or not count.isdigit():
        refuse("sbatch", f"--gres={line.get('--gres')}")
    cpus = int(line.get("--cpus-per-task", "1")) * int(line.get("--ntasks", "1"))
    memory = line.get("--mem", "100M").removesuffix("M")
    if not memory.isdigit():
        refuse("sbatch", f"--mem={line.get('--mem')}")
    if int(count) > GPUS_PER_NODE or cpus > CPUS_PER_NODE or int(memory) > HOST_MEMORY_MB:
        fail(f"{_FAILED}: Requested node configuration is not available")
    if line.get("--partition", "gpu") not in ("gpu", "preempt"):
        fail(f"sbatch: error: invalid partition specified: {line.get('--partition')}\n"
             f"{_FAILED}: Invalid partition name specified")  # fmt: skip
    left_out = [name for name in line.get("--exclude").split(",") if name]
    named = [name for name in line.get("--nodelist").split(",") if name]
    if not {*left_out, *named} <= set(NODES):
        fail(f"{_FAILED}: Invalid node name specified")
    if not set(named or NODES) - set(left_out):
        fail(f"{_FAILED}: Requested node configuration is not available")
    now = time.time()
    dependency, is_any = parse_dependency(line.get("--dependency"))
    limit = line.get("--array").partition("%")[2]
    script = os.path.basename(line.words[0]) if line.words else "wrap"
    return {
        "name": line.get("--job-name", script), "comment": line.get("--comment"),
        "partition": line.get("--partition", "gpu"), "uid": os.getuid(), "state": "PENDING",
        "reason": "None", "is_held": "--hold" in line.options,
        "begin_at": parse_moment("sbatch", line.get("--begin", "now"), now),
        "dependency": dependency, "is_any_dependency": is_any, "at_once": int(limit or 0),
        "limit_s": parse_length_s("sbatch", line.get("--time", "60")), "cpus": cpus,
        "host_memory_mb": int(memory), "gpu_count": int(count), "gpus": [], "node": "",
        "allowed": [n for n in named or NODES if n not in left_out],
        "may_requeue": "--no-requeue" not in line.options, "restarts": 0, "submit_at": now,
        "start_at": 0.0, "end_at": 0.0, "directory": line.get("--chdir", os.getcwd()),
        "output": line.get("--output"), "error": line.get("--error"),
        "input": line.get("--input", "/dev/null"),
        "appends": line.get("--open-mode") == "append", "exit": [0, 0], "ending": "",
        "supervisor": 0, "batch_pid": 0, "next_step": 0, "steps": {},
    }  # fmt: skip


def parse_dependency(text: str) -> tuple[list[list[str]], bool]:
    """Conditions of `afterok:7:8,afterany:9`, and whether one of them is enough (`?`)."""
    found = []
    is_any = "?" in text
    for part in text.split("?" if is_any else ",") if text else []:
        kind, *names = part.split("(")[0].split(":")
        if kind not in _CONDITIONS or not names:
            if names or kind == "singleton":
                refuse("sbatch", f"the dependency {part}")
            fail(f"{_FAILED}: Job dependency problem")
        found += [[kind, name] for name in names]
    return found, is_any
