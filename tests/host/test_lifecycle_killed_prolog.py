"""A prolog that is killed at any step: nothing is left, and it can be run again."""

from __future__ import annotations

import os

import pytest

from .hook_node import (
    NOBODY,
    HookNode,
    check_clean,
    kill_at,
    list_counts,
    require_strace,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

# Every step that leaves something behind is one of these.
LEAVING = ("mkdir,mkdirat", "rename,renameat,renameat2")
CALLS = (*LEAVING, "fchown", "fallocate", "clone,clone3,fork,vfork", "connect", "wait4")


@pytest.mark.parametrize("call", CALLS)
def test_a_prolog_killed_at_any_step_is_undone_by_the_epilog(bed: HookNode, call: str) -> None:
    require_strace()
    before = bed.snapshot()
    bed.write_policy(exclusive_process=True)
    kills = 0
    for count in list_counts(call):
        killed = kill_at(bed, "prolog", call, count)
        ended = bed.epilog()
        assert ended.status == 0, ended.audit
        assert bed.list_left() == [], (call, count, ended.audit)
        assert bed.snapshot() == before, (call, count)
        if not killed:
            break
        kills += 1
    assert kills >= 1


@pytest.mark.parametrize("call", [*LEAVING, "connect"])
def test_a_prolog_killed_at_any_step_can_be_run_again(bed: HookNode, call: str) -> None:
    require_strace()
    kills = 0
    for count in list_counts(call):
        killed = kill_at(bed, "prolog", call, count)
        ended = bed.prolog()
        assert (ended.status, ended.audit["action"]) == (0, "prepared"), (call, count, ended.audit)
        assert len(bed.list_programs()) <= 2
        assert bed.peer().uid == NOBODY
        bed.epilog()
        check_clean(bed)
        if not killed:
            break
        kills += 1
    assert kills >= 2
