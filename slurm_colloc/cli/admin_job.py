"""`csub admin job NUMBER`: whose a number is, in which pack, and in which Slurm job.

A number of csub's own says by itself which users can have been given it (store.own_numbers); their
states are looked at first, and each with the rights of its owner.
"""

from __future__ import annotations

import argparse
import os
import pwd
from collections.abc import Iterator

from slurm_colloc.cli.admin_hooks import need_root, say, warn
from slurm_colloc.errors import CollocError, NotFound, UsageProblem
from slurm_colloc.model.job_ids import is_own_number, parse_job_id
from slurm_colloc.model.member import Selection
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.quantities import format_count
from slurm_colloc.ownership import give_rights_back, take_rights_of

_USERS_MOST = 5000
_NAMED_MOST = 5


def show_job(options: argparse.Namespace) -> int:
    """Say whose a number is; the exit status.

    Raises:
        NotFound: It is in no state that was found.
        UsageProblem: It is no id, or the caller is not root.
    """
    need_root("look into the states of all users", hint="your own: csub show NUMBER")
    selection = _parse(options.job)
    from slurm_colloc.session.selection import find_state_path
    from slurm_colloc.session.session import Session, tell_problems
    from slurm_colloc.settings import load_settings
    from slurm_colloc.slurm.choose_access import open_slurm
    from slurm_colloc.store.all_packs import open_state
    from slurm_colloc.submission.plan.target_nodes import find_cluster

    settings = load_settings()
    cluster = find_cluster(settings.state_path)
    looked_at, unread = 0, []
    for user in _list_users(selection.job, cluster):
        try:
            take_rights_of(user.pw_uid)
            root = find_state_path(user)
            if not os.path.isdir(root / "packs"):
                continue
            state = open_state(root, cluster, user.pw_uid)
            session = Session(settings, state, open_slurm(settings, uid=user.pw_uid))
            found = session.survey([selection])
            for view, members in found:
                for member in members:
                    told = (
                        f"{member.member}: member {member.member.address} of user {user.pw_name}, "
                        f"{member.state.value}; Slurm job {view.job_id or 'unknown'}, "
                        f"pack {state.pack_path(view.record.pack_id)}"
                    )
                    # That user has written it.
                    say(escape_controls(told))
            if found:
                give_rights_back()
                tell_problems(session)
                return 0
            looked_at += 1
        except NotFound:
            looked_at += 1
        except (CollocError, OSError):
            unread.append(user.pw_name)
    give_rights_back()
    if unread:
        named = ", ".join([*unread[:_NAMED_MOST], *(["..."] if unread[_NAMED_MOST:] else [])])
        warn(f"the state of {format_count(len(unread), 'user')} cannot be read: {named}")
    raise NotFound(
        f"{options.job} was not found in the states of {format_count(looked_at, 'user')}",
        hint="states outside the usual place: csub show --user NAME, or XDG_STATE_HOME",
    )


def _parse(text: str) -> Selection:
    try:
        named = parse_job_id(text)
    except ValueError as error:
        raise UsageProblem(str(error)) from error
    if named is None or not named[0].isdecimal():
        raise UsageProblem(f"{text!r} is no number of a job", hint="csub admin job 4711")
    return Selection(*named)


def _list_users(job: str, cluster: str) -> Iterator[pwd.struct_passwd]:
    """All users with an account, those first who can have been given a number."""
    from slurm_colloc.store.own_numbers import WINDOW, compute_base

    users = pwd.getpwall()
    if not is_own_number(job):
        return iter(users[:_USERS_MOST])

    def is_elsewhere(user: pwd.struct_passwd) -> bool:
        return not 0 <= int(job) - compute_base(cluster, user.pw_uid) < WINDOW

    return iter(sorted(users, key=is_elsewhere)[:_USERS_MOST])
