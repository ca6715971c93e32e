"""Records of a newer csub are read by this one."""

from __future__ import annotations

import ast
import dataclasses
import enum
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import slurm_colloc
from slurm_colloc.errors import StateError
from slurm_colloc.model.chain import ChainRecord, Link
from slurm_colloc.model.gpu_pace import GpuRate, GpuRun, GpuRuns
from slurm_colloc.model.job import ArrayTask, SignalRequest
from slurm_colloc.model.job_values import MailRequest
from slurm_colloc.model.measured_curve import (
    CurvePoint,
    DegreeDecision,
    DegreeState,
    FamilyRate,
    KnownCurve,
    KnownPoint,
    RateAlone,
    RateSource,
)
from slurm_colloc.model.member import (
    ExitCode,
    MemberState,
    WaitKind,
    WaitReason,
    effective_state,
)
from slurm_colloc.model.plan import Policy, SharingMode
from slurm_colloc.model.records import build_record, is_known
from slurm_colloc.model.setting_values import RunnerSettings
from slurm_colloc.store.atomic_files import parse_record, read_record, write_json
from slurm_colloc.store.indexes import JobIndex
from slurm_colloc.store.member_states import (
    EmptiedRecord,
    GpuUse,
    HomeRecord,
    Retries,
    StateRecord,
)
from slurm_colloc.store.own_numbers import NumberClaim, NumberOrigin
from slurm_colloc.store.pack_directory import (
    GpuDivision,
    GpuSetShare,
    MemberSpec,
    MovedMember,
    PackEndRecord,
    PackRecord,
    Setup,
    build_pack_mapping,
)
from slurm_colloc.store.profiles import FaultRecord
from slurm_colloc.store.progress_counters import FollowRequest
from slurm_colloc.store.report_files import KeptMetrics, OwnOutputs, ReportedMetric
from slurm_colloc.store.runner_requests import Action, DegreeRecord, Dependent, Request
from slurm_colloc.store.snapshots import SnapshotRecord
from slurm_colloc.store.written_ends import RunnerKill, RunnerProcess, find_written_end

from ..packs import build_pack

PACKAGE = Path(slurm_colloc.__file__).parent
TOMORROW = {"of_tomorrow": {"deep": [1, None]}}


class Case(NamedTuple):
    """A record with all its parts, its JSON form, and what every csub has always written."""

    record: Any
    required: set[str]
    value: dict[str, Any]


def build_case(
    record: Any, required: str, build: Callable[[Any], dict[str, Any]] = dataclasses.asdict
) -> Case:
    return Case(record, set(required.split()), json.loads(json.dumps(build(record), default=str)))


def build_state_mapping(record: StateRecord) -> dict[str, Any]:
    return {**dataclasses.asdict(record), "exit_code": str(record.exit_code)}


PACK = dataclasses.replace(
    build_pack("s").record,
    policy=Policy(modes=(SharingMode.MPS,)),
    settings=RunnerSettings(launcher="srun"),
)
SPEC = dataclasses.replace(
    build_pack("s").members[0].spec,
    job=dataclasses.replace(
        build_pack("s").members[0].spec.job,
        signal=SignalRequest(10, 60, True),
        array_task=ArrayTask(1, 2, 1, 2, 1),
        mail=MailRequest(("END",)),
        depends=(("afterok", "4711/3"),),
        max_slowdown=1.5,
    ),
)

CASES = [
    build_case(
        PACK,
        "pack_id submission index indices is_array created_at name mode degree request group "
        "reasons members submit_directory submit_host client_environment slurm_options",
        build_pack_mapping,
    ),
    build_case(SPEC, "job plan umask"),
    build_case(
        StateRecord(
            MemberState.FAILED, 2, 1, 1.5, 2.5, ExitCode(0, 9), "n1", ("GPU-1",), (0, 1), "4711.2",
            60, "why", GpuUse("mps", 50, 800, True, ("GPU-1",)), "signal", ("a line",), Retries(1),
            waits=WaitReason(WaitKind.PLACE, "4711/2", count=2),
        ),
        "state attempt",
        build_state_mapping,
    ),
    build_case(
        Setup(1, "auto", "mps", "", "n1", gpus=("GPU-1",)), "attempt asked mode reason node"
    ),
    build_case(
        DegreeRecord(
            1, DegreeState.SETTLED, 2, 4, 1, 2048, True, (3,),
            (CurvePoint(2, 1.9, 0.1, 1.2, 1, 1.5, 2.0, (1, 2)),),
            (RateAlone(1, 10.0, 0.02, 2.0, 1.5, RateSource.FIRST, 50),), 3.4,
            (DegreeDecision(1.5, DegreeState.MEASURING, 1, 2, 1.25, "it pays"),),
        ),
        "attempt",
    ),
    build_case(
        KnownCurve(
            ("f", "g"), "NVIDIA H100", SharingMode.MPS, (KnownPoint(2, 1.9, 1.1, 1.5, 2),),
            (FamilyRate("f", 10.0),), ("a.sh",), ("s.0/1",),
        ),
        "families gpu_model mode points",
    ),
    build_case(
        GpuRuns(
            "NVIDIA H100",
            (GpuRun("s.0/1", "GPU-1", "n1", 1.5, (GpuRate("k", "s", 10.0),), 60.0, 0.5),),
        ),
        "gpu_model",
    ),
    build_case(SnapshotRecord("/home/u/p", ("src/net.py",), 1.5), ""),
    build_case(GpuDivision(1, (GpuSetShare(("GPU-1",), ("0",), (0, 1), 4096),), True), ""),
    build_case(RunnerKill(0, 1, 9, 1.5, "no"), "restarts attempt signal at"),
    build_case(RunnerProcess("n1", 7, 4711), "host pid start_ticks"),
    build_case(Request(Action.SIGNAL, 1, 10, True, "why"), "action number"),
    build_case(Dependent("4712", (("afterok", 3),), True), "job_id conditions"),
    build_case(PackEndRecord("FAILED", 1.5), ""),
    build_case(MovedMember("s.0", 3), "pack_id"),
    build_case(ChainRecord((Link("4711", 1.5, 60.0, "why", 1.5, 1.5, 2.5),), "no", "no", 1), ""),
    build_case(EmptiedRecord("s.1", 1.5), ""),
    build_case(HomeRecord("4712", 9, "t.0", 1.5, "/home/ada", "login1"), ""),
    build_case(JobIndex("s", (0, 1)), "submission indices"),
    build_case(FollowRequest("x", (("/out", 7),)), "regex files"),
    build_case(OwnOutputs((("/out", 7),)), "files"),
    build_case(
        KeptMetrics((ReportedMetric(3, "loss", "python", 1.5, 0.5, 0.25, 2.0),)), "metrics"
    ),
    build_case(FaultRecord("4711/3", ("a line",)), ""),
    build_case(NumberOrigin(1795491551, 7), ""),
    build_case(NumberClaim(3, (("s.0", "2-4"),)), ""),
]  # fmt: skip
each_record = pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.record).__name__)


def add_everywhere(value: Any) -> Any:
    """The same with a field that no csub of today knows in each of its objects."""
    if isinstance(value, dict):
        return {**{name: add_everywhere(item) for name, item in value.items()}, **TOMORROW}
    return [add_everywhere(item) for item in value] if isinstance(value, list) else value


def list_parts(record: Any) -> Iterator[Any]:
    """The record and all dataclasses in it."""
    if dataclasses.is_dataclass(record):
        yield record
        for field in dataclasses.fields(record):
            yield from list_parts(getattr(record, field.name))
    elif isinstance(record, tuple):
        for item in record:
            yield from list_parts(item)


@each_record
def test_a_newer_record_is_read_without_what_is_new_in_it(case: Case) -> None:
    newer = add_everywhere({"schema": 1, **case.value})
    assert build_record(type(case.record), newer) == case.record


@each_record
def test_a_word_that_only_a_newer_csub_has_is_kept_or_means_the_default(case: Case) -> None:
    for field in dataclasses.fields(case.record):
        if not isinstance(getattr(case.record, field.name), enum.StrEnum):
            continue
        found = build_record(type(case.record), {**case.value, field.name: "of_tomorrow"})
        word = getattr(found, field.name)
        if field.default is not dataclasses.MISSING:
            assert word is field.default
            continue
        assert (str(word), word == "of_tomorrow", is_known(word)) == ("of_tomorrow", True, False)
        # It is written as it was read.
        assert json.loads(json.dumps(dataclasses.asdict(found)))[field.name] == "of_tomorrow"


def test_an_unknown_choice_in_a_part_means_its_default() -> None:
    [case] = [case for case in CASES if isinstance(case.record, PackRecord)]
    policy = {**case.value["policy"], "goal": "beauty", "modes": ["mps", "telepathy"]}
    assert build_record(PackRecord, {**case.value, "policy": policy}) == case.record


@each_record
@pytest.mark.parametrize("wrong", [{"x": 1}, [[]], True, 1.5, "x:y", float("nan")])
def test_a_value_of_another_kind_makes_one_damaged_record_that_names_its_field(
    tmp_path: Path, case: Case, wrong: object
) -> None:
    kind, path, refused = type(case.record), tmp_path / "record.json", set()
    for name in case.value:
        write_json(path, {**case.value, name: wrong})
        try:
            read_record(path, kind)
        except StateError as problem:
            refused.add(problem.message.startswith(f"{path} is damaged ({name}: "))
    assert refused == {True}


@pytest.mark.parametrize("value", [None, [], "text", {"schema": 1}])
def test_what_is_no_record_is_a_damaged_one(value: object) -> None:
    with pytest.raises(StateError, match=r"here is damaged"):
        parse_record(MemberSpec, value, "here")


def test_every_record_that_is_read_is_in_this_matrix() -> None:
    covered = {type(part).__name__ for case in CASES for part in list_parts(case.record)}
    read = set()
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                place = {"read_record": 1, "parse_record": 0}.get(call.func.id)
                if place is not None and place < len(call.args):
                    read.add(ast.unparse(call.args[place]))
    assert read - {"kind"} <= covered, "a new record belongs into CASES"


def test_the_stores_read_their_records_in_one_way() -> None:
    # What is kept for an hour is asked for again where it cannot be read; and a wrapper, which
    # loads nothing of the store, has a form of its own (model.member.ExitRecord).
    others = {"atomic_files.py", "kept_answers.py", "written_ends.py"}
    readers = {p.name for p in (PACKAGE / "store").rglob("*.py") if "read_json" in p.read_text()}
    assert readers <= others


def test_a_state_of_tomorrow_is_shown_as_it_is_and_has_ended_once_it_says_so() -> None:
    [case] = [case for case in CASES if isinstance(case.record, StateRecord)]
    ended = build_record(StateRecord, {**case.value, "state": "CHECKPOINTED"})
    running = build_record(StateRecord, {**case.value, "state": "PARKED", "ended_at": None})
    assert (ended.is_final, running.is_final) == (True, False)
    shown = effective_state(ended.state, None, has_ended=ended.is_final)
    assert str(shown) == "CHECKPOINTED"
    assert str(effective_state(running.state, None)) == "PARKED"


@pytest.mark.parametrize("schema", [1, 2])
def test_an_end_that_a_wrapper_of_another_version_has_written_is_named(
    tmp_path: Path, schema: int
) -> None:
    path = tmp_path / "members" / "0001" / "run.1.1.exit"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": schema, "wait_status": 0, "at": 9.0}))
    if schema == 1:
        end = find_written_end(tmp_path, 1, None)
        assert end is not None
        assert end.state is MemberState.COMPLETED
        return
    with pytest.raises(StateError) as caught:
        find_written_end(tmp_path, 1, None)
    assert str(caught.value) == (
        f"{path} is of another version (schema 2, this one reads 1): use the csub that submitted it"
    )
