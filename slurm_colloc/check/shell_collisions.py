"""Finds in a shell script what would collide when it shares a GPU; pure.

Also: which program of a shell command does the work, and what it is given; commands of a shell
script that reach the neighbours or the GPU itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from slurm_colloc.check.collisions import (
    ScriptFinding,
    build_finding,
    port_finding,
)
from slurm_colloc.check.python_strings import check_memory_variable
from slurm_colloc.check.shell_reading import (
    JOB_IDS,
    TCP_ADDRESS,
    Assignment,
    Command,
    Kind,
    ShellScript,
    ShellWord,
    classify_port,
    find_clock,
    find_job_id,
    find_variable,
    tells_members_apart,
)
from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import dataclass, late_pattern, replace
from slurm_colloc.slurm.options import parse_srun_line

# ---- Which program of a shell command does the work, and what it is given; pure ------------------

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
        if given := word.divide():
            yield given
        elif word.head.startswith("-") and position + 1 < len(words):
            yield word.head, words[position + 1]


def origin_of(word: ShellWord) -> int:
    """The line where a word's text was written."""
    return word.parts[0].line if word.parts else word.line


# ---- Commands of a shell script that reach the neighbours or the GPU itself; pure ----------------

_GPU_SETTINGS = late_pattern(
    r"^(-c|--compute-mode|-pm|--persistence-mode|-pl|--power-limit|-lgc|--lock-gpu-clocks|-rgc"
    r"|--reset-gpu-clocks|-lmc|--lock-memory-clocks|-rmc|-ac|--applications-clocks|-rac"
    r"|--reset-applications-clocks|-mig|--multi-instance-gpu|-r|--gpu-reset|-e|--ecc-config|-am"
    r"|-caa|-cgi|-dci|-dgi|-cci)(=.*)?$"
)
DEVICES = frozenset({"CUDA_VISIBLE_DEVICES"})
_LIST_PROCESSES = frozenset({"pgrep", "ps", "pidof", "lsof", "fuser", "nvidia-smi"})


_BASH_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")
"""Commands there are functions in a member's bash; see runtime.path_shims."""


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
        yield build_finding("srun-by-path", file, command.line, first)
    if at is None:
        return
    text = command.words[at].literal or ""
    words = command.words[at + 1 :]
    if at > 0:
        # Another program starts it: bash's functions are not asked.
        reach = replace(reach, is_bash=False)
    name = base_name(text)
    literals = [word.literal for word in words]
    is_hold = name == "scontrol" and "requeuehold" in literals
    if name == "scancel" or is_hold or (name == "scontrol" and "requeue" in literals):
        yield from _check_own_job(command.line, text, words, file, reach, refused=is_hold)


def _check_own_job(
    line: int,
    text: str,
    words: tuple[ShellWord, ...],
    file: str,
    reach: CommandReach,
    *,
    refused: bool,
) -> Iterator[ScriptFinding]:
    """A command about the own job, which may go past csub's."""
    named = [word for word in words if find_job_id(word.parts) or _names_array(word)]
    if not named:
        return
    folder, _, name = text.rpartition("/")
    what = f"{text} {' '.join(word.source or word.shown for word in words)}"
    verb = "ends" if name == "scancel" else "restarts"
    if text.startswith("/") and not (reach.is_bash and folder in _BASH_FOLDERS):
        yield build_finding("slurm-command-by-path", file, line, what, name=name, verb=verb)
    elif not (text.startswith("/") or reach.is_bash) and (set_at := reach.path_set_at) is not None:
        yield build_finding(
            "slurm-command-lost", file, line, what, name=name, verb=verb, set_at=set_at
        )
    elif refused:
        yield build_finding("slurm-command-refused", file, line, what)
    elif all(_is_own_id(word) for word in named):
        yield build_finding("own-job-command", file, line, what)
    else:
        yield build_finding("own-job-other-id", file, line, what, verb=verb)


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
            yield build_finding("gpu-settings", file, command.line, what)
    elif name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
        said = [command.document.text or ""] if command.document else []
        before = command.before.words if command.before else ()
        said += [word.literal or "" for word in (*words, *before)]
        starts_or_ends = any(re.search(r"^-[df]+$|\bquit\b", text) for text in said)
        yield build_finding("mps-control", file, command.line, what, loses_work=starts_or_ends)
    elif name == "ray" and words and words[0].literal == "stop":
        whose = "all Ray processes of this user on the node"
        yield build_finding("ends-daemons", file, command.line, what, whose=whose)


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
        if "nvidia-cuda-mps" in what:
            yield build_finding(
                "ends-daemons", file, command.line, what, loses_work=True,
                whose="the MPS daemon and all programs on the GPU",
            )  # fmt: skip
        else:
            yield build_finding("kill-by-name", file, command.line, what)


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
    is_whole_tree = any(re.match(r"-[a-zA-Z]*[rR]|--rec", word.literal or "") for word in words)
    for word in words:
        text = re.sub(r"/+", "/", word.shown)
        above = re.match(r"^\$TMPDIR/(\.\.|\*/\.\.)(/|$)", text)
        whole = re.fullmatch(r"(/tmp|/var/tmp|/dev/shm)(/\**)?", text)
        if above or whole or (is_whole_tree and is_fixed_temporary(word)):
            yield build_finding("removes-neighbours", file, command.line, f"rm {word.shown}")


# ---- Finds in a shell script what would collide when it shares a GPU; pure -----------------------

_WRITERS = frozenset(
    {"mkdir", "cp", "mv", "touch", "tee", "ln", "rsync", "install", "mkfifo", "pushd", "cd", "rm"}
)
_NAMING_OPTION = late_pattern(
    r"(?i)(dir|path|out|log|name|ckpt|checkpoint|save|file|prefix|deffnm|session|run[-_]?id|^o$)"
)
_NOT_A_NAME = late_pattern(
    r"(?i)rdzv|job[-_]?id|seed|job[-_]?name|dependency|format|in(put)?[-_]?|data"
)
_WRITING_OPTION = late_pattern(
    r"(?i)(out|log|save|ckpt|checkpoint|cache|tmp|temp|work|sock|lock|pid|dump|result|store|^o$)"
)
_READING_OPTION = late_pattern(r"(?i)(data|input|resume|load|config|from)")
_FILE_SUFFIX = late_pattern(
    r"\0[\w.-]*\.(pt|pth|ckpt|txt|log|csv|json|jsonl|out|err|h5|hdf5|npz|npy|pkl|db|sqlite|tar|gz"
    r"|zip|ya?ml|xtc|trr|nc)$"
)
_SHARED_FOLDER = late_pattern(r"^(/tmp|/var/tmp|/dev/shm)(/+|$)")
_IN_SHARED_FOLDER = late_pattern(r"(^|=)(/tmp|/var/tmp|/dev/shm)")
_OUTPUT_OPERATORS = frozenset({">", ">>", ">|", "&>", "&>>"})


def check_exported_name(step: Assignment, file: str) -> Iterator[ScriptFinding]:
    """A variable that programs are given, and that names a file or directory."""
    if (
        step.name not in JOB_IDS
        and not _NOT_A_NAME.search(step.name)
        and ("/" in step.value.pattern or _NAMING_OPTION.search(step.name))
    ):
        yield from _check_name(step.value, file)


def check_names(command: Command, file: str) -> Iterator[ScriptFinding]:
    """What a command writes, by its redirections and its arguments."""
    for redirect in command.redirects:
        if redirect.operator in _OUTPUT_OPERATORS:
            yield from _check_name(redirect.target, file)
            yield from _check_temporary(redirect.target, file)
    name, words = arguments_of(command)
    if not words or name in TALKERS:
        return
    for position, word in enumerate(words):
        if word.literal is not None and not _IN_SHARED_FOLDER.search(word.literal):
            continue
        option, value = _named(words, position)
        if value is None:
            continue
        if _is_path(name, option, value):
            yield from _check_name(value, file)
        if _is_written(name, option, position, words):
            yield from _check_temporary(value, file)


def _named(words: tuple[ShellWord, ...], position: int) -> tuple[str, ShellWord | None]:
    """The option that a word is the value of ('' for none), and the value."""
    word = words[position]
    given = word.divide()
    if given and re.fullmatch(r"-{0,2}[\w.+-]+", given[0]):
        return given[0].lstrip("-+"), given[1]
    if word.head.startswith("-"):
        return "", None
    before = words[position - 1].literal if position else None
    if before and before.startswith("-") and "=" not in before and not before.isdigit():
        return before.lstrip("-"), word
    return "", word


def _is_path(name: str, option: str, value: ShellWord) -> bool:
    if _NOT_A_NAME.search(option) and not re.search("dir|path|file", option):
        return False
    pattern = value.pattern
    if "://" in pattern:
        return False
    if "/" in pattern or name in _WRITERS:
        return True
    return bool((option and _NAMING_OPTION.search(option)) or _FILE_SUFFIX.search(pattern))


def _is_written(name: str, option: str, position: int, words: tuple[ShellWord, ...]) -> bool:
    if name in ("cp", "mv", "rsync", "ln", "install"):
        return position == len(words) - 1
    if name in _WRITERS:
        return name not in ("cd", "pushd", "rm")
    if name == "mktemp":
        return False
    return bool(_WRITING_OPTION.search(option) and not _READING_OPTION.search(option))


def _check_name(word: ShellWord, file: str) -> Iterator[ScriptFinding]:
    if tells_members_apart(word.parts):
        return
    job_id = find_job_id(word.parts)
    clock = find_clock(word.parts)
    if job_id is not None:
        yield build_finding("job-id-path", file, job_id.line, word.shown)
    elif clock is not None:
        yield build_finding("timestamp-path", file, clock.line, word.shown)


def _check_temporary(word: ShellWord, file: str) -> Iterator[ScriptFinding]:
    if is_fixed_temporary(word):
        yield build_finding("fixed-temporary-file", file, origin_of(word), word.shown)


def is_fixed_temporary(word: ShellWord) -> bool:
    """A path below /tmp that nothing in it tells apart."""
    match = _SHARED_FOLDER.match(word.pattern)
    if match is None or tells_members_apart(word.parts):
        return False
    rest = word.pattern[match.end() :].strip("/.")
    if not rest or rest == "*" or find_job_id(word.parts) or find_clock(word.parts):
        return False
    return all(part.kind in (Kind.TEXT, Kind.VARIABLE) for part in word.parts)


_PORT_OPTION = late_pattern(r"(?i)-{1,2}(?:[a-z]+[-_])*port")
_ENDPOINT_OPTION = late_pattern(r"--rdzv[-_]endpoint")
_ADDRESS = late_pattern(r"^[\w.\-\0\[\]]*:(\d+)$")
# Values that keep a program off the GPU, which is harmless.
_NO_GPU = ("", "-1", "NoDevFiles")


def find_shell_collisions(
    script: ShellScript, file: str, reach: CommandReach | None = None
) -> list[ScriptFinding]:
    """What in a script would collide.

    Args:
        script: The script.
        file: What the user calls it.
        reach: What reaches csub's own commands where it begins; None for PATH alone.
    """
    found: list[ScriptFinding] = []
    reach = reach or CommandReach()
    for step in script.steps:
        if isinstance(step, Assignment):
            found += _check_assignment(step, file)
            reach = reach.after(step)
        else:
            found += check_slurm(step, file, reach)
            for check in _COMMAND_CHECKS:
                found += check(step, file)
    return found


def _check_assignment(step: Assignment, file: str) -> Iterator[ScriptFinding]:
    what = f"{step.name}={step.value.source or step.value.shown}"
    if any(
        part.kind is Kind.SUM and find_variable(part.inner, DEVICES) for part in step.value.parts
    ):
        yield build_finding("gpu-index", file, step.line, what)
    if step.name in ("MASTER_PORT", "PET_MASTER_PORT"):
        port = classify_port(step.value.parts)
        if port:
            yield port_finding(file, origin_of(step.value), what, of_job=port == "job id")
    elif step.name == "CUDA_VISIBLE_DEVICES":
        text = step.value.literal
        own = any(part.text == step.name for part in step.value.holes)
        if not own and text not in _NO_GPU:
            yield build_finding("cuda-visible-devices", file, step.line, what)
    elif step.is_exported:
        yield from check_exported_name(step, file)
    yield from check_memory_variable(file, step.line, what, step.name, step.value.parts)


def _check_ports(command: Command, file: str) -> Iterator[ScriptFinding]:
    name, words = arguments_of(command)
    if name in TALKERS or not words or _is_client(words):
        return
    has_port = False
    for option, value in options_of(words):
        if _PORT_OPTION.fullmatch(option):
            has_port = True
            port = classify_port(value.parts)
            if port:
                what = f"{option}={value.shown}"
                yield port_finding(file, origin_of(value), what, of_job=port == "job id")
        elif _ENDPOINT_OPTION.fullmatch(option):
            has_port = True
            match = _ADDRESS.match(value.pattern)
            if match and int(match[1]):
                yield port_finding(file, origin_of(value), f"{option}={value.shown}", of_job=False)
        elif TCP_ADDRESS.match(value.pattern):
            yield port_finding(file, origin_of(value), f"{option}={value.shown}", of_job=False)
    literals = [word.literal for word in words]
    if literals[:2] == ["-m", "http.server"]:
        given = literals[2] if len(literals) > 2 else "8000"
        if given and given.isdigit() and int(given):
            yield port_finding(file, command.line, f"http.server {given}", of_job=False)
    starts_ray = name == "ray" and words[0].literal == "start"
    if starts_ray and not has_port and any(word.literal == "--head" for word in words):
        yield port_finding(file, command.line, "ray start --head (port 6379)", of_job=False)


def _check_index(command: Command, file: str) -> Iterator[ScriptFinding]:
    """`seq 0 $((CUDA_VISIBLE_DEVICES))`."""
    for word in command.words:
        if any(part.kind is Kind.SUM and find_variable(part.inner, DEVICES) for part in word.parts):
            yield build_finding("gpu-index", file, command.line, word.source)


def _is_client(words: tuple[ShellWord, ...]) -> bool:
    """The command talks to a server elsewhere."""
    for option, value in options_of(words):
        if option in ("--host", "-h", "--hostname", "--server", "--address"):
            text = value.literal
            if text is None or text not in ("", "localhost", "127.0.0.1", "0.0.0.0", "::"):
                return True
    return False


_COMMAND_CHECKS: tuple[Callable[[Command, str], Iterator[ScriptFinding]], ...] = (
    _check_ports,
    check_names,
    check_gpu,
    check_processes,
    check_removal,
    _check_index,
)
