"""Jobs whose fault has hit their neighbours run alone until they have succeeded alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from slurm_colloc.store.faults import compute_signature, find_culprit, has_culprits
from slurm_colloc.submission.collect import Call, Candidate


def bar_culprits(call: Call, root: Path) -> tuple[Call, tuple[str, ...]]:
    """The call with those of its jobs that may share no GPU through MPS now.

    Args:
        call: The call.
        root: The state directory.

    Returns:
        The call, and a sentence for each job that is to run alone.
    """
    if not has_culprits(root):
        return call, ()
    candidates = tuple(_bar(candidate, root) for candidate in call.candidates)
    sentences = dict.fromkeys(
        f"{after.job.script_name} runs alone: {after.job.alone_because}"
        for before, after in zip(call.candidates, candidates, strict=True)
        if after is not before
    )
    return dataclasses.replace(call, candidates=candidates), tuple(sentences)


def _bar(candidate: Candidate, root: Path) -> Candidate:
    job = candidate.job
    if job.alone_because:
        return candidate
    member = find_culprit(root, compute_signature(candidate.script, job))
    if member is None:
        return candidate
    reason = (
        f"its fault on the GPU ended all clients of MPS when it ran as {member}; "
        "it shares again once it has succeeded alone"
    )
    return dataclasses.replace(candidate, job=dataclasses.replace(job, alone_because=reason))
