"""Whether a program saves its work when it is told to end, and goes on from there; by its text.

A chain is of use only then. Scripts are not run, and what they import is not looked for: one sign
is enough, and the user's word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import late_pattern

_SIGNS = (
    (r"(?m)^\s*(?:import|from)\s+(?:pytorch_)?lightning\b", "Lightning saves at a signal"),
    (r"\bresume_from_checkpoint\b|\bSeq2SeqTrainer\b|\bSFTTrainer\b", "a trainer that resumes"),
    (r"(?m)^\s*trap\s.*\b(?:SIG)?(?:TERM|USR1|USR2|HUP|INT|CONT)\b", "a trap of a signal"),
    (r"\bsignal\.signal\(|\badd_signal_handler\(", "a handler of a signal"),
    (r"\bSLURM_COLLOC_CHECKPOINT\b", "SLURM_COLLOC_CHECKPOINT"),
    (r"\bload_checkpoint\(|\bload_state_dict\(|\brestore_checkpoint\(|\bload_state\(",
     "a checkpoint that is loaded"),
)  # fmt: skip
_PROGRAM = late_pattern(r"(?<![^\s'\"$;|&()<>])[^\s'\"$;|&()<>]+\.(?:py|sh)\b|-m\s+[A-Za-z_][\w.]*")
"""It is tried once for each word, see kept_readings."""
_MOST_BYTES = 1_000_000


def find_sign(job: Job, script: bytes) -> str:
    """What shows that a job saves and resumes, in words; empty for nothing."""
    if job.signal is not None:
        return "--signal"
    for text in _list_texts(job, script):
        for pattern, words in _SIGNS:
            if re.search(pattern, text):
                return words
    return ""


def _list_texts(job: Job, script: bytes) -> Iterator[str]:
    """The script, and the programs of the user's that it names."""
    text = script.decode("utf-8", "replace")
    yield text
    for word in _PROGRAM.findall(" ".join((text, *job.arguments))):
        name = word
        if word.startswith("-m"):
            name = word[2:].strip().replace(".", "/") + ".py"
        path = os.path.join(job.directory, name)
        if not os.path.isfile(path):
            # Of a pipe nothing may ever come.
            continue
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                yield file.read(_MOST_BYTES)
        except (OSError, ValueError):
            continue
