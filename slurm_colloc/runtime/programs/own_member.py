"""Whose shim this is, and whether its member's own job is meant: by its path, not by variables.

A program may have cleared its environment, and a job that a member submits inherits it. What a
shim knows stands in a file in its member's directory (runtime.launch.path_shims).

Imports nothing but os and time, for the sake of the shims that start often.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_DEPTH_MAX = 64
_PATIENCE_S = 5.0
_POLL_S = 0.1


class OwnMember:
    """What a shim knows of its member.

    Args:
        folder: The member's directory, PACK/members/NNNN.
        values: What stands in its file `inside`; runtime.launch.path_shims says what.
    """

    def __init__(self, folder: str, values: Mapping[str, str]) -> None:
        self.folder = folder
        self.pack = folder.rsplit("/", 2)[0]
        self.values = values
        self.job_id = values["job_id"]
        self.name = values["member"]

    @property
    def number(self) -> int:
        """Its number in the pack, which is that of its directory."""
        return int(self.folder.rpartition("/")[2])

    @property
    def ids(self) -> frozenset[str]:
        """The ids by which a script means its own job."""
        return frozenset({self.job_id, self.name, self.values.get("task_id", "")} - {""})


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
    return OwnMember(folder, values) if {"job_id", "member"} <= values.keys() else None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()


def is_inside(member: OwnMember, environment: Mapping[str, str]) -> bool:
    """This process belongs to the member's job, not to one that the member has submitted."""
    shown = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")
    if shown:
        return shown == member.job_id
    job_id = read_control_group_job()
    if job_id is not None:
        return job_id == member.job_id
    launch = find_launch_file()
    return launch is not None and os.path.dirname(launch) == member.folder


def is_other_task(word: str, member: OwnMember) -> bool:
    """A word of a command that names a task, `4711_3` or `4711_[1-3]`, but not the own one."""
    return any(
        one[:1].isdecimal() and "_" in one and one not in member.ids
        for one in word.rpartition("=")[2].split(",")
    )


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
        # See runtime.launch.step_command.build_wrapper_argv.
        if len(words) > 1 and any(word.endswith(b"/wrapper.py") for word in words):
            for word in words:
                if word.endswith(b".launch"):
                    return os.fsdecode(word)
    return None
