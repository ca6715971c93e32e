"""A summary that is damaged, or another user's: whatever is in it, no report fails on it."""

from __future__ import annotations

import copy
import json
import random
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.page.render_page import render_page
from slurm_colloc.report.page.timelines import PageSource
from slurm_colloc.report.report_view import render_reports
from slurm_colloc.report.summary_file import Summary, fits_summary, read_summary, summary_path

from ..recordings.recorded import H200
from .generated import Truth, build_summary, make_pack, write_stops
from .situations import SITUATIONS, is_there

BAD: tuple[Any, ...] = (
    None, True, "x\x1b[31m<b>", -1, 3, 1e300, float("nan"), float("inf"), [], [None], {}, {"a": 1},
)  # fmt: skip


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from list_paths(value[key], (*path, key))
    elif isinstance(value, list):
        for place in range(min(2, len(value))):
            yield from list_paths(value[place], (*path, place))


def change(summary: Any, path: tuple[Any, ...], value: Any, *, left_out: bool = False) -> Any:
    changed = copy.deepcopy(summary)
    part = changed
    for key in path[:-1]:
        part = part[key]
    if left_out:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return changed


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    truths = [
        Truth(1, 0, 100, lambda at: 20 if at < 60 else 12, stops=[(70.0, 80.0)]),
        Truth(2, 60, 100, lambda _: 9),
    ]
    made = make_pack(tmp_path, truths, predicted={1: 1.4, 2: 1.5})
    write_stops(made, truths)
    return made


def make_whole(pack: Path, root: Path) -> Any:
    """A summary in which nothing is missing that one can have."""
    summary = build_summary(pack, root)
    parked: Any = SITUATIONS["parked"].make(root)[0].summary
    summary["degree"] = parked["degree"] | {
        "decisions": [{"at": 1.7e9, "degree": 2, "reason": "both fit"}],
        "cores": [{"member": 1, "own": 1, "cores": 2, "most": 3, "of": 4, "wait_share": 0.4,
                   "gain": 0.2}],
        "workers": [{"member": 1, "workers": 1, "cores": 4, "advised": 4}],
    }  # fmt: skip
    hours = {"asked": 2.0, "used": 1.0}
    gpu = {"uuid": "GPU-1", "mean": 0.5}
    handover = {"waited_s": 1.0, "interruption_s": 2.0, "overlap_s": 3.0}
    instance = {"profile": "3g.40gb", "uuid": "MIG-1", "memory_mb": 40_000, "sms": 60, "places": 2}
    summary |= {
        "layout": {"planned": ["3g.40gb"], "came": [instance]},
        "chain": {"links": ["1", "2"], "links_most": 3, "handovers": [handover],
                  "interruption_s": 2.0, "overlap_s": 3.0, "problem": "it ended"},
        "open": {"for": 1, "joined": 2, "cpu_hours": hours, "host_memory_gb_hours": hours},
        "imbalance": {"metric": "sm_active", "least": gpu, "most": gpu},
        "number_of": [1, 2],
    }  # fmt: skip
    for member in summary["members"]:
        member |= {
            "mig": {"planned": None, "profile": "3g.40gb", "uuid": "MIG-1", "memory_mb": 40_000,
                    "shared_by": None},
            "power": {"limit_w": 500, "slowdown": 1.1, "energy_share": 0.8},
            "metrics": {"loss": {"last": 0.5, "least": 0.5, "greatest": 2.0, "source": "printed"}},
            "interference": [{"at": 1.7e9, "came": [2], "went": [1], "before_steps_per_s": 20.0,
                              "after_steps_per_s": 12.0, "ratio": 0.6}],
            "unknown": {"rate": "too short"}, "parameters": {"lr": "0.1"}, "samples": 128,
        }  # fmt: skip
    return json.loads(json.dumps(summary))


def test_a_summary_says_nothing_that_its_types_do_not_have(pack: Path, tmp_path: Path) -> None:
    assert list(list_untyped(Summary, make_whole(pack, tmp_path))) == []
    assert list(list_untyped(Summary, {"pack_id": "a", "pack_ids": 1})) == [("pack_ids",)]


def list_untyped(kind: Any, value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value has fields that no type tells of."""
    if typing.is_typeddict(kind) and isinstance(value, dict):
        fields = typing.get_type_hints(kind)
        yield from ((*path, name) for name in value.keys() - fields.keys())
        for name in value.keys() & fields.keys():
            yield from list_untyped(fields[name], value[name], (*path, name))
    elif typing.get_origin(kind) in (list, dict) and value is not None:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from list_untyped(typing.get_args(kind)[-1], value[key], (*path, key))
    else:
        for part in typing.get_args(kind):
            yield from list_untyped(part, value, path)


OUT = "left out"
EACH: tuple[Any, ...] = (
    OUT, None, True, "x", "exact", -1, 3, 2.5, 10**12, 10**18, 1e300, float("nan"), float("inf"),
    [], [None], ["x"], [3], [3, 4], {}, {"a": 1}, {"a": "x"}, {"a": None},
)  # fmt: skip
FITTING: tuple[tuple[tuple[Any, ...], str], ...] = (
    ((), """
        gpu imbalance.least imbalance.most members.*.rate members.*.request members.*.stall
        open.cpu_hours open.host_memory_gb_hours pack unexplained unexplained.energy_j window.to
    """),
    (("exact",), """
        gpu_use.*.attribution gpus.*.use.*.attribution members.*.energy_j.attribution
        members.*.gpu_memory_mb.attribution members.*.sm_share.attribution
    """),
    (("x", "exact"), """
        degree.decisions.*.reason gpus.*.uuid imbalance.least.uuid imbalance.metric
        imbalance.most.uuid layout.came.*.profile layout.came.*.uuid members.*.id
        members.*.metrics.*.source members.*.name members.*.state name pack.prediction.over
        pack_id setup.asked setup.by setup.mode setup.reason
    """),
    ((-1, 3, 2.5, 10**12), """
        gpu_use.*.max gpu_use.*.mean gpu_use.*.p95 gpus.*.use.*.max gpus.*.use.*.mean
        gpus.*.use.*.p95 imbalance.least.mean imbalance.most.mean
        members.*.interference.*.after_steps_per_s members.*.interference.*.before_steps_per_s
        members.*.interference.*.ratio members.*.request.gpus pack.overlap_s pack.prediction.error
        pack.prediction.measured pack.prediction.predicted
    """),
    ((3, 10**12), """
        chain.links_most degree.cores.*.cores degree.cores.*.member degree.cores.*.most
        degree.cores.*.of degree.cores.*.own degree.curve.*.degree degree.decisions.*.degree
        degree.degree degree.workers.*.advised degree.workers.*.cores degree.workers.*.member
        degree.workers.*.workers gpu_set members.*.member members.*.starts number_of.* open.for
        open.joined pack.members pack.members_most pack.prediction.members
    """),
    ((3, 2.5), """
        degree.decisions.*.at members.*.interference.*.at window.from
    """),
    ((None,), """
        chain coverage degree imbalance layout members.*.energy_j members.*.gpu_memory_mb
        members.*.mig members.*.sm_share members.*.solo open pack.fairness pack.prediction setup
        unexplained.sm_active window
    """),
    ((None, "exact"), """
        members.*.stall.attribution
    """),
    ((None, "x", "exact"), """
        chain.problem coverage.not_watched coverage.not_watched_kind degree.why gpu.model gpu.uuid
        gpus.*.model gpus.*.slow job members.*.cause members.*.directory
        members.*.gpu_memory_mb.by members.*.mig.planned members.*.mig.profile
        members.*.mig.shared_by members.*.mig.uuid members.*.mode members.*.node
        members.*.retry_of members.*.script node pack.idle_power_from pack.kwh_how submission
    """),
    ((OUT, None, "x", "exact"), """
        members.*.job_id
    """),
    ((None, -1, 3, 2.5, 10**12), """
        chain.handovers.*.interruption_s chain.handovers.*.overlap_s chain.handovers.*.waited_s
        chain.interruption_s chain.overlap_s coverage.gap_s coverage.share degree.cores.*.gain
        degree.cores.*.wait_share degree.cost_s degree.cost_share degree.curve.*.stp
        degree.curve.*.window_s degree.curve.*.worst_slowdown energy_j gpu.memory_mb
        gpus.*.energy_j gpus.*.memory_mb layout.came.*.memory_mb layout.came.*.places
        layout.came.*.sms members.*.accepted_slowdown members.*.cpu_cores members.*.energy_j.value
        members.*.exit_code members.*.exit_signal members.*.gpu_memory_mb.peak
        members.*.host_memory_peak_mb members.*.mig.memory_mb members.*.power.energy_share
        members.*.power.limit_w members.*.power.slowdown members.*.predicted_slowdown
        members.*.rate.samples_per_s members.*.rate.steps_per_s members.*.request.cpus
        members.*.request.gpu_memory_mb members.*.request.host_memory_mb
        members.*.request.time_limit_s members.*.slowdown members.*.sm_share.value
        members.*.solo.steps_per_s members.*.solo_time_s members.*.stall.alone_s
        members.*.stall.data members.*.stall.data_alone members.*.stall.device
        members.*.stall.host members.*.stall.overlap members.*.stall.sharing members.*.steps
        members.*.stopped_s members.*.together_slowdown members.*.unmatched_lines
        open.cpu_hours.asked open.cpu_hours.used open.host_memory_gb_hours.asked
        open.host_memory_gb_hours.used pack.antt pack.gpu_hours_saved pack.idle_power_w
        pack.kwh_saved pack.serial_s pack.shared_s pack.stp pack.stp_at_least
        unexplained.energy_j.explained unexplained.energy_j.measured unexplained.energy_j.rest
        unexplained.sm_active.explained unexplained.sm_active.measured unexplained.sm_active.rest
    """),
    ((None, -1, 3, 2.5, 10**12, 10**18, 1e300), """
        members.*.metrics.*.greatest members.*.metrics.*.last members.*.metrics.*.least
    """),
    ((None, 3, 10**12), """
        degree.room gpus.*.index
    """),
    ((None, 3, 2.5), """
        made_at members.*.ended_at members.*.joined_at members.*.started_at
    """),
    ((None, [3, 4]), """
        number_of
    """),
    ((None, [], ["x"]), """
        members.*.arguments
    """),
    ((OUT,), """
        chain.handovers.* degree.cores.* degree.curve.* degree.decisions.* degree.workers.* gpus.*
        layout.came.* members.* members.*.interference.* members.*.metrics.*
    """),
    ((OUT, "x", "exact"), """
        chain.links.* layout.planned.* members.*.notes.* members.*.parameters.*
        members.*.unknown.* pack.slowdown_unknown.* pack.unknown.* setup.notes.*
    """),
    ((OUT, 3, 10**12), """
        gpus.*.members.* members.*.interference.*.came.* members.*.interference.*.went.*
        unexplained.energy_j.members_unknown.* unexplained.sm_active.members_unknown.*
    """),
    ((OUT, None), """
        gpu_use.* gpus.*.use.* members.*.power
    """),
    ((OUT, None, -1, 3, 2.5, 10**12), """
        gpus.*.throttled_s.* throttled_s.*
    """),
    (EACH, """
        attempt coverage.gaps.* coverage.gaps.*.* coverage.interval_s coverage.monitor_cpu_s
        coverage.monitor_rss_peak_mb coverage.not_readable.* coverage.ticks_due
        coverage.ticks_taken degree.curve.*.error degree.curve.*.members degree.curve.*.members.*
        degree.curve.*.worst_bound degree.curve.*.worst_member degree.parked degree.places
        degree.rates_alone degree.state gpu_use.*.p50 gpus.*.use.*.p50 members.*.cpu_s
        members.*.gpu_memory_mb.allocator_peak members.*.gpu_memory_mb.outside_allocator
        members.*.progress members.*.rate.paused_s members.*.rate.shared_steps_per_s
        members.*.rate.spread members.*.rate.unknown members.*.rate.warm_up_s
        members.*.rate.window_s members.*.read_bytes members.*.samples members.*.skipped
        members.*.solo.measured_by members.*.solo.n members.*.solo.source members.*.written_bytes
        schema
    """),
    ((True,), """
        final
    """),
    (([],), """
        chain.handovers degree.cores degree.curve degree.decisions degree.workers gpus layout.came
        members members.*.interference
    """),
    (([], ["x"]), """
        chain.links layout.planned members.*.gpu_uuids members.*.notes notes pack.slowdown_unknown
        pack.unknown problems setup.notes
    """),
    (([], [3], [3, 4]), """
        gpu_sets gpus.*.members members.*.interference.*.came members.*.interference.*.went
        unexplained.energy_j.members_unknown unexplained.sm_active.members_unknown
    """),
    (([], [None], ["x"], [3], [3, 4]), """
        coverage.gaps
    """),
    (({},), """
        members.*.metrics
    """),
    (({}, {"a": "x"}), """
        members.*.parameters members.*.unknown
    """),
    (({}, {"a": 1}, {"a": "x"}, {"a": None}), """
        coverage.not_readable
    """),
    (({}, {"a": 1}, {"a": None}), """
        gpus.*.throttled_s throttled_s
    """),
    (({}, {"a": None}), """
        gpu_use gpus.*.use
    """),
)  # fmt: skip
"""What fits in place of which fields; `*` stands for each of a list, or each name of a user's."""
NAMED = ("gpu_use", "use", "throttled_s", "unknown", "parameters", "metrics", "not_readable")


def name_path(path: tuple[Any, ...]) -> str:
    steps = zip((None, *path), path, strict=False)
    return ".".join("*" if isinstance(k, int) or of in NAMED else k for of, k in steps)


def test_what_fits_each_field(pack: Path, tmp_path: Path) -> None:
    whole = make_whole(pack, tmp_path)
    assert fits_summary(whole)
    expected = {name: fitting for fitting, names in FITTING for name in names.split()}
    seen: dict[str, tuple[Any, ...]] = {}
    for path in list_paths(whole):
        found = [v for v in EACH if fits_summary(change(whole, path, v, left_out=v is OUT))]
        seen[name_path(path)] = tuple(found)
    assert {name: repr(found) for name, found in seen.items()} == {
        name: repr(fitting) for name, fitting in expected.items()
    }


@pytest.mark.long
def test_a_report_is_made_of_whatever_fits(pack: Path, tmp_path: Path) -> None:
    whole = make_whole(pack, tmp_path)
    chance = random.Random(1)
    fitting = refused = 0
    for path in list_paths(whole):
        for value in (*chance.sample(BAD, 4), "left out"):
            changed = change(whole, path, value, left_out=value == "left out")
            if not fits_summary(changed):
                refused += 1
                continue
            fitting += 1
            text = render_reports([(changed, None)], 140, detail=True)
            assert "\x1b" not in text, path
            assert tell_headline([changed])
            if chance.random() < 0.2:
                assert "<b>" not in render_page([PageSource(changed, pack)]), path
    assert fitting > 100
    assert refused > 300


def test_a_member_that_was_not_looked_at_yet_is_reported(pack: Path, tmp_path: Path) -> None:
    summary = build_summary(pack, tmp_path) | {"window": None, "final": False}
    for member in summary["members"]:
        member |= {"state": "RUNNING", "ended_at": None, "steps": None}
    assert fits_summary(summary)
    assert "still running" in render_reports([(summary, None)], 140, detail=True)


def test_one_that_does_not_fit_is_made_anew(pack: Path, tmp_path: Path) -> None:
    summary = {**build_summary(pack, tmp_path), "final": True}
    summary_path(pack).write_text(json.dumps(summary))
    assert read_summary(pack) is not None
    for damaged in ({**summary, "members": [{"id": "4711/1"}]}, {**summary, "pack": None}):
        summary_path(pack).write_text(json.dumps(damaged))
        assert read_summary(pack) is None


@pytest.mark.parametrize("name", [n for n, s in SITUATIONS.items() if is_there(s)])
def test_each_situation_fits(name: str, tmp_path: Path) -> None:
    for source in SITUATIONS[name].make(tmp_path):
        assert fits_summary(json.loads(json.dumps(source.summary)))


def test_the_recordings_are_among_them() -> None:
    assert not H200.is_dir() or all(map(is_there, SITUATIONS.values()))
