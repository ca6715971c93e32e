"""The places of a pack."""

from __future__ import annotations

import dataclasses
import getpass
import os
from collections.abc import Callable

import pytest

from slurm_colloc.runtime.allocation import find_user_name
from slurm_colloc.runtime.members import make_places
from slurm_colloc.store.pack_directory import read_spec, write_spec

from .stepped_runner import SteppedRunner


def want(bed: SteppedRunner, *cpus: int) -> None:
    """Have members want so many CPUs each."""
    for number, count in enumerate(cpus, start=1):
        spec = read_spec(bed.pack, number)
        plan = dataclasses.replace(spec.plan, cpus=count)
        write_spec(bed.folder(number), dataclasses.replace(spec, plan=plan))


def test_the_places_are_those_of_the_members_that_want_most(
    build_bed: Callable[..., SteppedRunner],
) -> None:
    bed = build_bed(members=3)
    want(bed, 1, 4, 2)
    allocation = dataclasses.replace(
        bed.allocation, cpus_allocated=6, cores=tuple((cpu,) for cpu in range(6))
    )
    places, why = make_places(bed.pack, 2, allocation, lone=False)
    assert [place.wanted for place in places] == [4, 2]
    assert why == ""
    shares = [set(place.cpus) for place in places]
    assert [len(share) for share in shares] == [4, 2]
    assert not shares[0] & shares[1]


def test_with_too_few_cpus_nobody_is_bound_and_it_is_said(bed: SteppedRunner) -> None:
    want(bed, 2, 2, 2)
    places, why = make_places(bed.pack, 2, bed.allocation, lone=False)
    assert [place.cpus for place in places] == [(), ()]
    assert why == "2 CPUs can be used here, the members want 4: they are not bound"


def test_a_member_that_is_alone_has_all_there_is(bed: SteppedRunner) -> None:
    want(bed, 2, 2, 2)
    places, why = make_places(bed.pack, 1, bed.allocation, lone=True)
    assert [(place.wanted, place.cpus) for place in places] == [(2, ())]
    assert why == ""


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no user name")])
def test_a_user_whom_the_node_has_no_name_for_is_a_number(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", fail)
    assert find_user_name() == str(os.getuid())
