"""An epilog that is killed at any step: the next one goes on."""

from __future__ import annotations

import os

import pytest

from .hook_node import (
    HookNode,
    kill_at,
    list_counts,
    require_strace,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]


@pytest.mark.parametrize("call", ["unlink,unlinkat", "rmdir", "write", "umount2", "wait4"])
def test_an_epilog_killed_at_any_step_is_finished_by_the_next(bed: HookNode, call: str) -> None:
    require_strace()
    before = bed.snapshot()
    bed.write_policy(exclusive_process=True)
    kills = 0
    for count in list_counts(call):
        bed.prolog()
        killed = kill_at(bed, "epilog", call, count)
        assert bed.epilog().status == 0
        assert bed.list_left() == [], (call, count)
        assert bed.snapshot() == before, (call, count)
        if not killed:
            break
        kills += 1
    assert kills >= 1
