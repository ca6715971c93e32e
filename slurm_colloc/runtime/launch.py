"""How a member is started: the srun command line and the wrapper's launch file; pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_colloc.model.job import Job

WRAPPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wrapper.py")


def build_wrapper_argv(python: str, launch_file: str) -> list[str]:
    """The wrapper's command line: isolated, without site packages, so that it starts fast.

    Like all interpreters that csub starts on a node it writes no bytecode (-B): under a file size
    limit or on a full disk older Pythons leave half a file behind, at which every later start
    fails (python/cpython#126606).
    """
    return [python, "-IB", "-S", WRAPPER, launch_file]


def build_srun_argv(name: str, host_memory_mb: int | None, command: Sequence[str]) -> list[str]:
    """Start one task beside others: no -c, no --exact, no --gres.

    Overlapping steps with --exact get the same cores, and --gres conflicts with --gpus-per-node
    of the job from 23.11 on; without them a step sees all of the job's CPUs and GPUs, and the
    wrapper binds itself (srun(1); seen on 22.05 and 26.05).
    """
    memory = [] if host_memory_mb is None else [f"--mem={host_memory_mb}"]
    return [
        "srun",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        *memory,
        f"--job-name={name}",
        "--cpu-bind=none",
        "--export=ALL",
        "--input=none",
        "--kill-on-bad-exit=0",
        *command,
    ]


def build_launch(
    *,
    job: Job,
    script: str,
    environment: Mapping[str, str],
    cpus: Sequence[int],
    output: str | None,
    error: str | None,
    umask: int,
    prefix: str,
    runner_pid: int,
    kill_wait_s: float,
    passes_on: bool,
    tmpdir: str,
    is_step: bool,
) -> dict[str, Any]:
    """The launch file's value; see runtime.wrapper for who reads it."""
    return {
        "argv": [script, *job.arguments],
        "environment": sorted(environment.items()),
        "directory": job.directory,
        "cpus": list(cpus),
        "input": job.input,
        "output": output,
        "error": error,
        "truncate": job.truncate_output,
        "umask": umask,
        "prefix": prefix,
        "runner_pid": runner_pid,
        "kill_wait_s": kill_wait_s,
        "passes_on": passes_on,
        "own_tmpdir": tmpdir,
        "is_step": is_step,
    }
