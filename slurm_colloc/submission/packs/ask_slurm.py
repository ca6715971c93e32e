"""What Slurm says of a Slurm job that is not submitted: `sbatch --test-only`."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from slurm_colloc.settings import Settings
from slurm_colloc.slurm.output_formats import parse_moment
from slurm_colloc.slurm.run_command import QUERY_TIMEOUT_S
from slurm_colloc.slurm.slurm_access import SlurmAccess
from slurm_colloc.store.all_packs import make_submission_id
from slurm_colloc.submission.packs.batch_script import build_batch_environment
from slurm_colloc.submission.packs.call_batches import Batch
from slurm_colloc.submission.packs.hook_token import HookChoice
from slurm_colloc.submission.packs.sbatch_options import build_options

_START = re.compile(r"\bto start at (\S+)")


def ask_slurm(
    batch: Batch,
    settings: Settings,
    slurm: SlurmAccess,
    directory: str,
    *,
    timeout_s: float = QUERY_TIMEOUT_S,
) -> tuple[tuple[str, ...], str]:
    """What would be noted with a batch that is not submitted, and what Slurm says of it.

    Args:
        batch: The packs of the Slurm job.
        settings: The settings.
        slurm: Slurm.
        directory: The submission directory.
        timeout_s: When to give up.

    Raises:
        SlurmError: Slurm would not take it, or does not answer.
    """
    hooks = HookChoice.of(settings)
    options = build_options(batch, make_submission_id(), "/dev/null", hooks=hooks)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "pack.sh")
        script.write_text("#!/bin/sh\n")
        said = slurm.check(
            str(script),
            options.words,
            environment=build_batch_environment(os.environ),
            directory=directory,
            timeout_s=timeout_s,
        )
    return options.notes, said


def parse_start(said: str) -> float | None:
    """When Slurm expects to start a job, in seconds since the epoch; None where it does not say."""
    match = _START.search(said)
    return None if match is None else parse_moment(match[1])
