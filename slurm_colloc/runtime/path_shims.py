"""Slurm's commands as a member sees them first on its PATH, and what they know of it.

Also: what keeps a member's shims in reach of bash, whatever becomes of PATH; notices members whose
programs do not find csub's own commands any more.

    PACK/bin/NAME               three lines that hand over to runtime.programs.shim
    PACK/members/NNNN/bin       a link to PACK/bin: a shim knows from its own path whose it is
    PACK/members/NNNN/inside    what it has to know, NAME=VALUE, each ended by a NUL
    PACK/members/NNNN/bash_env  read by each bash inside the member, see bash_protection

A program may clear or change its environment; none of this depends on it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_colloc.host.system.node_processes import find_ancestor, read_small
from slurm_colloc.model.job import Job
from slurm_colloc.model.job_values import iterate_set, speaks_of_a_member
from slurm_colloc.model.plan import MemberPlan
from slurm_colloc.runtime import programs
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.member_environment import MemberContext
from slurm_colloc.runtime.members import Member
from slurm_colloc.slurm.real_command import REAL_MARK, SHIM_MARK
from slurm_colloc.slurm.scontrol_records import describe_command
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    make_directory,
    write_all,
    write_atomic,
)

SHIMMED = (
    "srun", "scontrol", "scancel", "squeue", "sbatch", "salloc", "sacct", "sstat", "sattach",
    "sbcast",
)  # fmt: skip

_PROGRAM = os.path.join(os.path.dirname(programs.__file__), "shim.py")


def write_shims(pack: Path, python: str) -> None:
    """Write the shims of a pack.

    Raises:
        StateError: They cannot be written.
    """
    directory = pack / "bin"
    make_directory(directory)
    program = f"{shlex.quote(python)} -IBS {shlex.quote(_PROGRAM)}"
    text = f'#!/bin/sh\n{SHIM_MARK.decode()}exec {program} "$0" "$@"\n'
    for name in SHIMMED:
        write_atomic(directory / name, text.encode(), 0o700)


def bind_shims(
    pack: Path, shims: str, python: str, commands: Sequence[tuple[str, list[str]]]
) -> dict[str, object]:
    """What is bound over Slurm's commands where a member has a mount namespace.

    Args:
        pack: The pack's directory.
        shims: That of the member's shims.
        python: The interpreter.
        commands: Slurm's commands and their programs.

    Raises:
        OSError: The files over which the real ones are bound cannot be made.
    """
    real = pack / "real"
    real.mkdir(mode=0o700, exist_ok=True)
    for name, _ in commands:
        (real / name).touch(mode=0o600)
    program = f"{shlex.quote(python)} -IBS {shlex.quote(_PROGRAM)}"
    text = (
        f"#!/bin/sh\n{SHIM_MARK.decode()}{REAL_MARK.decode()}{real}\n"
        f'exec {program} {shlex.quote(shims)}/"${{0##*/}}" "$@"\n'
    )
    return {"commands": commands, "real": str(real), "command": text}


def find_shims(folder: Path) -> str:
    """The directory of a member's shims.

    Args:
        folder: The member's directory.
    """
    return str(folder / "bin")


def build_inside(
    place: MemberContext,
    job: Job,
    plan: MemberPlan,
    *,
    real_id: str,
    submit_directory: str,
    outputs: tuple[str | None, str | None],
) -> dict[str, str]:
    """What a member's shims know of it.

    Args:
        place: Where it runs.
        job: The job.
        plan: Its place in the plan.
        real_id: The id that Slurm has given the pack's job, or element of an array.
        submit_directory: Where csub was called.
        outputs: Its files for output and error; the latter None where it is the same.
    """
    inside = {
        "real_id": real_id,
        "job_id": place.job_id,
        "member": place.member,
        "prefix": place.run,
        "cpus": ",".join(str(cpu) for cpu in place.cpus),
        "cpu_count": str(plan.cpus),
        "name": job.name,
        "command": describe_command(job.script_name, job.arguments, submit_directory),
        "directory": os.path.normpath(job.directory),
        "started_at": str(place.started_at),
    }
    if not place.shared:
        inside["alone"] = "yes"
    if plan.host_memory_mb is not None:
        inside["host_memory_mb"] = str(plan.host_memory_mb)
    if plan.wall_limit_s is not None:
        inside["wall_limit_s"] = str(plan.wall_limit_s)
    output, error = outputs
    if output is not None:
        inside["output"] = os.path.join(job.directory, output)
        inside["error"] = os.path.join(job.directory, error or output)
    if job.array_task is not None:
        inside["task_id"] = f"{place.array_id}_{job.array_task.task_id}"
        inside["array_id"] = place.array_id
    return inside


def tell_later_start(folder: Path, at: int) -> None:
    """Have a member's shims say that its time began at another moment.

    Args:
        folder: The member's directory.
        at: In seconds since the epoch.

    Raises:
        StateError: The file cannot be read or written.
    """
    path = folder / "inside"
    with explain_os_errors("read", path):
        lines = path.read_bytes().split(b"\0")
    began = b"started_at="
    changed = [b"%s%d" % (began, at) if line.startswith(began) else line for line in lines]
    write_atomic(path, b"\0".join(changed))


def give_shims(folder: Path, inside: Mapping[str, str], bash_env: str) -> None:
    """Lay out what a member's shims and its bash read.

    Args:
        folder: The member's directory.
        inside: What the shims know of it.
        bash_env: The text of its BASH_ENV.

    Raises:
        OSError: The link cannot be made.
        StateError: The files cannot be written.
    """
    with contextlib.suppress(FileExistsError):
        os.symlink("../../bin", find_shims(folder))
    block = "".join(f"{name}={value}\0" for name, value in inside.items())
    write_all(
        {
            folder / "inside": block.encode("utf-8", "surrogateescape"),
            folder / "bash_env": bash_env.encode("utf-8", "surrogateescape"),
        }
    )


# ---- What keeps a member's shims in reach of bash, whatever becomes of PATH; pure ----------------
#
# A login shell sets PATH anew (`#!/bin/bash -l` with Debian's /etc/profile), and so does
# `module load` or the script itself. bash reads BASH_ENV after the login files and in every script
# (bash(1), INVOCATION): there PATH is put back, and commands that are called by their path become
# functions. Where the site's profile sets BASH_ENV itself, exported functions are left.
#
# srun becomes one by its paths alone, where Slurm's own would not know the member's id. By its
# name it stays a program, and `srun ... & kill $!` ends srun itself; by a path `$!` is a shell that
# hands on the usual signals.
#
# A job that `/usr/bin/sbatch` submits inherits all of it, and takes it back: it has another id.

_AS_FUNCTIONS = tuple(name for name in SHIMMED if name not in ("srun", "salloc"))
_BY_PATH = (*_AS_FUNCTIONS, "srun")
_SRUN_BY_PATH = """\
    csub_srun() {
        if [ "$BASHPID" = $$ ]; then SHIM "$@"; return; fi
        SHIM "$@" <&0 &
        local step=$! status name
        for name in TERM INT HUP USR1 USR2; do trap "kill -$name $step" $name; done
        while wait $step; status=$?; kill -0 $step 2>/dev/null; do :; done
        trap - TERM INT HUP USR1 USR2
        return $status
    }"""
_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")


def build_bash_variables(
    environment: Mapping[str, str], shims: str, bash_env: str
) -> dict[str, str]:
    """BASH_ENV, and functions in the form in which bash exports them.

    In the member's own job they never become Slurm's commands: that its shims cannot be seen is
    then a fault of the file system, and Slurm's scancel would end the whole pack.

    Args:
        environment: The member's; functions that the user has exported stay.
        shims: The directory of its shims.
        bash_env: The file that bash is to read.
    """
    variables = {"BASH_ENV": bash_env}
    job_id = environment.get("SLURM_JOB_ID")
    is_own = f'[ "${{SLURM_JOB_ID-}}" = {shlex.quote(job_id)} ] || ' if job_id else ""
    for name in _AS_FUNCTIONS:
        shim = shlex.quote(f"{shims}/{name}")
        body = f'if {is_own}[ -x {shim} ]; then {shim} "$@"; else command {name} "$@"; fi'
        if (variable := f"BASH_FUNC_{name}%%") not in environment:
            variables[variable] = f"() {{  {body}\n}}"
    return variables


def render_bash_env(
    environment: Mapping[str, str], job_id: str, shims: str, real: Sequence[str]
) -> str:
    """The text of a member's BASH_ENV.

    Args:
        environment: The member's, complete.
        job_id: Its SLURM_JOB_ID.
        shims: The directory of its shims.
        real: Paths of the real commands, as far as they are known.
    """
    paths = {*real, *(f"{folder}/{name}" for folder in _FOLDERS for name in _BY_PATH)}
    by_path = [_SRUN_BY_PATH.replace("SHIM", shlex.quote(f"{shims}/srun"))]
    for path in sorted(paths):
        name = path.rpartition("/")[2]
        if name in _BY_PATH and shlex.quote(path) == path:
            call = "csub_srun" if name == "srun" else shlex.quote(f"{shims}/{name}")
            by_path.append(f'    function {path} {{ {call} "$@"; }}')
    folders = sorted({path.rpartition("/")[0] for path in paths})
    behind = "|".join(f"*:{shlex.quote(folder)}:*" for folder in folders)
    is_own = (
        f'[ "${{SLURM_JOB_ID-}}" = {shlex.quote(job_id)} ]'
        ' || { [ -z "${SLURM_JOB_ID-}" ] && [ -d "$csub_shims" ]; }'
    )
    lines = [
        f"# Written by csub for member {environment['SLURM_COLLOC_MEMBER']}: each bash inside it",
        "# reads this. A job that it submits inherits the variable and takes everything back.",
        f"csub_shims={shlex.quote(shims)}",
        # In the own job a look that fails is one of the file system.
        f"if {is_own}; then",
        # Where no real command comes before them the order is left to the script, which may count
        # on what it has put first.
        f'    case ":$PATH:" in *":$csub_shims:"*) case ":${{PATH%%"$csub_shims"*}}" in {behind})',
        '        PATH=$csub_shims:${PATH//"$csub_shims:"/};; esac;;',
        "    *) PATH=$csub_shims:$PATH;; esac",
        *by_path,
        "else",
        '    PATH=${PATH//"$csub_shims:"/}',
        *_render_taking_back(environment),
        "fi",
        "unset csub_shims",
        *_render_users_own(environment),
    ]
    return "\n".join(lines) + "\n"


def _render_taking_back(environment: Mapping[str, str]) -> list[str]:
    lines = []
    for name, value, before in iterate_set(environment):
        function = name.removeprefix("BASH_FUNC_").removesuffix("%%")
        if function != name:
            lines.append(f"    unset -f {function}")
        elif before is None:
            lines.append(f'    [ "${{{name}-}}" != {shlex.quote(value)} ] || unset {name}')
        else:
            restore = f"{name}={shlex.quote(before)}"
            lines.append(f'    [ "${{{name}-}}" != {shlex.quote(value)} ] || {restore}')
    own = sorted(name for name in environment if speaks_of_a_member(name))
    return [*lines, f"    unset {' '.join(own)}"]


def _render_users_own(environment: Mapping[str, str]) -> list[str]:
    """The BASH_ENV that bash would have read; it expands the value (bash(1), BASH_ENV)."""
    before = {name: before for name, _, before in iterate_set(environment)}.get("BASH_ENV")
    if not before:
        return []
    assignment = f'csub_bash_env="{before}"'
    return [
        f"eval {shlex.quote(assignment)}",
        'if [ -r "$csub_bash_env" ]; then . "$csub_bash_env"; fi',
        "unset csub_bash_env",
    ]


# ---- Notices members whose programs do not find csub's own commands any more ---------------------
#
# A shell other than bash, or a program, may set PATH anew; Slurm's own commands then do not know
# `$SLURM_JOB_ID`, or take it for the whole pack. Nothing can be done about it there, so the pack's
# log says it while it runs.

LOOKS_S = (5.0, 60.0)
"""How long after it was first seen running a member is looked at."""

_ENVIRONMENT_MOST = 1 << 18


class PathWatch:
    """Looks at the programs of running members, twice for each start.

    Args:
        journal: The pack's log.
        looks_s: When.
    """

    def __init__(self, journal: Journal, looks_s: tuple[float, ...] = LOOKS_S) -> None:
        self._journal = journal
        self._looks_s = looks_s
        self._due: dict[str, list[float]] = {}
        self._told: dict[str, set[str]] = {}

    def look(self, members: Iterable[Member]) -> None:
        """Look at the members whose time it is; say what was found, once for each program."""
        now = time.monotonic()
        due: dict[int, Member] = {}
        for member in members:
            if member.pid is None or (member.places is not None and not member.record.no_places):
                # Slurm's commands are bound over there.
                continue
            moments = self._due.setdefault(
                member.prefix, [now + after_s for after_s in self._looks_s]
            )
            if moments and now >= moments[0]:
                del moments[0]
                if os.path.lexists(find_shims(Path(member.prefix).parent)):
                    due[member.pid] = member
        if due:
            self._look_at(due)

    def _look_at(self, due: dict[int, Member]) -> None:
        lost: dict[str, set[str]] = {}
        for entry in os.listdir("/proc"):
            member = find_ancestor(int(entry), due) if entry.isdigit() else None
            if member is None:
                continue
            if has_lost_path(int(entry), find_shims(Path(member.prefix).parent)):
                with contextlib.suppress(OSError):
                    name = os.fsdecode(read_small(f"/proc/{entry}/comm")).rstrip("\n")
                    lost.setdefault(member.prefix, set()).add(name)
        for member in due.values():
            told = self._told.setdefault(member.prefix, set())
            names = lost.get(member.prefix, set()) - told
            told |= names
            if names:
                self._journal.write(
                    "path_lost",
                    member=member.number,
                    programs=sorted(names),
                    effect="their srun, scancel and scontrol are Slurm's, which knows the pack's "
                    "job and not the member's",
                )


def has_lost_path(pid: int, shims: str) -> bool:
    """The PATH with which a process was started leads to another scancel than the member's own."""
    try:
        block = read_small(f"/proc/{pid}/environ", _ENVIRONMENT_MOST)
    except OSError:
        return False
    for pair in block.split(b"\0"):
        if pair.startswith(b"PATH="):
            folders = os.fsdecode(pair[5:]).split(":")
            first = next((one for one in folders if os.access(f"{one}/scancel", os.X_OK)), shims)
            return first != shims
    return False
