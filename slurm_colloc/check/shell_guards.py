"""Finds in a shell script what makes a job give way to its neighbours; pure.

Guards that end a script where the GPU is in use, batch sizes that depend on free GPU memory, and
locks below /tmp: each is right where a job is alone, and loses its work where it shares. It counts
as certain only where the script surely ends, or passes its training over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.check.collisions import ScriptFinding, build_finding
from slurm_colloc.check.shell_branches import Branch, Joint
from slurm_colloc.check.shell_collisions import (
    arguments_of,
    base_name,
    is_fixed_temporary,
    options_of,
)
from slurm_colloc.check.shell_reading import (
    Assignment,
    Command,
    Kind,
    ShellScript,
    ShellWord,
    WordPart,
    walk_parts,
)
from slurm_colloc.model.late_definitions import late_pattern

_IN_USE = late_pattern(
    r"nvidia-smi\b[^|;]*--query-compute-apps|nvidia-smi\s+pmon\b|\bgpustat\b"
    r"|\b(fuser|lsof)\b[^|;]*/dev/nvidia"
    r"|nvidia-smi\b[^|;]*--query-gpu=[^|;\s]*(memory\.used|utilization\.)"
    r"|nvidia-smi\s*(2>\S+\s*|\|&?\s*)+e?grep\b[^|]*(python|No running)"
)
FREE_MEMORY = late_pattern(r"nvidia-smi\b[^|;]*--query-gpu=[^|;\s]*memory\.free|\bmem_get_info\b")
BATCH = late_pattern(r"(?i)batch|^-*(m|train_?)?bs(z|ize)?$|^-*b$|gpu[-_]mem")
_TRAINS = late_pattern(
    r"^(python|pypy)[\d.]*$|^(torchrun|accelerate|deepspeed|horovodrun|srun|mpirun|mpiexec)$|\.py$"
)
_EMPTY_OR_NOT = late_pattern(r"^\[\[?\s+(!\s+)?-([nz])\s")
_COMPARED = late_pattern(
    r"\s(-gt|-ge|-ne|-lt|-le|-eq|!=|==?|>=?|<=?)\s+[\"']?(\d*)[\"']?\s*(\]\]?|\)\))$"
)
_FILTERED = late_pattern(r"\|&?\s*e?grep\s+(?P<words>[^|]*)$")
_IS_THERE = late_pattern(r"^(?:\[\[?|test)\s+-[efd]\s+[\"']?(?P<path>[^\s\"']+)")
_OF_A_USER = frozenset({"USER", "LOGNAME", "UID", "HOSTNAME", "SLURM_JOB_USER", "SLURM_JOB_UID"})
"""Variables that are equal in all members on a node; of others that is not certain."""
_NAMES_LOCK = late_pattern(r"(?i)lock|\.pid\b|running")


def find_shell_guards(script: ShellScript, file: str) -> tuple[list[ScriptFinding], set[str]]:
    """What in a script gives way to neighbours; and the locks for which it does, by name."""
    locks = {
        redirect.descriptor: redirect.target
        for step in script.steps
        if isinstance(step, Command)
        for redirect in step.redirects
        if redirect.descriptor.isdigit()
    }
    found: list[ScriptFinding] = []
    taken: list[tuple[ShellWord, int, str]] = []
    for branch in script.branches:
        found += _check_guard(branch, file)
        found += _check_tries(branch, script.branches, file)
        taken += _list_locks(branch, locks)
    for step in script.steps:
        if isinstance(step, Command) and step.words:
            found += _check_sized(step, file)
            taken += _list_locked_commands(step)
    for lock, line, what in taken:
        if is_fixed_temporary(lock) and {part.text for part in lock.holes} <= _OF_A_USER:
            found.append(build_finding("tmp-lock", file, line, what, loses_work=True))
    return found, {lock.shown for lock, _, _ in taken}


def _trains(steps: Sequence[Command | Assignment]) -> bool:
    commands = [step for step in steps if isinstance(step, Command)]
    # srun and its like start what trains, or are that.
    names = [base_name(word.literal) for step in commands for word in step.words[:1]]
    return any(map(_TRAINS.search, names + [arguments_of(step)[0] for step in commands]))


def _gives_way(branch: Branch, *, busy_if_true: bool) -> str:
    """What a branch surely does where the GPU is in use; empty where that is not certain."""
    is_done = branch.joint.follows_success == busy_if_true
    if branch.is_in_loop or branch.joint in (Joint.FOR, Joint.WHILE, Joint.UNTIL):
        return ""
    if is_done:
        return "ends the script" if branch.ends == "exit" else ""
    passes_over = _trains(branch.steps) and not branch.has_other
    return "passes the training over" if passes_over and branch.joint is not Joint.ELSE else ""


def _check_guard(branch: Branch, file: str) -> Iterator[ScriptFinding]:
    is_free = FREE_MEMORY.search(branch.test) is not None
    if not is_free and not _IN_USE.search(branch.test):
        return
    sizes = any(isinstance(s, Assignment) and BATCH.search(s.name) for s in branch.steps)
    if sizes and (is_free or "memory.used" in branch.test):
        yield _find_sized(branch.test, branch.line, file)
        return
    busy = find_busy(branch.test)
    does = "" if busy is None else _gives_way(branch, busy_if_true=busy)
    waits = branch.joint in (Joint.WHILE, Joint.UNTIL) and busy == branch.joint.follows_success
    if does or waits or branch.ends == "exit":
        yield build_finding(
            "idle-gpu-guard", file, branch.line, branch.test, loses_work=bool(does),
            does=does or ("waits" if waits else "may end the script"),
        )  # fmt: skip


def find_busy(test: str) -> bool | None:
    """Whether a test succeeds where the GPU is in use; None where that is not known."""
    text = test.strip()
    if re.search(r"&&|\|\||\s-[ao]\s", text):
        return None
    if text.startswith("!"):
        inner = find_busy(text[1:])
        return None if inner is None else not inner
    given = _EMPTY_OR_NOT.match(text)
    if given:
        return (given[2] == "n") != bool(given[1])
    compared = _COMPARED.search(text)
    if compared:
        sign, is_zero = compared[1], compared[2] in ("", "0")
        is_more = sign in ("-gt", "-ge", ">", ">=") or (sign in ("-ne", "!=") and is_zero)
        is_less = sign in ("-lt", "-le", "<", "<=") or (sign in ("-eq", "=", "==") and is_zero)
        return None if not (is_more or is_less) else is_more != bool(FREE_MEMORY.search(text))
    filtered = _FILTERED.search(text)
    if filtered:
        words = filtered["words"]
        if re.search(r"(^|\s)-[a-zA-Z]*[vcL]", words):
            return None
        return "No running" not in words
    return True if re.match(r"(fuser|lsof)\b", text) else None


# ---- Batch sizes by what is free -----------------------------------------------------------------


def _find_sized(what: str, line: int, file: str) -> ScriptFinding:
    return build_finding("memory-sized-batch", file, line, what, loses_work=True)


def _check_tries(branch: Branch, branches: Sequence[Branch], file: str) -> Iterator[ScriptFinding]:
    """`for b in 64 32 16; do train --batch $b && break; done`, or one that halves."""
    if branch.joint is Joint.FOR:
        name, *values = branch.test.split()
        sizes = [int(value) for value in values if value.isdigit()]
        is_falling = sizes == sorted(sizes, reverse=True) and len({*sizes}) > 1
        if not is_falling or len(sizes) < len(values):
            return
        inner = (b for b in branches if b.ends == "break" and b.joint.follows_success)
        asks = [ask for b in inner if {*b.asks} <= {*branch.steps} for ask in b.asks]
    elif branch.joint in (Joint.WHILE, Joint.UNTIL):
        halved = (
            step.name
            for step in branch.steps
            if isinstance(step, Assignment)
            and re.search(rf"\b{step.name}\b.*/ *2", step.value.source)
        )
        name, asks = next(halved, ""), list(branch.asks)
        if (branch.joint is Joint.WHILE) != branch.test.startswith("!"):
            return
    else:
        return
    for ask in asks:
        if isinstance(ask, Command) and name and _takes_size(ask, name):
            yield _find_sized(" ".join(word.source for word in ask.words), ask.line, file)


def _takes_size(command: Command, name: str) -> bool:
    """A command is given a variable as its batch size."""
    words = arguments_of(command)[1]
    given = [(option, value) for option, value in options_of(words) if f"${name}" in value.source
             or f"${{{name}}}" in value.source]  # fmt: skip
    return any(BATCH.search(option) or BATCH.search(name) for option, _ in given)


def _check_sized(command: Command, file: str) -> Iterator[ScriptFinding]:
    """`--batch-size $((FREE / 500))`."""
    for option, value in options_of(arguments_of(command)[1]):
        if BATCH.search(option) and any(
            FREE_MEMORY.search(p.text) for p in walk_parts(value.parts)
        ):
            yield _find_sized(f"{option} {value.source}", command.line, file)


# ---- Locks below /tmp ----------------------------------------------------------------------------


def _list_locks(
    branch: Branch, locks: Mapping[str, ShellWord]
) -> Iterator[tuple[ShellWord, int, str]]:
    """The lock without which a branch ends the script or passes the training over."""
    asked = branch.asks[0] if branch.asks else None
    place = _IS_THERE.match(branch.test)
    is_free = not branch.test.startswith("!")
    lock = None
    if place and _NAMES_LOCK.search(place["path"]):
        lock, is_free = _read_path(place["path"], branch.line), False
    elif isinstance(asked, Command) and asked.words:
        lock = _find_lock(asked, locks)
    if lock is not None and _gives_way(branch, busy_if_true=not is_free):
        yield lock, branch.line, branch.test


def _read_path(text: str, line: int) -> ShellWord:
    pieces = re.split(r"\$\{?(\w+|\$|\(.*)\}?", text)
    kinds = (Kind.TEXT, Kind.VARIABLE)
    parts = (WordPart(kinds[at % 2], piece, line) for at, piece in enumerate(pieces) if piece)
    return ShellWord(tuple(parts), text, line)


def _find_lock(command: Command, locks: Mapping[str, ShellWord]) -> ShellWord | None:
    """What a command locks at once or not at all: `flock -n 9`, `mkdir /tmp/lock`."""
    name, words = arguments_of(command)
    plain = [word for word in words if not (word.literal or "").startswith("-")]
    options = [word.literal or "" for word in words if word not in plain]
    if name == "flock" and any(re.match(r"-[a-z]*[nw]|--(n|w|t)", option) for option in options):
        # The seconds of `-w 5` are a word of their own.
        plain = plain[any(option in ("-w", "--wait", "--timeout") for option in options) :]
        return locks.get(plain[0].literal or "", plain[0]) if plain else None
    is_whole = name == "mkdir" and not any(re.match(r"-[a-z]*p|--parents", o) for o in options)
    return plain[0] if is_whole and plain else None


def _list_locked_commands(command: Command) -> Iterator[tuple[ShellWord, int, str]]:
    """`flock -n /tmp/lock python train.py`."""
    name, words = arguments_of(command)
    lock = _find_lock(command, {}) if name == "flock" else None
    if lock is not None and any(_TRAINS.search(base_name(word.literal)) for word in words):
        yield lock, command.line, " ".join(word.source for word in command.words)
