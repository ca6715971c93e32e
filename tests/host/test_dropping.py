"""Giving up root: for good, or not at all."""

from __future__ import annotations

import os

import pytest

from slurm_colloc.errors import NodeError
from slurm_colloc.host.system.child_programs import run_as, run_program
from slurm_colloc.host.system.directories import Owner

from .hook_node import NOBODY

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

NO_ID = 2**32 - 1


def test_a_child_has_given_up_root() -> None:
    owner = Owner(NOBODY, NOBODY - 1, (4321,))
    told = run_as(owner, lambda: f"{os.getresuid()} {os.getresgid()} {os.getgroups()}", timeout_s=9)
    assert told == f"{(NOBODY,) * 3} {(NOBODY - 1,) * 3} [4321]"
    ended = run_program(["/usr/bin/id", "-u"], {"PATH": "/usr/bin:/bin"}, timeout_s=9, owner=owner)
    assert ended.stdout == f"{NOBODY}\n"


@pytest.mark.parametrize(("uid", "gid"), [(NO_ID, NOBODY), (NOBODY, NO_ID), (0, NOBODY)])
def test_what_the_kernel_takes_for_no_change_is_refused(uid: int, gid: int) -> None:
    owner = Owner(uid, gid, ())
    with pytest.raises(NodeError, match="cannot become user"):
        run_as(owner, lambda: "as root", timeout_s=9)
    with pytest.raises(OSError, match="cannot enter its control groups as its user"):
        run_program(["/usr/bin/id", "-u"], {"PATH": "/usr/bin:/bin"}, timeout_s=9, owner=owner)
