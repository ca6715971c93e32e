from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.plan import Goal, Policy, SharingMode
from slurm_colloc.model.records import build_record
from slurm_colloc.store.pack_directory import (
    MemberSpec,
    PackRecord,
    build_environment_block,
    build_pack_mapping,
    parse_environment_block,
)

from ..packs import build_pack
from .record_strategies import RECORDS, SPECS


@given(record=RECORDS)
def test_a_pack_record_survives_json(record: PackRecord) -> None:
    assert (
        build_record(
            PackRecord, json.loads(json.dumps({"schema": 1, **build_pack_mapping(record)}))
        )
        == record
    )


@given(spec=SPECS)
def test_a_member_spec_survives_json(spec: MemberSpec) -> None:
    assert (
        build_record(MemberSpec, json.loads(json.dumps({"schema": 1, **dataclasses.asdict(spec)})))
        == spec
    )


@given(
    environment=st.dictionaries(
        st.binary(min_size=1).filter(lambda name: not set(name) & set(b"=\0")),
        st.binary().filter(lambda value: 0 not in value),
    )
)
def test_an_environment_of_any_bytes_survives(environment: dict[bytes, bytes]) -> None:
    assert parse_environment_block(build_environment_block(environment)) == environment


@pytest.mark.parametrize("name", ["mode", "members", "request", "pack_id"])
def test_a_record_without_one_of_its_fields_is_no_record(name: str) -> None:
    value = build_pack_mapping(build_pack("s").record)
    del value[name]
    with pytest.raises(ValueError, match=f"{name} is missing"):
        build_record(PackRecord, value)


@given(SPECS, RECORDS)
def test_what_a_newer_csub_adds_is_passed_over(spec: MemberSpec, record: PackRecord) -> None:
    value = dataclasses.asdict(spec)
    value["job"]["of_tomorrow"] = value["plan"]["of_tomorrow"] = 1
    assert build_record(MemberSpec, json.loads(json.dumps(value))) == spec
    known = build_pack_mapping(dataclasses.replace(record, policy=Policy(degree=3)))
    known["of_tomorrow"] = known["policy"]["of_tomorrow"] = 1
    assert build_record(PackRecord, json.loads(json.dumps(known))).policy == Policy(degree=3)


def test_a_mode_that_only_a_newer_csub_has_is_kept_as_it_is() -> None:
    value = build_pack_mapping(build_pack("s").record)
    record = build_record(PackRecord, {**value, "mode": "magic"})
    assert record.mode == "magic"
    assert record.mode not in list(SharingMode)


def test_a_policy_keeps_its_choices() -> None:
    policy = Policy(
        goal=Goal.ENERGY,
        degree_is_asked=True,
        degree_max=7,
        modes=(SharingMode.MPS, SharingMode.TIMESLICE),
    )
    record = build_pack("s", policy=policy).record
    value = json.loads(json.dumps(build_pack_mapping(record)))
    assert build_record(PackRecord, value) == record


def test_choices_that_only_a_newer_csub_has_stand_for_the_usual_ones() -> None:
    record = build_pack("s", policy=Policy()).record
    value = json.loads(json.dumps(build_pack_mapping(record)))
    value["policy"].update(goal="beauty", modes=["mps", "telepathy"])
    assert build_record(PackRecord, value).policy == Policy(modes=(SharingMode.MPS,))
