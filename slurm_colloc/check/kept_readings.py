"""What was found in scripts, kept in the state by their content, so that each is read once.

Where nothing has changed neither a parser nor a rule is loaded: a submission takes no longer for
being checked. What is kept is small, and of no meaning for anything else: damaged, or of other
rules, it is not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_colloc.check.collisions import ScriptFinding, Severity
from slurm_colloc.model.job import Job
from slurm_colloc.model.late_definitions import dataclass, hash_sha256, late_pattern
from slurm_colloc.store.atomic_files import TooSlow, limited_cpu, read_bytes
from slurm_colloc.store.kept_answers import keep, read_kept

LARGEST_BYTES = 1024 * 1024
"""Programs are smaller; what is larger is not read."""
READ_S = 1.0
"""CPU time that reading the scripts of one call may take."""
_KEPT_MOST = 40
_FINDINGS_MOST = 30
_PLACE = "checked"
_ENVIRONMENT = ("JAX_", "TF_", "XLA_")
"""How the variables begin that rules ask for."""

_WORDS = late_pattern(
    r"(?i)(?<![a-z])port\b|tcp://|http\.?server|slurm_|/tmp|/shm|tmpdir|visible_devices|nvidia|nvml"
    r"|gpustat|kill|fuser|scancel|scontrol|(?<!b)lock|\btime\(|time_ns|\bctime|strftime|isoformat"
    r"|now\(|today\(|asctime|localtime|:%|memory_fraction|mem_fraction|memory_utili|mem_get_info"
    r"|batch_size\(|find_executable|auto_(find|scale)|//?=|\bjax|flax|tensorflow|lightning|hydra"
    r"|sharedmemory|\.bind\(|server\(|init_method|\bray\b"
)
"""Without any of these words in a script and its programs no rule finds a problem in them."""
_WORDS_OF_SHELL = late_pattern(r"\bdate\b|rdzv|lsof|/srun|\bbreak\b|/ *2\b|-port")
_WRITES = late_pattern(r">|open\(|\.save|save_|dump|to_\w+\(|savefig|write_")
"""What tasks of an array may write to one file with."""
_PROGRAMS = late_pattern(r"(?<![^\s'\"`;|&()<>=])[^\s'\"`;|&()<>=]+\.(?:py|sh)\b|(?<=-m )\s*[\w.]+")
"""Tried once for each word: in one of a megabyte, as base64 makes it, it is not tried anew."""


@dataclass(frozen=True)
class Reading:
    """What was found in a script and its programs.

    Attributes:
        key: What it is called with, and its content.
        files: The programs, each with what its content was by its hash; empty where it could not
            be read.
        findings: The problems.
        unread: Why it was not read to its end; empty where it was.
    """

    key: str
    files: tuple[tuple[str, str], ...] = ()
    findings: tuple[ScriptFinding, ...] = ()
    unread: str = ""


@dataclass(frozen=True)
class _Kept:
    readings: tuple[Reading, ...]


class KeptReadings:
    """Reads the scripts of one call.

    Args:
        root: The state directory.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._rules = root, _name_rules()
        kept = read_kept(root, _PLACE, self._rules, _Kept, float("inf"))
        self._has_new = False
        self._readings = {} if kept is None else {one.key: one for one in kept.readings}

    def read(self, job: Job, script: bytes, environment: Mapping[str, str]) -> Reading:
        """What would collide in a script; as it was found before, where nothing has changed."""
        key = _name_reading(job, script, environment)
        known = self._readings.get(key)
        if known is None or any(_name_content(path) != content for path, content in known.files):
            known = _read(key, job, script, environment)
            self._readings.pop(key, None)
            self._readings[key] = known
            self._has_new = True
        return known

    def keep(self) -> None:
        """Write down what is new, and leave out what is oldest."""
        if not self._has_new:
            return
        keep(self._root, _PLACE, self._rules, _Kept(tuple(self._readings.values())[-_KEPT_MOST:]))


def _name_rules() -> str:
    """The rules by their files, so that other ones read each script anew."""
    with os.scandir(os.path.dirname(__file__)) as entries:
        stats = ((entry.name, entry.stat()) for entry in entries if entry.name.endswith(".py"))
        told = sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
    return hash_sha256(repr(told).encode())


def _name_reading(job: Job, script: bytes, environment: Mapping[str, str]) -> str:
    about = sorted((n, v) for n, v in environment.items() if n.startswith(_ENVIRONMENT))
    is_array = job.array_task is not None
    told = (job.script_name, job.arguments, job.directory, is_array, about)
    return hash_sha256(repr(told).encode("utf-8", "surrogateescape") + script)


def _name_content(path: str) -> str:
    try:
        return hash_sha256(read_bytes(path, LARGEST_BYTES))
    except OSError:
        return ""


def _read(key: str, job: Job, script: bytes, environment: Mapping[str, str]) -> Reading:
    if len(script) > LARGEST_BYTES:
        return Reading(key, unread="it is larger than 1 MiB, and was not checked")
    named = [path for path in list_named(job, script) if path.endswith(".py")]
    texts = [script, *map(read_program, named)]
    is_array = job.array_task is not None
    if None not in texts and not any(may_collide(text or b"", is_array=is_array) for text in texts):
        return Reading(key, tuple((path, _name_content(path)) for path in named))
    from slurm_colloc.check.check_script import check_script_text

    try:
        with limited_cpu(READ_S):
            findings, read = check_script_text(job, script, environment)
    except TooSlow:
        why = f"reading it takes longer than {READ_S:g} s, so it was not checked"
        return Reading(key, unread=why)
    paths = (os.path.join(job.directory, name) for name in read if name != job.script_name)
    problems = [finding for finding in findings if finding.level is not Severity.NOTE]
    unread = [f.why for f in findings if f.kind == "not-read" and f.file == job.script_name]
    return Reading(
        key,
        tuple((path, _name_content(path)) for path in paths),
        tuple(problems[:_FINDINGS_MOST]),
        next(iter(unread), ""),
    )


def may_collide(text: bytes, *, is_array: bool) -> bool:
    """Whether a rule could find a problem in a text, by the words that it has."""
    words = text.decode("utf-8", "replace")
    patterns = [_WORDS, *([_WRITES] if is_array else ())]
    patterns += [_WORDS_OF_SHELL] if "sh" in words.split("\n", 1)[0] else []
    return any(pattern.search(words) for pattern in patterns)


def list_named(job: Job, script: bytes) -> Iterator[str]:
    """The files that a script seems to start, in whatever way."""
    text = " ".join((script.decode("utf-8", "replace"), *job.arguments))
    for word in dict.fromkeys(_PROGRAMS.findall(text)):
        is_file = word.endswith((".py", ".sh"))
        name = word if is_file else f"{word.strip().replace('.', '/')}.py"
        path = os.path.join(job.directory, name)
        if is_file or os.path.exists(path):
            yield path


def read_program(path: str) -> bytes | None:
    """A program; None where it cannot be read, and only the grammar tells which it is."""
    try:
        return read_bytes(path, LARGEST_BYTES)
    except (OSError, ValueError):
        return None
