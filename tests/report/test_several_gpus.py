"""Packs with several GPUs: each is told of, and all together are no more than they were."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.top_command import LatestReading, render_top
from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.model.usage_profile import NVLINK_MIB_S
from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.pack_run import look_at_pack
from slurm_colloc.report.page.page_values import build_page
from slurm_colloc.report.page.render_page import render_page
from slurm_colloc.report.page.timelines import PageSource
from slurm_colloc.report.report_view import render_reports
from slurm_colloc.report.show_view import render_pack
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.profiles import list_profiles

from .generated import T0, Truth, build_summary, make_gpu_rows, make_pack, render_report

FIRST = "GPU-11111111-2222-3333-4444-555555555555"
SECOND = "GPU-22222222-2222-3333-4444-555555555555"


def build_rows(length_s: float, nvlink_mib_s: float | None = 10_000.0) -> list[dict[str, Any]]:
    """The first GPU is twice as busy as the second, and draws more."""
    return [
        *make_gpu_rows(length_s, lambda _: 0.6, lambda _: 400.0, nvlink_mib_s=nvlink_mib_s),
        *make_gpu_rows(
            length_s, lambda _: 0.3, lambda _: 300.0, uuid=SECOND, nvlink_mib_s=nvlink_mib_s
        ),
    ]


def make_pair(root: Path, **options: Any) -> Path:
    return make_pack(
        root, [Truth(1, 0, 100, lambda _: 20)], gpus=(FIRST, SECOND), gpu=build_rows(100), **options
    )


def test_a_job_with_two_gpus_is_reported_on_both(tmp_path: Path) -> None:
    summary = build_summary(make_pair(tmp_path), tmp_path)
    assert [(gpu["index"], gpu["uuid"], gpu["members"]) for gpu in summary["gpus"]] == [
        (0, FIRST, [1]),
        (1, SECOND, [1]),
    ]
    sm = [gpu["use"]["sm_active"]["mean"] for gpu in summary["gpus"]]
    assert sm == pytest.approx([0.6, 0.3])
    assert summary["imbalance"] == {
        "metric": "sm_active",
        "least": {"uuid": SECOND, "mean": pytest.approx(0.3)},
        "most": {"uuid": FIRST, "mean": pytest.approx(0.6)},
    }
    # As one they are their mean, but for power and energy, which add up.
    assert summary["gpu_use"]["sm_active"]["mean"] == pytest.approx(0.45)
    assert summary["gpu_use"]["power_w"]["mean"] == pytest.approx(700)
    assert summary["energy_j"] == pytest.approx(70_000, rel=0.02)
    assert sum(gpu["energy_j"] for gpu in summary["gpus"]) == pytest.approx(summary["energy_j"])
    assert not [note for note in summary["notes"] if "was measured, too" in note]
    text = render_report(summary, 140)
    assert "1 training ran alone on its 2 GPUs (NVIDIA H200) for 1 min 40 s" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["GPU", "0", "(GPU-11111111)", "4711/1"] in [line[:4] for line in lines]
    assert ["GPU", "1", "(GPU-22222222)", "4711/1"] in [line[:4] for line in lines]
    assert ["all", "2", "1", "member"] in [line[:4] for line in lines]
    assert "SM activity goes from 30 % on GPU 1 (GPU-22222222) to 60 % on GPU 0" in text
    assert "21 GB/s" in text
    assert "41.9 GB/s" in text


def test_the_page_draws_two_gpus_as_one(tmp_path: Path) -> None:
    pack = make_pair(tmp_path)
    source = PageSource(build_summary(pack, tmp_path), pack)
    (drawn,) = build_page([source])["drawing"]["packs"]
    assert drawn["gpus"] == 2
    assert max(drawn["gpu"]["power_w"]["mean"]) == pytest.approx(700)
    assert max(drawn["gpu"]["sm_active"]["mean"]) == pytest.approx(0.45)
    text = render_page([source])
    assert '<h2 id="gpus">GPUs</h2>' in text
    assert "GPU 1 (GPU-22222222)" in text
    assert "SM activity goes from 30 % on GPU 1" in text


def test_what_could_not_be_read_of_one_gpu_is_unknown_of_all(tmp_path: Path) -> None:
    rows = build_rows(100, None)
    for row in rows:
        if row["uuid"] == SECOND:
            row["sm_active"] = None
    pack = make_pack(tmp_path, [Truth(1, 0, 100, lambda _: 20)], gpus=(FIRST, SECOND), gpu=rows)
    summary = build_summary(pack, tmp_path)
    assert summary["gpus"][0]["use"]["sm_active"]["mean"] == pytest.approx(0.6)
    assert summary["gpus"][1]["use"]["sm_active"] is None
    assert summary["gpu_use"]["sm_active"] is None
    assert summary["imbalance"] is None
    assert summary["members"][0]["sm_share"] is None
    assert "unknown" in next(
        line for line in render_report(summary, 140).splitlines() if line.startswith("all 2")
    )


def test_a_usage_profile_of_a_pair_has_the_figures_of_one_gpu(tmp_path: Path) -> None:
    assert learn_from_pack(make_pair(tmp_path)) == []
    (profile,), _ = list_profiles(tmp_path)
    assert profile.sm_active == pytest.approx(0.45)
    assert profile.energy_w == pytest.approx(350)
    assert profile.idle_power_w == pytest.approx(100)
    assert profile.nvlink_share == pytest.approx(10_000 / NVLINK_MIB_S)
    assert profile.for_planning().nvlink_share == profile.nvlink_share
    assert profile.gpu_uuids == (FIRST,)


def test_of_a_silent_gpu_the_share_of_nvlink_is_unknown(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 100, lambda _: 20)])
    learn_from_pack(pack)
    (profile,), _ = list_profiles(tmp_path)
    assert profile.nvlink_share is None


def test_a_single_that_shares_a_pair_s_gpus_counts_for_half_of_them(tmp_path: Path) -> None:
    truths = [Truth(1, 0, 100, lambda _: 20), Truth(2, 0, 100, lambda _: 20)]
    pack = make_pack(
        tmp_path,
        truths,
        gpus=(FIRST, SECOND),
        gpu=build_rows(100),
        used={1: (FIRST, SECOND), 2: (SECOND,)},
    )
    summary = build_summary(pack, tmp_path)
    assert [gpu["members"] for gpu in summary["gpus"]] == [[1], [1, 2]]
    lines = [line.split() for line in render_report(summary, 140).splitlines()]
    assert ["GPU", "1", "(GPU-22222222)", "4711/1-2"] in [line[:4] for line in lines]


def test_gpu_sets_of_one_job_are_one_report(tmp_path: Path) -> None:
    sets = (1, 1)
    first = make_pack(
        tmp_path,
        [Truth(1, 0, 100, lambda _: 20), Truth(2, 0, 100, lambda _: 20)],
        gpus=(FIRST,),
        gpu=make_gpu_rows(100, lambda _: 0.6),
        gpu_sets=sets,
    )
    second = make_pack(
        tmp_path,
        [Truth(3, 0, 50, lambda _: 20)],
        gpus=(SECOND,),
        gpu=make_gpu_rows(50, lambda _: 0.3, uuid=SECOND),
        gpu_set=1,
        gpu_sets=sets,
    )
    summaries = [build_summary(pack, tmp_path) for pack in (first, second)]
    assert [summary["gpu_set"] for summary in summaries] == [0, 1]
    assert tell_headline(summaries).startswith("3 trainings on 2 GPUs took 2 min 30 s of GPU time")
    text = render_reports([(summary, None) for summary in summaries], 140)
    lines = [line.split() for line in text.splitlines()]
    table = [line[:5] for line in lines if line[:1] in (["GPU"], ["all"])]
    assert ["GPU", "0", "(GPU-11111111)", "4711/1-2", "2"] in table
    assert ["GPU", "1", "(GPU-22222222)", "4711/3", "1"] in table
    assert ["all", "2", "3", "members", "3"] in table
    page = build_page([PageSource(*one) for one in zip(summaries, (first, second), strict=True)])
    assert [row["id"] for row in page["rows"]] == ["4711/1", "4711/2", "4711/3"]
    assert page["gpus"] is not None
    heads = [head for head, _ in page["gpus"]["heads"]]
    assert heads[:3] == ["GPU", "Members", "At once, at most"]
    assert heads[-2:] == ["NVLink", "PCIe"]
    assert [row[0] for row in page["gpus"]["rows"]] == [
        "GPU 0 (GPU-11111111)",
        "GPU 1 (GPU-22222222)",
        "all 2",
    ]
    assert [part["title"] for part in page["packs"]] == [
        "GPU 0 (GPU-11111111), NVIDIA H200 on node1",
        "GPU 1 (GPU-22222222), NVIDIA H200 on node1",
    ]
    # One of them alone says nothing of the other.
    assert "all 2" not in render_reports([(summaries[0], {1})], 140)


def test_packs_and_gpus_have_names_that_say_where(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 100, lambda _: 20)], used={1: (FIRST,)}, running=True)
    view = look_at_pack(pack)
    record = dataclasses.replace(
        view.record, is_array=True, index=19998, indices=(19998, 19999, 20000)
    )
    assert record.number_of == (1, 3)
    view = dataclasses.replace(view, record=record)
    (member,) = view.members
    assert member.record is not None
    where = dataclasses.replace(member.record, gpus=("1",))
    view = dataclasses.replace(view, members=(dataclasses.replace(member, record=where),))
    latest = {"at": T0, "gpus": {FIRST: {"sm_active": 0.5}}, "indexes": {FIRST: 0}, "members": {}}
    lines = [
        line.strip() for line in render_top([LatestReading(view, latest)], T0, 120).split("\n")
    ]
    assert any(line.startswith("Pack 1 of 3:") for line in lines)
    # Inside a job NVML calls each GPU 0.
    assert "node1:1 (GPU-11111111): SM 50 %; whole GPU" in lines
    shown = render_pack(view, State(tmp_path, "here"), T0)
    assert shown.startswith("Pack 1 of 3  ")
    numbered: Any = {**build_summary(pack, tmp_path), "number_of": [1, 3]}
    assert "Pack 1 of 3:" in render_reports([(numbered, None)], 120, detail=True)
    # The Slurm job of a pack by itself has the number that csub has said.
    assert dataclasses.replace(record, indices=(19998,)).number_of is None


def test_top_names_gpus_as_nvidia_smi_does(tmp_path: Path) -> None:
    pack = make_pack(
        tmp_path,
        [Truth(1, 0, 100, lambda _: 20)],
        running=True,
        gpus=(FIRST, SECOND),
        gpu_set=1,
        gpu_sets=(1, 2),
    )
    latest = {
        "at": T0,
        "gpus": {
            FIRST: {"sm_active": 0.5, "nvlink_tx_mib_s": 10_000.0},
            SECOND: {"sm_active": 0.4, "nvlink_tx_mib_s": 0.0},
        },
        "indexes": {FIRST: 4, SECOND: None},
        "members": {},
    }
    text = render_top([LatestReading(look_at_pack(pack), latest)], T0, 120)
    assert "Pack 4711:" in text
    assert "GPU set 2 of 2" in text
    lines = [line.strip() for line in text.splitlines()]
    assert "GPU 4 (GPU-11111111): SM 50 %, sends 10.5 GB/s over NVLink; whole GPU" in lines
    assert "GPU-22222222:         SM 40 %; whole GPU" in lines
