"""What the node's hooks cost a job that is none of ours, next to /bin/true and an empty script."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measuring import Figures, Section, Series, format_ratio, interleave, run_timed
from slurm_colloc.resources import data_path

RUNS = 200
OVER_TRUE_TARGET_MS = 5
# What slurmd gives a hook (prep_script_slurmd.c), shortened.
_SLURMD = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_GID": "1000",
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_GPUS": "0",
    "SLURMD_NODENAME": "node1",
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
}
_COMMENTS = {
    "no comment": None,
    "a pack without the token": "sweep 3 [csub-pack=20260101-000000-0a0b0c0d]",
    "1024 bytes that look like tokens": ("[csub/1 mig=" * 90)[:1023] + "]",
}


def measure_hooks() -> Section:
    """Wall time of the whole process, as slurmd starts it."""
    sh, true = (shutil.which(name, path="/usr/bin:/bin") for name in ("sh", "true"))
    assert sh is not None
    assert true is not None
    prolog, epilog = (str(data_path("hooks", f"{name}.sh")) for name in ("prolog", "epilog"))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        empty = home / "empty.sh"
        empty.write_text(f"#!{sh}\nexit 0\n")
        empty.chmod(0o755)

        def make(program: str, comment: str | None = None) -> Callable[[], float]:
            environment = dict(_SLURMD) | ({"SLURM_JOB_COMMENT": comment} if comment else {})
            return lambda: run_timed([program], environment=environment, directory=home)[0]

        actions = {"/bin/true": make(true), "a script with `exit 0`": make(str(empty))}
        for name, comment in _COMMENTS.items():
            actions[f"prolog.sh, {name}"] = make(prolog, comment)
        actions["epilog.sh, no checkpoint"] = make(epilog)
        measured = interleave(actions, RUNS, warm_ups=5)
    figures = Figures()
    floor = measured["/bin/true"]
    for name, series in measured.items():
        figures.add(
            name,
            series,
            "ms",
            ratio="" if series is floor else format_ratio(series, floor, "true"),
        )
    for name in list(measured)[1:]:
        over = Series(
            tuple(a - b for a, b in zip(measured[name].values, floor.values, strict=True))
        )
        target = OVER_TRUE_TARGET_MS if "log.sh" in name else None
        figures.add(f"{name}: over /bin/true", over, "ms", target=target)
    shell = Path(sh).resolve().name
    return figures.build_section(
        "Hooks of the node, for a job that is not ours",
        [f"`/bin/sh` is {shell}. The difference is taken within each round."],
    )
