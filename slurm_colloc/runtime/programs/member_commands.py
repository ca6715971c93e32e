"""What Slurm's commands become inside a member.

Also: whose shim this is, and whether its member's own job is meant: by its path, not by variables;
how Slurm's questions are asked.

srun starts a task at once, alongside the neighbours, on the member's own CPUs; `scontrol requeue`
and `scancel` of the own job id act on this member, not on the pack; squeue and `scontrol show job`
tell of it. sbatch, salloc and an srun for another job do not see what csub put into the member's
environment. Everything else goes to the real command unchanged.

What is not needed each time is imported where it is needed: most calls are questions.
"""

from __future__ import annotations

import os
import sys
import time

from slurm_colloc.model.job_ids import is_own_number
from slurm_colloc.slurm.real_command import find_real_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn


# ----
# Whose shim this is, and whether its member's own job is meant: by its path, not by variables.
#
# A program may have cleared its environment, and a job that a member submits inherits it. What a
# shim knows stands in a file in its member's directory (runtime.path_shims).
#
# Imports nothing but os and time, for the sake of the shims that start often.

_DEPTH_MAX = 64
_PATIENCE_S = 5.0
_POLL_S = 0.1


class OwnMember:
    """What a shim knows of its member.

    Args:
        folder: The member's directory, PACK/members/NNNN.
        values: What stands in its file `inside`; runtime.path_shims says what.
    """

    def __init__(self, folder: str, values: Mapping[str, str]) -> None:
        self.folder = folder
        self.pack = folder.rsplit("/", 2)[0]
        self.values = values
        self.real_id = values["real_id"]
        self.job_id = values["job_id"]
        self.name = values["member"]

    @property
    def places(self) -> list[str]:
        """Directories of its own by their paths: a /tmp, say; none where it has no namespace."""
        return list(filter(None, self.values.get("places", "").split(":")))

    @property
    def number(self) -> int:
        """Its number in the pack, which is that of its directory."""
        return int(self.folder.rpartition("/")[2])

    @property
    def is_alone(self) -> bool:
        """It has its Slurm job to itself, which goes by another id: Slurm's words are right."""
        return "alone" in self.values

    @property
    def ids(self) -> frozenset[str]:
        """The ids by which a script means its own job; another's may be that of the pack."""
        return frozenset({self.job_id, self.name, self.values.get("task_id", "")} - {""})

    @property
    def task(self) -> tuple[str, str] | None:
        """The user's array in which it is, and its number there; None where it is in none."""
        array, _, index = self.values.get("task_id", "").partition("_")
        return (array, index) if index else None

    def translate(self, text: str) -> str:
        """Ids of jobs and steps as Slurm knows them, where they are the own one's.

        Args:
            text: With commas between them: `4711_3`, `134217728.0`, `134217728+0`.
        """
        return ",".join(map(self._translate_one, text.split(",")))

    def _translate_one(self, word: str) -> str:
        job = word.partition(".")[0].partition("+")[0]
        return self.real_id + word[len(job) :] if job in self.ids else word


def find_member(shim: str, environment: Mapping[str, str]) -> OwnMember | None:
    """The member in which a shim was called.

    Args:
        shim: The path by which it was called; where it names no member (a link that was resolved),
            the environment and then the processes above this one tell.
        environment: The environment.

    Returns:
        None where there is none.

    Raises:
        OSError: The file system does not say now.
    """
    folders = [os.path.dirname(os.path.dirname(os.path.abspath(shim)))]
    if "SLURM_COLLOC_START" in environment:
        folders.append(os.path.dirname(environment["SLURM_COLLOC_START"]))
    for folder in folders:
        if (member := read_member(folder)) is not None:
            return member
    launch = find_launch_file()
    return None if launch is None else read_member(os.path.dirname(launch))


def read_member(folder: str) -> OwnMember | None:
    """A member by its directory; None where it has no shims.

    Raises:
        OSError: It cannot be told. Then it is not known to be none: Slurm's own scancel would end
            the whole pack.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            text = _read(f"{folder}/inside")
            break
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_S)
    pairs = [item.partition("=") for item in text.split("\0")]
    values = {name: value for name, separator, value in pairs if separator}
    return OwnMember(folder, values) if {"job_id", "real_id"} <= values.keys() else None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()


def is_inside(member: OwnMember, environment: Mapping[str, str]) -> bool:
    """This process belongs to the member's job, not to one that the member has submitted."""
    shown = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")
    if shown:
        return shown in (member.job_id, member.real_id)
    job_id = read_control_group_job()
    if job_id is not None:
        return job_id == member.real_id
    launch = find_launch_file()
    return launch is not None and os.path.dirname(launch) == member.folder


def is_other_task(word: str, member: OwnMember) -> bool:
    """A word of a command that names another job of csub's: `4711_3`, a number, the own array.

    The id of the pack's Slurm job, too: it means what the call submitted that printed it.
    """
    array, ids = member.values.get("array_id"), member.ids
    pack = "" if member.is_alone else member.real_id
    return any(
        one[:1].isdecimal()
        and (one == array or (one not in ids and (one == pack or "_" in one or is_own_number(one))))
        for one in word.rpartition("=")[2].split(",")
    )


def names_others(call: Sequence[str], member: OwnMember) -> bool:
    """Whether a question of squeue or `scontrol show job` names other jobs of csub's."""
    from slurm_colloc.slurm.marked_tables import QUEUE_OPTIONS

    name, *words = call
    split = QUEUE_OPTIONS.split(words) if name == "squeue" else None
    if split is not None:
        words = [value or "" for key, value, _ in split[0] if key == "j"] + split[1]
    return any(is_other_task(word, member) for word in words)


def read_control_group_job() -> str | None:
    """The Slurm job in whose control group this process is; None where Slurm made it none."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            parts = file.read().replace("\n", "/").split("/")
    except OSError:
        return None
    for part in parts:
        if part.startswith("job_") and part[4:].isdigit():
            return part[4:]
    return None


def find_launch_file() -> str | None:
    """What the wrapper above this process was started with; None where there is none."""
    pid = os.getppid()
    for _ in range(_DEPTH_MAX):
        if pid <= 1:
            return None
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name, in parentheses, may hold anything.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None
        # See runtime.step_command.build_wrapper_argv.
        if len(words) > 1 and any(word.endswith(b"/wrapper.py") for word in words):
            for word in words:
                if word.endswith(b".launch"):
                    return os.fsdecode(word)
    return None


# ---- What Slurm's commands become inside a member ------------------------------------------------

_SUBMITTING = ("sbatch", "salloc", "srun")
_ACTING = ("scancel", "scontrol", "srun")
"""Those that may do to a whole pack what was meant for one member."""


def main(shim: str, arguments: Sequence[str]) -> int:
    """Act as the command that the shim is called after; the exit status is the command's.

    Never returns where the real command takes over.
    """
    name = os.path.basename(shim)
    environment = read_own_environment()
    real = find_real_command(name, environment.get("PATH"))
    if real is None:
        sys.stderr.write(f"csub: error: {name}: command not found in PATH behind csub's own\n")
        return 2
    try:
        member = find_member(shim, environment)
    except OSError as error:
        if name in _ACTING:
            sys.stderr.write(
                f"csub: error: {name}: it cannot be told which member calls it: {error.filename}: "
                f"{error.strerror}; nothing was done\n"
            )
            return 1
        member = None
    inside = member if member is not None and is_inside(member, environment) else None
    call = [name, *arguments]
    if inside is not None:
        status = _act(inside, real, call, environment)
        if status is not None:
            return status
        from slurm_colloc.runtime.programs.translate_calls import translate_call

        call, environment = translate_call(inside, call, environment)
    if name in _SUBMITTING:
        from slurm_colloc.model.job_values import remove_member_variables

        environment = remove_member_variables(environment)
    return become(real, call, environment)


def become(real: str, call: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Go on as the real command.

    Python ignores SIGPIPE and SIGXFSZ, and what it executes would inherit that.
    """
    import signal

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execve(real, list(call), dict(environment))


def _act(
    member: OwnMember, real: str, call: Sequence[str], environment: dict[str, str]
) -> int | None:
    """Do what the command means for a member; None where Slurm's is meant, about Slurm's ids."""
    name, *arguments = call
    shows_jobs = name == "scontrol" and is_show_job(arguments)
    is_question = name == "squeue" or shows_jobs
    if name == "sacct" or (is_question and names_others(call, member)):
        from slurm_colloc.runtime.programs.member_requests import build_call

        become(*build_call(member, call, environment))
    if is_question:
        from slurm_colloc.runtime.programs import own_rows

        answer = own_rows.answer_show_job if shows_jobs else own_rows.answer_squeue
        status = answer(member, real, arguments, environment)
        if status is not None or name == "scontrol":
            return status
    from slurm_colloc.errors import CollocError

    try:
        return _act_on_jobs(member, real, call, environment)
    except CollocError as error:
        sys.stderr.write(f"csub: error: {error}\n")
        return error.exit_code


def _act_on_jobs(
    member: OwnMember, real: str, call: Sequence[str], environment: dict[str, str]
) -> int | None:
    name, *arguments = call
    if name == "srun":
        from slurm_colloc.runtime.programs.member_step import start_step

        return start_step(member, real, call, environment)
    if name == "sbatch":
        from slurm_colloc.runtime.programs.member_requests import submit_waiting

        return submit_waiting(member, call, environment)
    if not arguments:
        return None
    if name in ("squeue", "sattach", "sstat") or (name == "scontrol" and len(arguments) > 1):
        from slurm_colloc.runtime.programs.own_steps import answer_about_steps

        status = answer_about_steps(member, real, call, environment)
        if status is not None:
            return status
    if name in ("scontrol", "scancel") and not member.is_alone:
        from slurm_colloc.runtime.programs.member_requests import ask_for

        return ask_for(member, call, environment)
    return None


def is_show_job(arguments: Sequence[str]) -> bool:
    """`scontrol [options] show job...`; scontrol takes any beginning of its words."""
    words = [word.lower() for word in arguments if not word.startswith("-")]
    return (
        len(words) > 1
        and len(words[0]) > 1
        and "show".startswith(words[0])
        and words[1].partition("=")[0] in ("job", "jobs", "jobid")
    )


def read_own_environment() -> dict[str, str]:
    """The environment as it was given.

    Where no locale is set Python puts LC_CTYPE into its own (PEP 538); no command is to see that.
    """
    environment = dict(os.environ)
    if "LC_CTYPE" in environment:
        try:
            with open("/proc/self/environ", "rb") as file:
                given = b"\0" + file.read()
        except OSError:
            return environment
        if b"\0LC_CTYPE=" not in given:
            del environment["LC_CTYPE"]
    return environment


# ---- How Slurm's questions are asked -------------------------------------------------------------

# SIGPIPE and SIGXFSZ, here by number: the module signal takes longer to import than all others.
_IGNORED_BY_PYTHON = (13, 25)


def spawn(
    real: str,
    call: Sequence[str],
    environment: Mapping[str, str],
    actions: Sequence[tuple[int, ...]] = (),
) -> int:
    """Start a command; its process id. It gets the signals that Python ignores."""
    return os.posix_spawn(
        real, list(call), dict(environment), file_actions=actions, setsigdef=_IGNORED_BY_PYTHON
    )


def read_output(
    real: str, call: Sequence[str], environment: Mapping[str, str], *, is_silent: bool = False
) -> tuple[int, str]:
    """Run a command; its exit status and what it wrote to standard output.

    Args:
        real: Its path.
        call: Its words.
        environment: Its environment.
        is_silent: What it writes to standard error goes nowhere, not where this process's goes.
    """
    reading, writing = os.pipe()
    # The other end closes by itself when the command is executed.
    actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    if is_silent:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        actions.append((os.POSIX_SPAWN_DUP2, nowhere, 2))
    pid = spawn(real, call, environment, actions)
    if is_silent:
        os.close(nowhere)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="surrogateescape", newline="") as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text


def write_output(text: str) -> bool:
    """Write text to standard output, byte for byte; False where that cannot be done.

    A reader that has gone ends this process by SIGPIPE, as it would end the real command.
    """
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        import signal

        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)  # noqa: TID251 - itself
        return False
    except OSError as error:
        sys.stderr.write(f"csub: error: cannot write to standard output: {error.strerror}\n")
        return False
    return True
