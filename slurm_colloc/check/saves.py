"""Whether a program saves its work when it is told to end, and goes on from there; by its text.

A chain is of use only then. Scripts are not run, and what they import is not looked for: one sign
is enough, and the user's word.
"""

from __future__ import annotations

import itertools
import re

from slurm_colloc.check.kept_readings import list_named, read_program
from slurm_colloc.model.job import Job

_SIGNS = (
    (r"(?m)^\s*(?:import|from)\s+(?:pytorch_)?lightning\b", "Lightning saves at a signal"),
    (r"\bresume_from_checkpoint\b|\bSeq2SeqTrainer\b|\bSFTTrainer\b", "a trainer that resumes"),
    (r"(?m)^\s*trap\s.*\b(?:SIG)?(?:TERM|USR1|USR2|HUP|INT|CONT)\b", "a trap of a signal"),
    (r"\bsignal\.signal\(|\badd_signal_handler\(", "a handler of a signal"),
    (r"\bSLURM_COLLOC_CHECKPOINT\b", "SLURM_COLLOC_CHECKPOINT"),
    (r"\bload_checkpoint\(|\bload_state_dict\(|\brestore_checkpoint\(|\bload_state\(",
     "a checkpoint that is loaded"),
)  # fmt: skip


def find_sign(job: Job, script: bytes) -> str:
    """What shows that a job saves and resumes, in words; empty for nothing."""
    if job.signal is not None:
        return "--signal"
    programs = (read_program(path) or b"" for path in list_named(job, script))
    for content in itertools.chain([script], programs):
        text = content.decode("utf-8", "replace")
        for pattern, words in _SIGNS:
            if re.search(pattern, text):
                return words
    return ""
