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


_PROBLEMS = {
    "cuda-visible-devices": (
        "it replaces the GPU that the pack was given with one that may be another user's, or none",
        "leave it out: Slurm and csub set it",
    ),
    "default-directory": (
        "members that start together choose the same folder for their runs",
        "{advice}",
    ),
    "fixed-temporary-file": (
        "members run on one node, and would write the same file",
        "put it below $TMPDIR: each member has one of its own",
    ),
    "gpu-memory-preallocation": (
        (
            "as it first uses the GPU it takes {takes}, whatever it needs, so that little is left "
            "to its neighbours"
        ),
        "{export} in the script: it then takes what it needs",
    ),
    "gpu-settings": (
        "it changes the GPU for the neighbours too, or is not permitted",
        "leave it out",
    ),
    "job-id-path": (
        "all members of a pack have the same job id, and would share this name",
        "name it after {own}, which is 4711_3 in a pack",
    ),
    "kill-by-name": (
        "the neighbours' processes have the same names and the same user, and end too",
        "end only what you started: pid=$! after starting it, later kill $pid",
    ),
    "mps-control": (
        "the MPS daemon serves all processes on the GPU: neighbours would end with it",
        "leave it out: csub decides how the GPU is shared",
    ),
    "own-job-other-id": (
        "whether this {verb} the member or every pack of the array depends on the pack",
        "name the job by $SLURM_JOB_ID",
    ),
    "removes-neighbours": (
        "the neighbours' temporary files lie there too",
        "remove what lies below $TMPDIR, or nothing: csub removes each member's own",
    ),
    "shared-output": ("all tasks of the array would write this one file", "add {own} to its name"),
    "slurm-command-by-path": (
        "it bypasses csub's {name}, and {verb} all members of the pack",
        "write {name} without its path",
    ),
    "slurm-command-lost": (
        (
            "PATH is set anew in line {set_at}, so Slurm's own {name} is found, and {verb} all "
            "members of the pack"
        ),
        "keep what PATH has (PATH=...:$PATH), or call {name} from bash, without a program before",
    ),
    "slurm-command-refused": (
        "scontrol requeuehold cannot be done for one member, and fails",
        "write scontrol requeue",
    ),
    "srun-by-path": (
        "it bypasses csub's srun, which keeps a step within its member's host memory",
        "write srun without its path",
    ),
    "timestamp-path": (
        "members start in the same second, and would share this name",
        "add {own} to it",
    ),
}
"""Why a kind of finding is one, and what to do."""
_NOTES = {
    "no-gpu-mem": (
        "whether the members' GPU memory fits together is not checked",
        "say it, as in --gpu-mem=10G",
    ),
    "no-time": ("{means} limits each member", "say how long the job takes alone"),
    "not-understood": ("this part was not checked", ""),
    "own-job-command": ("fine: inside a member it acts only on that member", ""),
}


def build_finding(
    kind: str, file: str, line: int, what: str, *, own: str = OWN_NAME, **words: object
) -> ScriptFinding:
    """A finding of a kind that always means the same.

    Args:
        kind: The kind.
        file: The script's file.
        line: Where it is there.
        what: What is there.
        own: What a member's own name is called there.
        words: What else its sentences name.
    """
    is_note = kind in _NOTES
    why, advice = (_NOTES if is_note else _PROBLEMS)[kind]
    return ScriptFinding(
        kind,
        file,
        line,
        shorten(what),
        why.format(own=own, **words),
        advice.format(own=own, **words),
        Severity.NOTE if is_note else Severity.PROBLEM,
    )
