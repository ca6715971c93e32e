"""What would collide when a script shares a GPU: the kinds of findings, and how they are merged."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable

from slurm_colloc.model.late_definitions import dataclass, replace

OWN_NAME = "${SLURM_COLLOC_NAME:-$SLURM_JOB_ID}"
"""What to write where a script has its job id; `4711_3` in a pack, `4711` under sbatch."""

OWN_NAME_IN_PYTHON = 'os.environ.get("SLURM_COLLOC_NAME")'
"""The same in Python; None under sbatch."""


class Severity(enum.StrEnum):
    """How a finding counts.

    What loses work certainly keeps a job alone, until its user accepts that. A problem is only
    said at a submission, and a note only by `csub check`.
    """

    LOSES_WORK = "loses-work"
    PROBLEM = "problem"
    NOTE = "note"

    @property
    def keeps_alone(self) -> bool:
        """A job with such a finding shares with no other."""
        return self is Severity.LOSES_WORK


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
        by_job_id: It collides only where members have the job id of their pack in common.
    """

    kind: str
    file: str
    line: int
    what: str
    why: str
    advice: str = ""
    level: Severity = Severity.PROBLEM
    also: tuple[int, ...] = ()
    by_job_id: bool = False

    @property
    def place(self) -> str:
        """`train.sh:12`."""
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        told = f"{self.what}: {self.why}" + (f": {self.advice}" if self.advice else "")
        return f"{self.place}: {told} ({self.kind})"


def list_names() -> tuple[str, ...]:
    """The names of findings that can be accepted, and `all`."""
    return (*sorted((*_PROBLEMS, "fixed-port", "gpu-memory-fraction")), ALL)


ALL = "all"
"""What stands for the names of all findings."""


def leave_out(
    findings: Iterable[ScriptFinding], accepted: Collection[str], *, own_id: bool
) -> list[ScriptFinding]:
    """The findings without those that a user accepts, or that a number of its own cures.

    Args:
        findings: They.
        accepted: The names of accepted ones, or `all`.
        own_id: The job has a SLURM_JOB_ID that no other job has.
    """
    return [
        finding
        for finding in findings
        if not (own_id and finding.by_job_id)
        and (finding.level is Severity.NOTE or not {finding.kind, ALL} & {*accepted})
    ]


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
    what = shorten(what)
    return ScriptFinding("fixed-port", file, line, what, why, advice, by_job_id=of_job)


_PROBLEMS = {
    "cuda-visible-devices": (
        "it replaces the GPU that the pack was given with one that may be another user's, or none",
        "leave it out: Slurm and csub set it",
    ),
    "default-directory": (
        "members that start together choose the same folder for their runs",
        "{advice}",
    ),
    "ends-daemons": (
        "{whose} end with it",
        "leave it out: csub ends what a job has started",
    ),
    "fixed-temporary-file": (
        "members run on one node, and would write the same file",
        "put it below $TMPDIR: each member has one of its own",
    ),
    "gpu-index": (
        "under MPS CUDA_VISIBLE_DEVICES may hold the UUID of a GPU, which is no number",
        "leave it out: the GPU that the job has is the first that its programs see",
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
    "idle-gpu-guard": (
        "the GPU is in use where it is shared, and then this {does}",
        "leave it out: no other user has this GPU",
    ),
    "job-id-path": (
        "all members of a pack have the same job id, and would share this name",
        "name it after {own}, which is 4711_3 in a pack",
    ),
    "kill-by-name": (
        "as under sbatch on one node, the neighbours' processes of these names and this user end",
        "end only what you started: pid=$! after starting it, later kill $pid",
    ),
    "memory-sized-batch": (
        "what fits in GPU memory depends on the neighbours there, and so would the batch size",
        "write down a batch size, and say with --gpu-mem what the job needs",
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
    "shared-memory-name": (
        "members run on one node, and would open the same memory",
        "add {own} to its name",
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
    "tmp-lock": (
        "members run on one node, and only the first gets the lock; the others do not train",
        "put it below $TMPDIR, or leave it out",
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
    kind: str,
    file: str,
    line: int,
    what: str,
    *,
    own: str = OWN_NAME,
    loses_work: bool = False,
    by_job_id: bool = False,
    **words: object,
) -> ScriptFinding:
    """A finding of a kind that always means the same.

    Args:
        kind: The kind.
        file: The script's file.
        line: Where it is there.
        what: What is there.
        own: What a member's own name is called there.
        loses_work: It is certain that where the GPU is shared work is lost.
        by_job_id: See ScriptFinding.
        words: What else its sentences name.
    """
    is_note = kind in _NOTES
    why, advice = (_NOTES if is_note else _PROBLEMS)[kind]
    level = Severity.LOSES_WORK if loses_work else Severity.PROBLEM
    return ScriptFinding(
        kind,
        file,
        line,
        shorten(what),
        why.format(own=own, **words),
        advice.format(own=own, **words),
        Severity.NOTE if is_note else level,
        by_job_id=by_job_id or kind == "job-id-path",
    )
