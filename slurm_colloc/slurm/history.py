"""How long jobs waited in a partition, by Slurm's accounting: one sacct with little patience."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from slurm_colloc.errors import SlurmError, SlurmNoAnswer, SlurmRefused
from slurm_colloc.model.waits import PastJob
from slurm_colloc.slurm.commands import build_client_environment, run_slurm

HISTORY_DAYS = 30
HISTORY_FORMAT = "ReqTRES%200,TimelimitRaw,Eligible,Start,Reason"
HISTORY_WAIT_S = 2.0

_DISABLED = "accounting storage is disabled"
_NUMBER = re.compile(r"[0-9]{1,12}")
"""What int() takes, and what no later sum makes infinite."""
_OWN_LIMIT = ("Assoc", "QOS")
"""How reasons begin that tell of a limit of a user, an account or a QoS, and not of the queue."""
_GPUS = re.compile(r"(?:^|,)gres/gpu(:[^=,]*)?=([0-9]{1,12})(?![0-9])")


def read_history(
    partition: str | None,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = HISTORY_WAIT_S,
) -> tuple[list[PastJob], str]:
    """The jobs of a partition that have started in the last days: everybody's, where one may see.

    Args:
        partition: The partition; None for all.
        environment: Environment of sacct; None for the user's, filtered.
        timeout_s: When to give up.

    Returns:
        The jobs, and why there are none; empty where there may be.
    """
    client = build_client_environment(os.environ) if environment is None else dict(environment)
    chosen = [f"--partition={partition}"] if partition else []
    try:
        output = run_slurm(
            [
                "sacct", "--allusers", "--allocations", "--noheader", "--parsable2",
                f"--starttime=now-{HISTORY_DAYS}days", f"--format={HISTORY_FORMAT}", *chosen,
            ],
            environment={**client, "SLURM_TIME_FORMAT": "%s"},
            timeout_s=timeout_s,
        )  # fmt: skip
    except SlurmRefused as problem:
        if _DISABLED in str(problem):
            return [], "Slurm keeps no accounts here"
        return [], f"sacct failed: {problem}"
    except SlurmNoAnswer:
        return [], f"sacct gave no answer within {timeout_s:g} s"
    except SlurmError as problem:
        return [], problem.message
    return parse_history(output.stdout), ""


def parse_history(text: str) -> list[PastJob]:
    """Read sacct's lines with HISTORY_FORMAT and times in seconds; pure.

    Left out are jobs that asked for no GPU, have not started, were held back by a limit of their
    association or QoS (Slurm counts them as eligible meanwhile), or whose lines have another shape.
    """
    jobs = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5 or fields[4].startswith(_OWN_LIMIT):
            continue
        gpus = count_gpus(fields[0])
        if not gpus or not all(_NUMBER.fullmatch(field) for field in fields[2:4]):
            continue
        wait_s = int(fields[3]) - int(fields[2])
        # A job whose eligible time was set anew, as by a requeue, has not waited a negative time.
        if int(fields[2]) > 0 and wait_s >= 0:
            limit = int(fields[1]) * 60 if _NUMBER.fullmatch(fields[1]) else None
            jobs.append(PastJob(gpus, limit, float(wait_s)))
    return jobs


def count_gpus(tres: str) -> int:
    """The GPUs of a TRES text such as `cpu=4,gres/gpu=2,gres/gpu:h200=2`: that without a type."""
    counts = [(kind, int(number)) for kind, number in _GPUS.findall(tres)]
    whole = [number for kind, number in counts if not kind]
    return whole[0] if whole else sum(number for _, number in counts)
