"""Finding and reading the scripts of a call."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import UsageProblem
from slurm_colloc.submission.jobs.directives import check_script

SCRIPT_LIMIT_BYTES = 4 * 1024 * 1024
"""Slurm's default for SchedulerParameters=max_script_size."""

COMMANDS = (
    "submit", "pack", "sweep", "batch", "retry", "probe", "check", "queue", "show", "logs",
    "cancel", "wait", "sandbox", "notebook", "tutorial",
)  # fmt: skip
"""csub's own words; everything else that comes first is a script or an option."""

_WRAP = "#!/bin/sh\n# This script was created by csub --wrap.\n\n{command}\n\n"


@dataclass(frozen=True)
class Script:
    """A script as it was at submission.

    Attributes:
        shown: What the user called it.
        name: Default name of its job.
        content: Its bytes.
        arguments: What it is called with.
        is_wrapped: It was made from --wrap and has no directives.
    """

    shown: str
    name: str
    content: bytes
    arguments: tuple[str, ...]
    is_wrapped: bool = False


def read_call_script(words: Sequence[str], wrap: str | None, directory: str) -> Script:
    """The script of `csub [options] SCRIPT [ARGUMENTS]`, of --wrap, or of standard input.

    Raises:
        UsageProblem: It is missing, cannot be read, or is not a script.
    """
    if wrap is not None:
        if words:
            raise UsageProblem(
                f"--wrap and the script {words[0]!r} exclude each other",
                hint="give one of them",
            )
        content = _WRAP.format(command=wrap).encode("utf-8", "surrogateescape")
        return Script("--wrap", "wrap", content, (), True)
    if not words:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageProblem("no script was given", hint="csub [options] SCRIPT, see csub --help")
        content = sys.stdin.buffer.read(SCRIPT_LIMIT_BYTES + 1)
        return _checked(Script("standard input", "sbatch", content, ()))
    _refuse_other_names(words[0], directory)
    return read_script(words[0], tuple(words[1:]), directory)


_OTHER_NAMES = {
    "status": "csub queue", "ls": "csub queue", "jobs": "csub queue", "squeue": "csub queue",
    "ps": "csub queue", "list": "csub queue", "kill": "csub cancel", "scancel": "csub cancel",
    "rm": "csub cancel", "delete": "csub cancel", "seff": "csub report", "sstat": "csub top",
    "sacct": "csub history", "log": "csub logs", "tail": "csub logs --tail 20",
    "rerun": "csub retry", "resubmit": "csub retry", "info": "csub show",
    "help": "csub --help",
}  # fmt: skip
"""What others call a command of csub's; some are programs in PATH, which no one means to submit."""


def _refuse_other_names(shown: str, directory: str) -> None:
    meant = _OTHER_NAMES.get(shown)
    if meant is not None and not os.path.exists(os.path.join(directory, shown)):
        raise UsageProblem(
            f"csub has no command {shown}", hint=f"{meant} does that; ./{shown} submits a file"
        )


def read_script(shown: str, arguments: tuple[str, ...], directory: str) -> Script:
    """Read a script file.

    Raises:
        UsageProblem: It cannot be read, or is not a script.
    """
    path = find_script(shown, directory)
    try:
        with path.open("rb") as file:
            content = file.read(SCRIPT_LIMIT_BYTES + 1)
    except OSError as error:
        raise UsageProblem(
            f"cannot read the script {shown}: {os.strerror(error.errno or 0)}",
            hint=_advise(shown) if isinstance(error, FileNotFoundError) else "",
        ) from error
    return _checked(Script(shown, path.name, content, arguments))


def _advise(shown: str) -> str:
    """What to do about a script that is not there: it may be a command with a slip in it."""
    import difflib

    if shown == "-":
        return "without a script csub reads standard input"
    if shown.startswith("-"):
        return f"options stand before the scripts: csub pack {shown} a.sh b.sh"
    near = difflib.get_close_matches(shown, COMMANDS, n=1)
    return f"did you mean csub {near[0]}?" if near else "is it in this directory?"


def read_pack_words(words: Sequence[str], directory: str) -> list[Script]:
    """The scripts of `csub pack`: each word a file, or a quoted file with arguments.

    Raises:
        UsageProblem: One cannot be read.
    """
    scripts = []
    for word in words:
        if word and os.path.exists(os.path.join(directory, word)):
            scripts.append(read_script(word, (), directory))
            continue
        try:
            parts = shlex.split(word)
        except ValueError as error:
            raise UsageProblem(f"csub pack: {word!r}: {error}") from error
        if not parts:
            raise UsageProblem("csub pack: an empty word is not a script")
        scripts.append(read_script(parts[0], tuple(parts[1:]), directory))
    return scripts


COMMAND_SCRIPT = Script(
    "--wrap", "wrap", b'#!/bin/sh\n# This script was created by csub.\n\neval "$1"\n', (), True
)
"""Runs the command that is its argument. So jobs that differ in the command alone are one kind."""


def find_script(shown: str, directory: str) -> Path:
    """Where a script lies: as given, or in PATH where it has no slash (as sbatch looks)."""
    direct = Path(directory, shown)
    # Unlike those of pathlib, these two pass over folders in PATH that may not be entered.
    if "/" in shown or os.path.exists(direct):
        return direct
    for folder in os.environ.get("PATH", "").split(":"):
        candidate = Path(folder or directory, shown)
        if os.path.isfile(candidate) and os.access(candidate, os.R_OK):
            return candidate
    return direct


def _checked(script: Script) -> Script:
    if len(script.content) > SCRIPT_LIMIT_BYTES:
        raise UsageProblem(
            f"{script.shown} is larger than {SCRIPT_LIMIT_BYTES // 2**20} MB",
            hint="submit a small script that starts the large program",
        )
    check_script(script.content, name=script.shown)
    return script
