"""The state directory of another user: where it lies, and whether the caller may read it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.ownership import find_caller, find_owner, find_user, name_user, take_rights_of
from slurm_colloc.settings import Settings, parse_settings, read_settings_file
from slurm_colloc.settings_files import find_files
from slurm_colloc.store.all_packs import State, open_state
from slurm_colloc.store.foreign_files import open_file, read_descriptor

if TYPE_CHECKING:
    import pwd

    from slurm_colloc.store.pack_reading import StateReader

_SETTINGS_BYTES_MOST = 1 << 20
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


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
    from slurm_colloc.cli.session import note

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
