"""Planned, and what came, for packs on MIG instances, in the report and on its page."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.report.page.render_page import render_page
from slurm_colloc.report.page.timelines import PageSource
from slurm_colloc.report.report_view import find_instance_word, list_setup
from slurm_colloc.report.summary_file import fits_summary
from slurm_colloc.store.atomic_files import read_json, write_json
from slurm_colloc.store.member_states import GpuUse, read_state, write_state
from slurm_colloc.store.pack_directory import Setup, SetupInstance, read_setup, write_setup

from ..packs import build_member
from .generated import MODEL, UUID, Truth, build_summary, make_gpu_rows, make_pack, write_samples
from .test_page import Tags, read_drawing

LARGE = "MIG-00000000-0000-0000-0000-000000000001"
SMALL = "MIG-00000000-0000-0000-0000-000000000002"


def make_walled(state: Path, *, inside: str = "") -> Path:
    """Two members, planned for 3g and 2g, of whom one has got a 4g."""
    truths = [Truth(n, 0, 90, lambda _: 9.0) for n in (1, 2)]
    uses = {
        1: GpuUse(
            "mig", None, 40_448, uuids=(LARGE,), instance="4g.40gb", gpu=UUID, instance_sms=64,
            gpu_sms=132, inside=inside,
        ),
        2: GpuUse(
            "mig", None, 20_096, uuids=(SMALL,), instance="2g.20gb", gpu=UUID, instance_sms=32,
            gpu_sms=132, inside=inside,
        ),
    }  # fmt: skip
    plans = {
        number: dataclasses.replace(build_member(number).spec.plan, instance=word)
        for number, word in ((1, "3g"), (2, "2g"))
    }
    pack = make_pack(state, truths, plans=plans, mode=SharingMode.MIG)
    for number, use in uses.items():
        record = read_state(pack, number, 1)
        assert record is not None
        write_state(pack, number, dataclasses.replace(record, gpu=use))
    planned = read_json(pack / "pack.json")
    assert planned is not None
    write_json(pack / "pack.json", {**planned, "layout": ["3g", "2g"]})
    write_setup(
        pack,
        Setup(
            1, "mig=3g+2g", "mig", "the node has cut the GPU for this pack", "n1",
            by="prolog", gpus=(UUID,), gpu_name=MODEL, gpu_memory_mb=81_152,
            instances=(
                SetupInstance(LARGE, "4g.40gb", 1, 40_448, 64),
                SetupInstance(SMALL, "2g.20gb", 2, 20_096, 32, places=2 if inside else 1),
            ),
        ),
    )  # fmt: skip
    rows = make_gpu_rows(92)
    for uuid, sm, used_mb in ((LARGE, 0.8, 30_000.0), (SMALL, 0.4, 12_000.0)):
        of = [dict(row, power_w=None, energy_j=None) for row in make_gpu_rows(92, uuid=uuid)]
        rows += [dict(row, sm_active=sm, gpu_memory_mb=used_mb) for row in of]
    write_samples(pack, [row for truth in truths for row in truth.make_rows()], rows)
    return pack


def test_what_was_planned_stands_beside_what_came(tmp_path: Path) -> None:
    pack = make_walled(tmp_path)
    summary = build_summary(pack, tmp_path)
    assert fits_summary(summary)
    assert ("MIG", "planned 3g+2g, came 4g.40gb+2g.20gb") in list_setup(summary, None)
    words = [find_instance_word(member) for member in summary["members"]]
    assert words == ["4g.40gb (planned 3g)", "2g.20gb"]
    text = render_page([PageSource(summary, pack)])
    assert "Planned instance" in text
    rows = re.findall(r"<td>3g</td><td>4g.40gb</td>", text)
    assert len(rows) == 1


def test_energy_is_split_by_what_each_instance_did(tmp_path: Path) -> None:
    one, two = build_summary(make_walled(tmp_path), tmp_path)["members"]
    assert [m["energy_j"]["attribution"] for m in (one, two)] == ["modelled", "modelled"]
    # Idle power is halved; of the rest one has four times as much: 0.8 of 64 SMs, 0.4 of 32.
    assert one["energy_j"]["value"] > two["energy_j"]["value"] > 0
    (shared,) = build_summary(make_walled(tmp_path / "b", inside="mps"), tmp_path)["members"][:1]
    assert shared["energy_j"] is None


def test_the_page_draws_each_instance(tmp_path: Path) -> None:
    pack = make_walled(tmp_path)
    text = render_page([PageSource(build_summary(pack, tmp_path), pack)])
    (drawn,) = read_drawing(text)["packs"]
    assert [one["label"] for one in drawn["instances"]] == [
        "4g.40gb of 39.5 GB: /1",
        "2g.20gb of 19.6 GB: /2",
    ]
    means = [one["gpu"]["gpu_memory_mb"]["mean"] for one in drawn["instances"]]
    assert [{value for value in mean if value is not None} for mean in means] == [
        {30_000.0},
        {12_000.0},
    ]
    sm = drawn["instances"][0]["gpu"]["sm_active"]["mean"]
    assert {round(value, 3) for value in sm if value is not None} == {0.8}
    assert drawn["gpu"]["gpu_memory_mb"]["mean"][10] == 4000.0
    assert "MIG" in Tags(text).text


def test_what_is_told_of_an_instance_that_members_share_is_none_s_alone(tmp_path: Path) -> None:
    own = build_summary(make_walled(tmp_path / "own"), tmp_path)["members"][0]
    assert own["sm_share"]["attribution"] == "exact"
    assert (own["mig"]["shared_by"], own["mig"]["attribution"]) == (None, "exact")
    summary = build_summary(make_walled(tmp_path / "shared", inside="mps"), tmp_path)
    for member in summary["members"]:
        assert (member["mig"]["shared_by"], member["mig"]["attribution"]) == ("mps", None)
        assert member["sm_share"] is None or member["sm_share"]["attribution"] != "exact"
    assert ("MIG", "planned 3g+2g, came 4g.40gb+2g.20gb (for 2 by MPS)") in list_setup(
        summary, None
    )


def test_a_layout_that_did_not_come_is_said(tmp_path: Path) -> None:
    pack = make_walled(tmp_path)
    setup = read_setup(pack)
    assert setup is not None
    write_setup(pack, dataclasses.replace(setup, mode="mps", instances=()))
    summary = build_summary(pack, tmp_path)
    assert ("MIG", "planned 3g+2g, came no instances") in list_setup(summary, None)
