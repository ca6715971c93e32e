"""What the pages say first: figures, failures, the time line of all GPUs, the sums of a week."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.report.pack_entry import PackEntry, ScriptPart
from slurm_colloc.report.page.page_values import list_facts, list_failures
from slurm_colloc.report.page.render_page import Owned, build_week, render_page, render_week
from slurm_colloc.report.page.timelines import Fact, PageSource, build_time_line
from slurm_colloc.report.sums_view import Grouping

from .generated import T0
from .situations import SITUATIONS, make_summary

EVIL = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }}\x1b[31m\u202ex"


def tell(summary: Any, **options: Any) -> dict[str, Fact]:
    source = PageSource(summary, Path("/nowhere"), **options)
    return {fact.label: fact for fact in list_facts([source])}


def test_the_first_figures_say_of_how_many_they_are() -> None:
    summary = make_summary(4, [1.2, 1.4, 1.3, 1.3], length_s=60.0)
    summary["members"][3] |= {"slowdown": None, "state": "FAILED", "ended_at": T0 + 30}
    found = tell(summary)
    assert found["Jobs"] == Fact("Jobs", "4", "3 COMPLETED, 1 FAILED", is_bad=True)
    assert (found["Ran for"].value, found["Ran for"].note) == ("1 min 00 s", "each 52 s on average")
    assert found["Slowdown"].value == "1.30"
    assert found["Slowdown"].note == "times slower than alone, mean, 3 of 4 known; accepted 1.5"
    assert not found["Slowdown"].is_bad
    assert (
        found["Did sharing pay?"].note == "1 min 00 s of GPU time; one after the other 3 min 05 s"
    )


def test_what_is_not_known_is_unknown_and_never_a_good_figure() -> None:
    summary = make_summary(2)
    summary["pack"]["serial_s"] = None
    for member in summary["members"]:
        member |= {"slowdown": None, "solo": None}
        member["rate"]["steps_per_s"] = None
    found = tell(summary)
    for label in ("Speed", "Slowdown", "Did sharing pay?"):
        assert found[label].value == "unknown", label


def test_the_last_try_of_a_job_counts() -> None:
    summary = make_summary(3, 1.2)
    first, _, again = summary["members"]
    first |= {"state": "FAILED", "exit_code": 3}
    again["retry_of"] = first["id"]
    assert tell(summary)["Jobs"] == Fact("Jobs", "2", "2 COMPLETED")
    (row,) = list_failures([PageSource(summary, Path("/nowhere"))])
    assert (row["who"], row["note"]) == ("54/1", "tried again as 54/3: COMPLETED")


def test_figures_of_chosen_members_are_theirs_alone() -> None:
    summary = make_summary(4, [1.2, 1.2, 1.4, 1.4], length_s=60.0)
    found = tell(summary, chosen=[3, 4])
    assert (found["Jobs"].value, found["Slowdown"].value) == ("2", "1.40")
    assert found["Did sharing pay?"].note.startswith("30 s of GPU time")


def test_what_failed_alike_is_one_line_with_its_end_and_its_last_words(tmp_path: Path) -> None:
    summary = make_summary(8, 1.2)
    for place in (0, 1, 2, 3, 5, 6):
        summary["members"][place] |= {"state": "FAILED", "exit_code": 1, "ended_at": T0 + place}
    summary["members"][7] |= {"state": "TIMEOUT", "exit_code": None}
    lines = dict.fromkeys(range(1, 8), "ValueError: bad lr") | {6: EVIL}
    source = PageSource(summary, tmp_path, None, lines)
    rows = list_failures([source])
    assert [(row["who"], row["call"], row["how"]) for row in rows] == [
        ("54/1-4,7", "", "exit code 1 after 0.0 s to 6.0 s"),
        ("54/6", "--lr 0.6", "exit code 1 after 5.0 s"),
        ("54/8", "--lr 0.8", "reached the time limit after 24.0 s"),
    ]
    text = render_page([source], EVIL)
    assert "<img" not in text
    assert "\x1b" not in text
    assert text.count("ValueError: bad lr") == 1
    bullets = [line for line in text.splitlines() if "csub why" in line]
    assert len(bullets) == 1, "and what to do is said once"
    assert "csub why 54/1-4,6-7 says how" in bullets[0]


def test_names_and_values_of_results_are_harmless(tmp_path: Path) -> None:
    summary = make_summary(2, 1.2)
    for member in summary["members"]:
        entry = {"last": 1e300, "least": None, "greatest": None, "source": EVIL}
        member["metrics"] = {f"{EVIL}{n}": entry for n in range(9)}
    text = render_page([PageSource(summary, tmp_path)])
    assert "<img" not in text
    assert "\x1b" not in text
    assert "1e+300" in text
    assert "And 4 more results: csub report 54 --csv has all." in text


def make_stay(place: int, uuid: str, begin: float, end: float) -> PageSource:
    summary = make_summary(2, 1.2, first=2 * place, job=f"54_{place}")
    summary["gpu"]["uuid"] = uuid
    summary["gpus"] = [{"uuid": uuid, "index": 0, "members": []}]
    summary["window"] = {"from": T0 + begin, "to": T0 + end}
    return PageSource(summary, Path("/nowhere"))


def test_a_gpu_is_one_line_and_packs_that_overlap_on_it_have_two() -> None:
    sources = [make_stay(0, "a", 0, 50), make_stay(1, "b", 0, 100), make_stay(2, "a", 50, 100),
               make_stay(3, "a", 60, 90)]  # fmt: skip
    bands = [{0: [(0.0, 50.0, 0)], 1: [(10.0, 30.0, 0), (10.0, 20.0, 2)]}, {}, {}, {}]
    line = build_time_line(sources, bands)
    assert line is not None
    shown = [[(s["pack"], s["left"], s["width"]) for s in gpu["stays"]] for gpu in line["lines"]]
    assert shown == [
        [(1, 0.0, 50.0), (3, 50.0, 50.0)], [(4, 60.0, 30.0)], [(2, 0.0, 100.0)],
    ]  # fmt: skip
    assert line["most"] == 2
    assert line["lines"][0]["stays"][0]["outline"] == [
        (0.0, 0.0), (0.0, 0.0), (0.0, 0.5), (0.2, 0.5), (0.2, 1.0), (0.6, 1.0), (0.6, 0.5),
        (1.0, 0.5), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0),
    ]  # fmt: skip
    assert build_time_line(sources[:1], bands[:1]) is None, "its own picture shows it"


def test_a_job_of_several_gpus_has_a_line_for_each() -> None:
    summary = make_summary(2, 1.2)
    summary["gpus"] = [
        {"uuid": uuid, "index": n, "members": [n + 1]} for n, uuid in enumerate("ab")
    ]
    line = build_time_line([PageSource(summary, Path("/"))], [{1: [(0, 9, 0)], 2: [(0, 9, 0)]}])
    assert line is not None
    assert [gpu["stays"][0]["title"].split(",")[0] for gpu in line["lines"]] == [
        "Pack 1: 1 member"
    ] * 2
    assert line["most"] == 1


@pytest.mark.parametrize("name", ["array", "taken over", "no GPU", "still running"])
def test_every_pack_that_began_is_on_the_time_line(name: str, tmp_path: Path) -> None:
    sources = SITUATIONS[name].make(tmp_path)
    text = render_page(sources)
    assert text.count('class="stay"') == (0 if len(sources) == 1 else len(sources))


# -- a week ----------------------------------------------------------------------------------------


def make_week(
    packs: int = 3,
) -> tuple[list[Owned], Grouping, tuple[str, float, float], list[str], list[str]]:
    """Three packs of two users: of one is nothing known, one has failed members."""
    first = PackEntry(
        pack="a", ended_at=T0, gpu="NVIDIA H200", mode="mps", shared=True, gpu_s=36_000.0,
        saved_s=36_000.0, energy_j=3.6e6, saved_kwh=None, sm_active=0.5,
        parts=(ScriptPart("/x/train.sh", 2, 100, 0, 2.5, 2),),
    )  # fmt: skip
    failed = dataclasses.replace(first, parts=(ScriptPart("/x/train.sh", 1, 100, 25, 1.5, 1),))
    unknown = dataclasses.replace(
        first, gpu_s=21_600.0, saved_s=None, energy_j=None, sm_active=None, ended_at=T0 + 86_400,
        parts=(ScriptPart(f"/y/{EVIL}", 2, 60),),
    )  # fmt: skip
    entries = [("ada", first), ("ben", failed), ("ben", unknown)]
    span = ("7d", T0 - 6e5, T0 + 9e4)
    return entries[:packs], Grouping.USER, span, ["ada", "ben"], ["1 pack is not over"]


def test_a_week_says_of_how_many_each_figure_is() -> None:
    page = build_week(*make_week())
    assert (
        page["sentence"]
        == "5 jobs of 2 users took 26 GPU hours; sharing has saved 20 in 2 of 3 packs."
    )
    facts = {fact.label: (fact.value, fact.note) for fact in page["facts"]}
    assert facts == {
        "Jobs": ("5", "3 packs"),
        "GPU hours": ("26", "50 % of the processors busy"),
        "GPU hours saved": ("20", "of 2 of 3 packs"),
        "Slowdown": ("1.33", "mean of 3 of 5 jobs"),
        "GPU hours wasted": ("2.5", "10 %, by jobs that failed"),
        "Energy": ("2 kWh", "of 2 of 3 packs"),
    }
    assert [table["name"] for table in page["tables"]] == ["By user", "By script"]
    assert page["tables"][0]["rows"][0] == (
        "ben", "3", "16", "10 (1 of 2)", "1.5 (1 of 3)", "2.5", "50 %", "1 (1 of 2)"
    )  # fmt: skip
    assert [row["hours"] for row in page["days"]] == ["20", "6"]
    assert page["days"][1]["text"] == "2 jobs; unknown GPU hours saved in 0 of 1 packs, 0 wasted"
    text = render_week(page)
    assert "<img" not in text
    assert "\x1b" not in text


def test_a_week_in_which_all_is_known_says_what_it_would_have_been() -> None:
    page = build_week(*make_week(2))
    assert page["sentence"] == (
        "3 jobs of 2 users took 20 GPU hours; one after the other it would have been 40."
    )
    nothing = build_week(*make_week(0))
    assert nothing["sentence"] == "No pack of 2 users has ended in this time."
    assert "By user" in render_week(nothing)


def test_packs_are_counted_on_the_day_on_which_they_ended() -> None:
    page = build_week(*make_week())
    assert [row["day"] for row in page["days"]] == [
        time.strftime("%a %Y-%m-%d", time.localtime(at)) for at in (T0, T0 + 86_400)
    ]
