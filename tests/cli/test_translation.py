"""What Slurm gets of ids that users write, against what Slurm itself answers to such ids.

Slurm 22.05: `squeue -j 134217729` refuses the whole question (Invalid job id specified), so does
`scontrol show job`; `scancel` of it says nothing and does nothing; `-d afterok:134217729` counts as
satisfied. So no number of csub's may reach it, and nothing else may be changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.cli.tasks_listed import JobChoice
from slurm_colloc.errors import NotFound
from slurm_colloc.model.job_ids import is_own_number
from slurm_colloc.model.job_values import parse_dependency
from slurm_colloc.session.depend_on_members import DependencyTargets
from slurm_colloc.store.all_packs import State

from ..packs import build_member, build_pack, write_packs

JOINED_PACK, ARRAY = "20260901-100000-00000001", "20260901-100000-00000002"


class Bed:
    """A state with a pack 11 that a job has joined, and an array 12 in two packs."""

    def __init__(self, folder: Path) -> None:
        self.state = State(folder / "state", "here")
        self.state.prepare()
        (joined,) = self.state.claim_numbers([(f"{JOINED_PACK}.0", [2])])
        second, third = self.state.claim_numbers([(f"{ARRAY}.0", [2]), (f"{ARRAY}.1", [3])])
        guest = build_member(2, own_id=joined, has_joined=True)
        write_packs(
            self.state, build_pack(JOINED_PACK, members=[build_member(1), guest]), job_id="11"
        )
        tasks = [build_member(1), build_member(2, own_id=second)]
        write_packs(
            self.state,
            build_pack(ARRAY, 0, tasks, (0, 1)),
            build_pack(ARRAY, 1, [build_member(3, own_id=third)], (0, 1)),
            job_id="12",
        )
        self.session: Any = SimpleNamespace(state=self.state)
        self.joined = joined
        # Each word, what Slurm gets for it, and what it may not get.
        self.table = {
            joined: ["11"],
            second: ["12_0", "12_1"],
            third: ["12_0", "12_1"],
            "11": ["11"],
            "11_2": ["11_2", "11"],
            "12": ["12", "12_0", "12_1"],
            "12_3": ["12_3", "12_0", "12_1"],
            "12_[1-2]": ["12_[1-2]", "12_0", "12_1"],
            # Jobs of Slurm's alone, one with the digits of a number in it.
            "99": ["99"],
            "99_1": ["99_1"],
            "99_[4-5%2]": ["99_[4-5%2]"],
            joined[:8]: [joined[:8]],
            # What neither knows stays, for Slurm to say.
            "x": ["x"],
        }


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with tempfile.TemporaryDirectory() as folder:
        yield Bed(Path(folder))


@given(st.data())
def test_slurm_gets_real_ids_alone_and_all_else_as_it_was_written(
    bed: Bed, data: st.DataObject
) -> None:
    words = data.draw(st.lists(st.sampled_from(sorted(bed.table)), min_size=1, max_size=6))
    text = ",".join(words)
    given_ids = JobChoice(bed.session, text).translate(text)
    expected = [one for word in words for one in bed.table[word]]
    got = given_ids.replace("12_[1-2]", "12_(1-2)").split(",")
    got = [one.replace("(", "[").replace(")", "]") for one in got]
    assert sorted(got) == sorted(set(expected))
    assert not any(map(is_own_number, got))
    kept = [word for word in dict.fromkeys(words) if not is_own_number(word)]
    assert [one for one in got if one in kept] == kept


DEPENDENCIES = {
    "11_2": ["11/2"],
    "12_3": ["12/3"],
    "12_[1-2]": ["12/1", "12/2"],
    "99": ["99"],
    "99_1": ["99_1"],
}


@given(st.data())
def test_a_dependency_on_a_number_is_one_on_its_member(bed: Bed, data: st.DataObject) -> None:
    table = {**DEPENDENCIES, bed.joined: ["11/2"]}
    kinds = st.sampled_from(["afterok", "afterany", "afternotok"])
    pairs = data.draw(
        st.lists(st.tuples(kinds, st.sampled_from(sorted(table))), min_size=1, max_size=5)
    )
    text = ",".join(f"{kind}:{target}" for kind, target in pairs)
    targets = DependencyTargets(bed.session)
    dependency = parse_dependency(text)
    expanded = targets.expand(dependency, build_member(1).spec.job, text)
    wanted = [(kind, one) for kind, target in pairs for one in table[target]]
    got = [(condition.kind, condition.target) for condition in expanded.conditions]
    assert got == list(dict.fromkeys(wanted))
    assert not any(is_own_number(target) for _, target in got)
    is_ours = any(target not in ("99", "99_1") for _, target in pairs)
    assert targets.is_concerned(dependency) is is_ours


@given(st.integers(0, 2**24 - 10))
def test_a_number_that_was_not_given_never_reaches_slurm_as_a_dependency(
    bed: Bed, step: int
) -> None:
    unknown = str(int(bed.joined) + 3 + step)
    text, job = f"afterok:99:{unknown}", build_member(1).spec.job
    with pytest.raises(NotFound, match=f"csub has no job {unknown}"):
        DependencyTargets(bed.session).expand(parse_dependency(text), job, text)
