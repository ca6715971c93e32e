"""What a command is to act on: selectors, and the filters --state and --name.

Also: the state directory of another user: where it lies, and whether the caller may read it.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.job import Parameters, format_parameters, meets, parse_condition
from slurm_colloc.model.job_ids import is_own_number
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.member import ALL, FINAL_STATES, MemberState, Selection, is_guest
from slurm_colloc.ownership import find_caller, find_owner, find_user, name_user, take_rights_of
from slurm_colloc.settings import Settings, parse_settings, read_settings_file
from slurm_colloc.settings_files import find_files
from slurm_colloc.store.all_packs import State, open_state
from slurm_colloc.store.foreign_files import open_file, read_descriptor

if TYPE_CHECKING:
    import pwd

    from slurm_colloc.report.member_views import MemberView, PackView
    from slurm_colloc.store.all_packs import StateReader


# squeue(1), JOB STATE CODES.
_SHORT = {
    "PD": MemberState.PENDING,
    "R": MemberState.RUNNING,
    "CD": MemberState.COMPLETED,
    "F": MemberState.FAILED,
    "CA": MemberState.CANCELLED,
    "TO": MemberState.TIMEOUT,
    "OOM": MemberState.OUT_OF_MEMORY,
    "PR": MemberState.PREEMPTED,
    "NF": MemberState.NODE_FAIL,
    "RQ": MemberState.REQUEUED,
}


def parse_states(text: str) -> frozenset[MemberState]:
    """Read `RUNNING,PENDING` or `R,PD`, in any case; nothing for an empty text.

    Raises:
        UsageProblem: A word is no state.
    """
    states = set()
    for word in filter(None, (part.strip().upper() for part in text.split(","))):
        try:
            states.add(_SHORT.get(word) or MemberState(word))
        except ValueError:
            raise UsageProblem(
                f"--state: there is no state {word!r}",
                hint=f"states are {', '.join(MemberState)}",
            ) from None
    return frozenset(states)


def _parse_where(text: str) -> tuple[str, str]:
    try:
        return parse_condition(text)
    except ValueError as error:
        raise UsageProblem(f"--where: {text!r} {error}") from None


@dataclass(frozen=True)
class Choice:
    """Members by selectors and filters.

    Attributes:
        selections: What was named; nothing where neither a selector nor a filter was given.
        states: Members must be in one of these; empty for any state.
        name: Pattern of their job names; empty for any name.
        ended: `all` reaches members that have ended, too.
        where: Conditions on their parameters (model.job.meets); empty for any.
    """

    selections: tuple[Selection, ...]
    states: frozenset[MemberState] = frozenset()
    name: str = ""
    ended: bool = False
    where: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(
        cls,
        targets: Sequence[str],
        states: str = "",
        name: str = "",
        where: Sequence[str] | None = None,
        *,
        ended: bool = False,
    ) -> Choice:
        """Read a command's selectors and filters; filters alone mean all.

        Raises:
            UsageProblem: One of them cannot be read.
        """
        selections = tuple(Selection.parse(text) for text in targets)
        found = parse_states(states)
        conditions = tuple(map(_parse_where, where or ()))
        if not selections and (found or name or conditions):
            selections = (Selection(ALL),)
        return cls(selections, found, name, ended, conditions)

    @property
    def wants_ended(self) -> bool:
        """Members that have ended are meant, too, where their states were asked for."""
        return self.ended or bool(self.states & FINAL_STATES)

    @property
    def names_members(self) -> bool:
        """Members were named by their numbers."""
        return any(s.ranges is not None or is_own_number(s.job) for s in self.selections)

    @property
    def is_filtered(self) -> bool:
        """Filters narrow down what was named."""
        return bool(self.states or self.name or self.where)

    def matches(self, state: MemberState, name: str, parameters: Parameters) -> bool:
        """A member passes the filters."""
        return (
            (not self.states or state in self.states)
            and (not self.name or fnmatch.fnmatchcase(name, self.name))
            and (not self.where or meets(parameters, self.where))
        )

    def __str__(self) -> str:
        words = [str(selection) for selection in self.selections]
        words += [f"--state={','.join(sorted(self.states))}"] if self.states else []
        words += [f"--name={self.name}"] if self.name else []
        words += [f"--where {format_parameters((condition,))}" for condition in self.where]
        return " ".join(words)


def is_of_job(member: MemberView, job: str, view: PackView, takers: Sequence[str]) -> bool:
    """Whether a member is of the job that was named, or only in a pack of it or with members of it.

    A job's id may be that of a part of a submission, after whose first its members are named.
    """
    if view.record.pack_id in takers or is_guest(member.place):
        return member.member.job == job
    return True


# ---- The state directory of another user: where it lies, and whether the caller may read it ------

_SETTINGS_BYTES_MOST = 1 << 20
_VARIABLE = late_pattern(r"\$(?:(\w+)|\{(\w+)\})")


def open_state_of(name: str, settings: Settings, cluster: str) -> StateReader:
    """Open the state directory of a user; a note says where there is none.

    Args:
        name: The user's name or uid.
        settings: The caller's settings.
        cluster: Name of the Slurm cluster; empty where it is not known.

    Raises:
        StateError: The caller may not read it, or it is a third user's.
        UsageProblem: There is no such user, or the settings do not say where it lies.
    """
    from slurm_colloc.session.session import note

    user = find_user(name)
    if user.pw_uid == find_caller():
        own = open_state(settings.state_path, cluster)
        if isinstance(own, State):
            return own
    take_rights_of(user.pw_uid)
    root = find_state_path(user)
    try:
        with os.scandir(root):
            pass
    except FileNotFoundError:
        note(
            f"{user.pw_name} has no packs in {root}; where XDG_STATE_HOME or a setting of the "
            f"user's leads elsewhere: XDG_STATE_HOME=DIRECTORY csub ..., without --user"
        )
        return open_state(root, cluster, user.pw_uid)
    except OSError as error:
        raise StateError(
            f"cannot read the state directory of {user.pw_name}, {root}: "
            f"{os.strerror(error.errno or 0)}",
            hint=f"root and {user.pw_name} can",
        ) from error
    owner = find_owner(root)
    if owner is not None and owner != user.pw_uid:
        raise StateError(
            f"the state directory of {user.pw_name}, {root}, belongs to {name_user(owner)}"
        )
    return open_state(root, cluster, user.pw_uid)


def find_state_path(user: pwd.struct_passwd) -> Path:
    """Where a user's state directory lies, by the site's settings and the user's own.

    The user's environment is not known here, so XDG_STATE_HOME is taken for not set.

    Args:
        user: The user.

    Raises:
        UsageProblem: A settings file is wrong, or names a variable of the user's environment.
    """
    home = user.pw_dir
    environ = {name: os.environ[name] for name in ("SLURM_COLLOC_SETTINGS",) if name in os.environ}
    files = find_files({**environ, "HOME": home})
    told = ""
    # A pipe of that name would keep the caller waiting.
    if os.path.isfile(files.site) and os.access(files.site, os.R_OK):  # noqa: PTH113
        told = str(read_settings_file(files.site, is_site=True).get("state_dir", told))
    data = _read_settings_of(user.pw_uid, files.user)
    if data is not None:
        told = str(parse_settings(files.user, data).get("state_dir", told))
    if not told:
        return Path(home, ".local", "state", "slurm_colloc")
    known = {"HOME": home, "USER": user.pw_name, "LOGNAME": user.pw_name}

    def expand(match: re.Match[str]) -> str:
        variable = match[1] or match[2]
        if variable not in known:
            raise UsageProblem(
                f"state_dir = {told!a} names ${variable}, which is not known of {user.pw_name}",
                hint=f"{variable}=VALUE csub ..., without --user",
            )
        return known[variable]

    path = _VARIABLE.sub(expand, told)
    return Path(home + path[1:] if path == "~" or path.startswith("~/") else path)


def _read_settings_of(uid: int, path: str) -> bytes | None:
    """A user's settings; None where that user has none that can be read."""
    try:
        # A link to another's file would show the caller's own in the message of what is wrong.
        descriptor = open_file(path, owner=uid, follows=True)
    except OSError:
        return None
    try:
        return read_descriptor(descriptor, path, _SETTINGS_BYTES_MOST)
    except OSError as error:
        raise UsageProblem(
            f"cannot read the settings {path}: {os.strerror(error.errno or 0)}"
        ) from error
    finally:
        os.close(descriptor)


def choose(
    targets: list[str] | None, state: str, name: str, where: Sequence[str] | None = None
) -> Choice:
    """What a command that needs to be told is to act on.

    Raises:
        UsageProblem: Nothing was named, or it cannot be read.
    """
    choice = Choice.parse(targets or (), state, name, where)
    if not choice.selections:
        raise UsageProblem(
            "name members to act on",
            hint="an id as in csub queue, last, all, --state, --name or --where",
        )
    return choice
