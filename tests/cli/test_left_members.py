"""A dependency on a submission whose members may run in Slurm jobs of others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job_values import parse_dependency
from slurm_colloc.model.member import MemberId
from slurm_colloc.session.depend_on_members import DependencyTargets
from slurm_colloc.store.all_packs import State

from ..packs import build_member, build_pack, write_packs

if TYPE_CHECKING:
    from slurm_colloc.session.session import Session


@pytest.fixture
def state(tmp_path: Path) -> State:
    found = State(tmp_path / "state", "here")
    for name, job_id in (("s", "7"), ("t", "9")):
        write_packs(found, build_pack(name), job_id=job_id)
    return found


def expand(state: State, text: str) -> tuple[bool, list[str]]:
    """Whether csub has to do with a dependency, and what it becomes."""
    members = [SimpleNamespace(member=MemberId("9", number)) for number in (1, 2)]
    session = SimpleNamespace(state=state, survey=lambda *_a, **_k: [(None, members)])
    targets = DependencyTargets(cast("Session", session))
    dependency = parse_dependency(text)
    job = build_member(1).spec.job
    expanded = targets.expand(dependency, job, text).conditions
    return targets.is_concerned(dependency), [f"{c.kind}:{c.target}" for c in expanded]


def test_who_waits_for_a_submission_waits_for_its_members_once_they_may_be_elsewhere(
    state: State,
) -> None:
    assert expand(state, "afterok:9") == (False, ["afterok:9"])
    state.note_taker("t.0", "9", "s.0")
    assert expand(state, "afterok:9") == (True, ["afterok:9/1", "afterok:9/2"])
    with pytest.raises(
        UsageProblem, match="9 has members in other Slurm jobs, of which afternotok"
    ):
        expand(state, "afternotok:9")
    # Of those of others in a pack nothing changes for its own.
    assert expand(state, "afterok:7") == (False, ["afterok:7"])
