"""Whom a daemon that root starts for a job runs as."""

from __future__ import annotations

import contextlib
import os
import pwd

from slurm_colloc.errors import CollocError
from slurm_colloc.host.directories import Owner
from slurm_colloc.host.dropping import run_as

DAEMON_GID = 0x7FFFFF00
"""Group of every daemon that root starts: nobody's. The kernel lets a process be traced, and its
memory and descriptors be reached through /proc, only where group ids match as well (Linux,
__ptrace_may_access), so the user's other processes cannot, with or without Yama. It is beyond the
ranges that distributions and systemd give out (systemd's UIDS-GIDS)."""

_GROUPS_S = 2.0


def find_owner(uid: int, gid: int) -> Owner:
    """Whom the daemon runs as: the user, in a group of its own beside all that the user is in.

    A user's groups can be told only if the directory service answers in time.
    """

    def read_groups() -> str:
        name = pwd.getpwuid(uid).pw_name
        return " ".join(map(str, os.getgrouplist(name, gid)))

    groups = {gid}
    # A directory service may hang, or not know the user: Slurm's numbers do then.
    with contextlib.suppress(CollocError, OSError, ValueError):
        words = run_as(Owner(uid, gid, (gid,)), read_groups, timeout_s=_GROUPS_S)
        groups |= {int(word) for word in words.split()}
    return Owner(uid, DAEMON_GID, tuple(sorted(groups)))
