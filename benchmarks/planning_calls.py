"""What planning adds to a submission, among the usage profiles of a thousand other scripts.

`python -m benchmarks.planning_calls FOLDER WORDS...` plans one call in this process and prints
the milliseconds that took.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import Figures, Section, format_ratio, interleave
from slurm_colloc.settings import load_settings
from slurm_colloc.submission.jobs.call_jobs import collect_call

RUNS = 15
PROFILES = 1000
ONE_TARGET_MS = 50
_SCRIPT = "#!/bin/sh\n#SBATCH --gres=gpu:h200:1 --time=30:00\necho {}\n"
_CALLS = {
    "one script that nobody knows": ("unknown.sh",),
    "one script with a usage profile": ("known.sh",),
    "an array of 16 with a usage profile": ("--array=1-16", "known.sh"),
}
_ROOT = Path(__file__).resolve().parents[1]
_ABOUT = (
    f"Time of planning with all that only it imports, in a new process, and {PROFILES} usage "
    "profiles in the user's state; Slurm is not asked."
)


def measure_planning_calls() -> Section:
    """Plan calls, each time in a new process."""
    figures = Figures()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _fill(folder)
        actions: dict[str, Callable[[], float]] = {
            what: functools.partial(_run, folder, words) for what, words in _CALLS.items()
        }
        actions["a bare interpreter"] = _time_bare
        measured = interleave(actions, RUNS)
    bare = measured["a bare interpreter"]
    for what, words in _CALLS.items():
        figures.add(
            what,
            measured[what],
            "ms",
            target=ONE_TARGET_MS if len(words) == 1 else None,
            ratio=format_ratio(measured[what], bare, "a bare interpreter's start"),
            command=f"csub {' '.join(words)}",
        )
    return figures.build_section("Planning of a call", [_ABOUT])


def _fill(folder: Path) -> None:
    """Scripts, and usage profiles of one of them and of many others."""
    from slurm_colloc.model.usage_profile import Completion, Observation
    from slurm_colloc.store.profile_updates import add_completions, add_observations
    from slurm_colloc.store.profiles import compute_family, compute_signature

    for name in ("known.sh", "unknown.sh"):
        (folder / name).write_text(_SCRIPT.format(name))
    call = collect_call(["known.sh"], {}, str(folder), pack=False)
    candidate = call.candidates[0]
    known = compute_signature(candidate.script, candidate.job)
    family = compute_family(candidate.script, candidate.job)
    state = folder / ".local/state/slurm_colloc"
    state.mkdir(parents=True)
    others = [(f"{number:032x}", f"{number:032x}") for number in range(1, PROFILES)]
    observations = [
        Observation(
            signature=signature,
            family=of,
            name="known.sh",
            gpu_model="NVIDIA H200",
            gpu_uuid="GPU-1",
            source=f"{signature[-4:]}/1.1.1",
            at=time.time(),
            window_s=60,
            gpu_memory_total_mb=143771,
            steps_per_s=10.0,
            sm_active=0.1,
            dram_active=0.03,
            engine_active=0.25,
            gpu_memory_peak_mb=6000.0,
        )
        for signature, of in [(known, family), *others]
    ]
    problems = add_observations(state, observations)
    problems += add_completions(state, [Completion(known, "NVIDIA H200", "known/1", 5400.0)])
    assert not problems, problems[0]


def _build_environment(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "PATH": os.environ["PATH"]}


def _run(folder: Path, words: tuple[str, ...]) -> float:
    program = [sys.executable, "-m", "benchmarks.planning_calls", str(folder), *words]
    ended = subprocess.run(
        program,
        cwd=_ROOT,
        env=_build_environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(ended.stdout)


def _time_bare() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return (time.perf_counter() - begun) * 1000


def _plan(folder: str, words: list[str]) -> float:
    call = collect_call(words, {}, folder, pack=False)
    settings = load_settings()
    begun = time.perf_counter()
    from slurm_colloc.submission.plan.call_policy import choose_policy
    from slurm_colloc.submission.plan.plan_call import plan_call

    plan_call(call, choose_policy(call, settings), settings, None)
    return (time.perf_counter() - begun) * 1000


if __name__ == "__main__":
    print(_plan(sys.argv[1], sys.argv[2:]))
