"""Which program of a shell command does the work, and what it is given; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm_colloc.check.shell_words import Command, Kind, ShellWord, WordPart
from slurm_colloc.errors import UsageProblem
from slurm_colloc.slurm.options import parse_srun_line

# What starts the command behind its own options.
_STARTERS = frozenset(
    {
        "srun", "env", "nohup", "time", "exec", "command", "nice", "timeout", "stdbuf", "numactl",
        "taskset", "sudo", "setsid", "xargs", "mpirun", "mpiexec", "singularity", "apptainer",
        "ionice", "chrt", "strace", "builtin",
    }
)  # fmt: skip
_WITH_VALUE = {
    "env": ("-u", "-C", "-S"),
    "mpirun": ("-n", "-np", "-ppn", "-host", "-hosts", "--map-by", "--bind-to"),
    "mpiexec": ("-n", "-np", "-ppn", "-host", "-hosts", "--map-by", "--bind-to"),
    "nice": ("-n",),
    "numactl": ("-C", "-N", "-m", "-i", "-p"),
    "singularity": ("-B", "--bind", "--pwd", "--home", "--env"),
    "apptainer": ("-B", "--bind", "--pwd", "--home", "--env"),
    "ionice": ("-c", "-n"),
    "stdbuf": ("-i", "-o", "-e"),
    "sudo": ("-u", "-g"),
    "taskset": ("-c",),
    "timeout": ("-s", "-k"),
    "xargs": ("-n", "-P", "-I", "-L", "-d", "-a", "-s"),
}
"""Options of starters whose value is the next word."""
# Their words are text for people, or a question.
TALKERS = frozenset(
    {
        "echo", "printf", "test", "[", "[[", "true", "false", ":", "return", "exit", "logger",
        "set", "shift", "trap", "kill", "wait", "type", "which", "squeue", "sacct", "sstat", "seff",
        "scontrol", "scancel", "sbatch", "sprio", "sinfo", "csub", "grep", "sed", "awk", "mail",
        "basename", "dirname", "expr", "bc", "date", "module", "ml", "eval", "unset", "local",
    }
)  # fmt: skip


def program_at(command: Command) -> int | None:
    """Where in a command's words the program stands that does the work; None for nowhere."""
    position = 0
    literals = [word.literal for word in command.words]
    while position < len(literals):
        name = base_name(literals[position])
        if name not in _STARTERS:
            return position
        following = _behind_options(literals, position, name)
        if following is None:
            return position
        position = following
    return None


def base_name(text: str | None) -> str:
    """The last part of a path."""
    return (text or "").rpartition("/")[2]


def _behind_options(literals: list[str | None], position: int, name: str) -> int | None:
    """The first word behind a starter's own options."""
    if name == "srun":
        return _behind_srun(literals, position)
    at = position + 1
    while at < len(literals):
        text = literals[at]
        if text is None or (name == "env" and "=" in text):
            at += 1
        elif text == "--":
            return at + 1 if at + 1 < len(literals) else None
        elif text.startswith("-"):
            at += 2 if text in _WITH_VALUE.get(name, ()) else 1
        elif _belongs_to(name, text):
            at += 1
        else:
            return at
    return None


def _behind_srun(literals: list[str | None], position: int) -> int | None:
    try:
        line = parse_srun_line(["?" if text is None else text for text in literals[position + 1 :]])
    except UsageProblem:
        return None
    return len(literals) - len(line.words) if line.words else None


def _belongs_to(name: str, text: str) -> bool:
    """A word that is a starter's own although it is not an option."""
    if name in ("timeout", "taskset"):
        return re.fullmatch(r"[\d.,\-]+[smhd]?", text) is not None
    if name in ("singularity", "apptainer"):
        return text in ("exec", "run") or text.endswith((".sif", ".img"))
    return False


def arguments_of(command: Command) -> tuple[str, tuple[ShellWord, ...]]:
    """The name of the program that does the work, and its arguments."""
    at = program_at(command)
    if at is None:
        return "", ()
    return base_name(command.words[at].literal), command.words[at + 1 :]


def options_of(words: tuple[ShellWord, ...]) -> Iterator[tuple[str, ShellWord]]:
    """Options with their values, in either spelling: `--port=1`, `--port 1`."""
    for position, word in enumerate(words):
        head = word.parts[0] if word.parts else None
        if head is None or head.kind is not Kind.TEXT:
            continue
        option, equals, rest = head.text.partition("=")
        if equals:
            first = (WordPart(Kind.TEXT, rest, head.line),) if rest else ()
            yield option, ShellWord((*first, *word.parts[1:]), word.source, word.line)
        elif option.startswith("-") and position + 1 < len(words):
            yield option, words[position + 1]


def origin_of(word: ShellWord) -> int:
    """The line where a word's text was written."""
    return word.parts[0].line if word.parts else word.line
