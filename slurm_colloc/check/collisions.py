"""What would collide when a script shares a GPU: the kinds of findings, and how they are merged."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

from slurm_colloc.model.late_definitions import dataclass, replace

OWN_NAME = "${SLURM_COLLOC_NAME:-$SLURM_JOB_ID}"
"""What to write where a script has its job id; `4711_3` in a pack, `4711` under sbatch."""

OWN_NAME_IN_PYTHON = 'os.environ.get("SLURM_COLLOC_NAME")'
"""The same in Python; None under sbatch."""


class Severity(enum.StrEnum):
    """How a finding counts."""

    PROBLEM = "problem"
    NOTE = "note"


@dataclass(frozen=True)
class ScriptFinding:
    """One thing that would collide, or is good to know.

    Attributes:
        kind: A short name, for programs.
        file: The file, as the user calls it.
        line: Its line; 0 for the request as a whole.
        what: What stands there.
        why: What would happen, one sentence without a full stop.
        advice: What to do; empty for nothing.
        level: How it counts.
        also: Further lines where the same stands.
    """

    kind: str
    file: str
    line: int
    what: str
    why: str
    advice: str = ""
    level: Severity = Severity.PROBLEM
    also: tuple[int, ...] = ()

    @property
    def place(self) -> str:
        """`train.sh:12`."""
        return f"{self.file}:{self.line}" if self.line else self.file


_OF_A_NAME = ("job-id-path", "timestamp-path")


def merge_findings(findings: Iterable[ScriptFinding]) -> list[ScriptFinding]:
    """Each thing once, with all its lines; in the order of files and lines."""
    merged: dict[tuple[str, str, str], ScriptFinding] = {}
    files: dict[str, int] = {}
    told: set[tuple[str, str, int]] = set()
    for finding in findings:
        files.setdefault(finding.file, len(files))
        place = (finding.file, finding.kind, finding.line)
        if finding.kind in _OF_A_NAME and place in told:
            # The name was made there; what is put behind it is no news.
            continue
        told.add(place)
        key = (finding.file, finding.kind, finding.what)
        known = merged.get(key)
        if known is None:
            merged[key] = finding
            continue
        lines = sorted({known.line, finding.line, *known.also, *finding.also})
        merged[key] = replace(known, line=lines[0], also=tuple(lines[1:]))
    return sorted(merged.values(), key=lambda f: (files[f.file], f.line, f.kind))


_LONGEST = 60


def shorten(text: str) -> str:
    """One line of a source text that is not too long for a table."""
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def port_finding(file: str, line: int, what: str, *, of_job: bool) -> ScriptFinding:
    """A port that all members would open."""
    why = (
        "a port computed from the job id is the same in all members of a pack"
        if of_job
        else "all members would open this port, and only the first one gets it"
    )
    sets_it = "MASTER_PORT" in what.partition("=")[0]
    do = "leave it out" if sets_it else "take MASTER_PORT from the environment"
    advice = f"{do}: csub gives each member a free port in it"
    return ScriptFinding("fixed-port", file, line, shorten(what), why, advice)


def job_id_finding(file: str, line: int, what: str, own: str = OWN_NAME) -> ScriptFinding:
    """A name with the job id in it."""
    return ScriptFinding(
        "job-id-path",
        file,
        line,
        shorten(what),
        "all members of a pack have the same job id, and would share this name",
        f"name it after {own}, which is 4711_3 in a pack",
    )


def clock_finding(file: str, line: int, what: str, own: str = OWN_NAME) -> ScriptFinding:
    """A name with the time of day in it."""
    return ScriptFinding(
        "timestamp-path",
        file,
        line,
        shorten(what),
        "members start in the same second, and would share this name",
        f"add {own} to it",
    )


def device_finding(file: str, line: int, what: str) -> ScriptFinding:
    """CUDA_VISIBLE_DEVICES is set by hand."""
    return ScriptFinding(
        "cuda-visible-devices",
        file,
        line,
        shorten(what),
        "it replaces the GPU that the pack was given with one that may be another user's, or none",
        "leave it out: Slurm and csub set it",
    )


def temporary_finding(file: str, line: int, what: str) -> ScriptFinding:
    """A fixed name in a folder that the whole node shares."""
    return ScriptFinding(
        "fixed-temporary-file",
        file,
        line,
        shorten(what),
        "members run on one node, and would write the same file",
        "put it below $TMPDIR: each member has one of its own",
    )


def directory_finding(file: str, line: int, what: str, advice: str) -> ScriptFinding:
    """A library's own numbering or time stamp of runs."""
    return ScriptFinding(
        "default-directory",
        file,
        line,
        shorten(what),
        "members that start together choose the same folder for their runs",
        advice,
    )


def requeue_finding(file: str, line: int, what: str) -> ScriptFinding:
    """`scontrol requeue` or `scancel` of the own job, as csub's commands understand it."""
    return ScriptFinding(
        "own-job-command",
        file,
        line,
        shorten(what),
        "fine: inside a member it acts only on that member",
        level=Severity.NOTE,
    )
