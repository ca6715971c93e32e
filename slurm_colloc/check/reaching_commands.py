"""Commands of a shell script that reach the neighbours or the GPU itself; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from slurm_colloc.check.collisions import ScriptFinding, requeue_finding, shorten
from slurm_colloc.check.shell_programs import arguments_of, base_name, program_at
from slurm_colloc.check.shell_words import (
    JOB_IDS,
    Assignment,
    Command,
    ShellWord,
    find_job_id,
)

_GPU_SETTINGS = re.compile(
    r"^(-c|--compute-mode|-pm|--persistence-mode|-pl|--power-limit|-lgc|--lock-gpu-clocks|-rgc"
    r"|--reset-gpu-clocks|-lmc|--lock-memory-clocks|-rmc|-ac|--applications-clocks|-rac"
    r"|--reset-applications-clocks|-mig|--multi-instance-gpu|-r|--gpu-reset|-e|--ecc-config|-am"
    r"|-caa|-cgi|-dci|-dgi|-cci)(=.*)?$"
)
_LIST_PROCESSES = frozenset({"pgrep", "ps", "pidof", "lsof", "fuser", "nvidia-smi"})


_BASH_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")
"""Commands there are functions in a member's bash; see runtime.launch.bash_protection."""


@dataclass(frozen=True)
class CommandReach:
    """What reaches csub's own scancel and scontrol at a point of a script.

    Attributes:
        is_bash: bash runs it, and has functions for them, whatever PATH is.
        path_set_at: The line where PATH was set anew; None where it was not.
    """

    is_bash: bool = False
    path_set_at: int | None = None

    def after(self, step: Assignment) -> CommandReach:
        """What holds after an assignment."""
        if step.name != "PATH" or any(part.text == "PATH" for part in step.value.holes):
            return self
        return replace(self, path_set_at=step.line)


def check_slurm(command: Command, file: str, reach: CommandReach) -> Iterator[ScriptFinding]:
    """Slurm's commands that act on the own job, and a srun that goes past csub's."""
    at = program_at(command)
    first = command.words[0].literal if command.words else None
    if first and first.startswith("/") and base_name(first) == "srun":
        yield ScriptFinding(
            "srun-by-path",
            file,
            command.line,
            shorten(first),
            "it bypasses csub's srun, which keeps a step within its member's host memory",
            "write srun without its path",
        )
    if at is None:
        return
    text = command.words[at].literal or ""
    words = command.words[at + 1 :]
    if at > 0:
        # Another program starts it: bash's functions are not asked.
        reach = replace(reach, is_bash=False)
    lost = _find_lost(command, text, words, file, reach)
    if base_name(text) == "scontrol":
        if not any(word.literal in ("requeue", "requeuehold") for word in words):
            return
        hold = any(word.literal == "requeuehold" for word in words)
        if lost is None:
            yield from _check_own_job(text, command.line, words, file, "restarts", refused=hold)
        else:
            yield lost
    elif base_name(text) == "scancel":
        if lost is None:
            yield from _check_own_job(text, command.line, words, file, "ends", refused=False)
        else:
            yield lost


def _find_lost(
    command: Command, text: str, words: tuple[ShellWord, ...], file: str, reach: CommandReach
) -> ScriptFinding | None:
    """A command about the own job that goes past csub's; None where it does not."""
    if not any(find_job_id(word.parts) or _names_array(word) for word in words):
        return None
    name = base_name(text)
    what = shorten(f"{text} {' '.join(word.source or word.shown for word in words)}")
    verb = "ends" if name == "scancel" else "restarts"
    if text.startswith("/"):
        if reach.is_bash and text.rpartition("/")[0] in _BASH_FOLDERS:
            return None
        return ScriptFinding(
            "slurm-command-by-path",
            file,
            command.line,
            what,
            f"it bypasses csub's {name}, and {verb} all members of the pack",
            f"write {name} without its path",
        )
    if reach.path_set_at is None or reach.is_bash:
        return None
    return ScriptFinding(
        "slurm-command-lost",
        file,
        command.line,
        what,
        f"PATH is set anew in line {reach.path_set_at}, so Slurm's own {name} is found, "
        f"and {verb} all members of the pack",
        f"keep what PATH has (PATH=...:$PATH), or call {name} from bash, without a program before",
    )


def _check_own_job(
    text: str, line: int, words: tuple[ShellWord, ...], file: str, verb: str, *, refused: bool
) -> Iterator[ScriptFinding]:
    what = f"{text} {' '.join(word.source or word.shown for word in words)}"
    named = [word for word in words if find_job_id(word.parts) or _names_array(word)]
    if not named:
        return
    if refused:
        yield ScriptFinding(
            "slurm-command-refused",
            file,
            line,
            shorten(what),
            "scontrol requeuehold cannot be done for one member, and fails",
            "write scontrol requeue",
        )
    elif all(_is_own_id(word) for word in named):
        yield requeue_finding(file, line, what)
    else:
        yield ScriptFinding(
            "own-job-other-id",
            file,
            line,
            shorten(what),
            f"whether this {verb} the member or every pack of the array depends on the pack",
            "name the job by $SLURM_JOB_ID",
        )


def _names_array(word: ShellWord) -> bool:
    return any(part.text == "SLURM_ARRAY_JOB_ID" for part in word.holes)


def _is_own_id(word: ShellWord) -> bool:
    shown = word.shown.removeprefix("JobId=").removeprefix("jobid=")
    return shown in (
        *(f"${name}" for name in JOB_IDS),
        "$SLURM_COLLOC_MEMBER",
        "$SLURM_COLLOC_NAME",
        "$SLURM_ARRAY_JOB_ID_$SLURM_ARRAY_TASK_ID",
    )


def check_gpu(command: Command, file: str) -> Iterator[ScriptFinding]:
    """Commands that change the GPU, or how it is shared."""
    name, words = arguments_of(command)
    what = " ".join([name, *(word.source or word.shown for word in words)])
    if name == "nvidia-smi":
        literals = [word.literal or "" for word in words]
        if any(_GPU_SETTINGS.match(text) for text in literals) or literals[:1] == ["mig"]:
            yield ScriptFinding(
                "gpu-settings",
                file,
                command.line,
                shorten(what),
                "it changes the GPU for the neighbours too, or is not permitted",
                "leave it out",
            )
    elif name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        yield ScriptFinding(
            "mps-control",
            file,
            command.line,
            shorten(what),
            "the MPS daemon serves all processes on the GPU: neighbours would end with it",
            "leave it out: csub decides how the GPU is shared",
        )


def check_processes(command: Command, file: str) -> Iterator[ScriptFinding]:
    """Processes that are ended by their names."""
    name, words = arguments_of(command)
    literals = [word.literal or "" for word in words]
    reaches = False
    if name in ("pkill", "skill"):
        own = ("-P", "--parent", "-g", "--pgroup", "-s", "--session")
        reaches = not any(text.startswith(own) for text in literals)
    elif name == "killall":
        reaches = "-l" not in literals
    elif name == "fuser":
        reaches = any(re.match(r"^-[a-z]*k|^--kill", text) for text in literals)
    elif name == "kill":
        sources = " ".join(word.source for word in words)
        found_by_name = re.search(r"(\$\(|`)\s*(pgrep|pidof|ps|lsof|nvidia-smi)\b", sources)
        reaches = (literals[-1:] == ["-1"] and len(literals) > 1) or (
            found_by_name is not None and not re.search(r"pgrep\s[^)]*(-P|--parent)\b", sources)
        )
        if command.words[0].literal == "xargs":
            reaches = reaches or _reads_processes(command)
    if reaches:
        what = " ".join(word.source or word.shown for word in command.words)
        yield ScriptFinding(
            "kill-by-name",
            file,
            command.line,
            shorten(what),
            "the neighbours' processes have the same names and the same user, and end too",
            "end only what you started: pid=$! after starting it, later kill $pid",
        )


def _reads_processes(command: Command) -> bool:
    before = command.before
    while before is not None:
        if base_name(before.words[0].literal if before.words else None) in _LIST_PROCESSES:
            return True
        before = before.before
    return False


def check_removal(command: Command, file: str) -> Iterator[ScriptFinding]:
    """Directories of all members that are removed."""
    name, words = arguments_of(command)
    if name != "rm":
        return
    for word in words:
        text = re.sub(r"/+", "/", word.shown)
        above = re.match(r"^\$TMPDIR/(\.\.|\*/\.\.)(/|$)", text)
        whole = re.fullmatch(r"(/tmp|/var/tmp|/dev/shm)(/\**)?", text)
        if above or whole:
            yield ScriptFinding(
                "removes-neighbours",
                file,
                command.line,
                shorten(f"rm {word.shown}"),
                "the neighbours' temporary files lie there too",
                "remove what lies below $TMPDIR, or nothing: csub removes each member's own",
            )
