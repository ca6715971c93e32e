"""The page of `csub report --html` as a file: whole, small, and harmless whatever is in it."""

from __future__ import annotations

import dataclasses
import getpass
import html.parser
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.report.page.page_values import ROWS_MOST
from slurm_colloc.report.page.render_page import render_page
from slurm_colloc.report.page.series import (
    RATE_WINDOW_S,
    PackSeries,
    find_places,
    read_series,
    thin,
)
from slurm_colloc.report.page.timelines import PageSource
from slurm_colloc.store.member_states import AT_DOOR, PARKED, read_pauses
from slurm_colloc.store.pack_directory import read_spec, write_spec

from ..calls import run_csub
from ..wait_until import wait_until
from .generated import T0, UUID, Truth, build_summary, make_pack, write_stops
from .generated_days import SPIKE, write_days
from .situations import SITUATIONS, is_there, make_summary

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}\x1b[31m\u202ex"
MEGABYTE = 1_000_000


class Tags(html.parser.HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, _tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read_drawing(text: str) -> dict[str, Any]:
    found = re.search(r'id="drawing">(.*?)</script>', text, re.DOTALL)
    assert found
    value: dict[str, Any] = json.loads(found[1])
    return value


@pytest.mark.parametrize("name", [n for n, s in SITUATIONS.items() if is_there(s)])
def test_a_page_says_the_sentence_the_notes_and_each_member(name: str, tmp_path: Path) -> None:
    from slurm_colloc.report.advice import list_advice
    from slurm_colloc.report.headline import tell_headline

    sources = SITUATIONS[name].make(tmp_path)
    text = render_page(sources)
    page = Tags(text)
    summaries = [source.summary for source in sources]
    assert tell_headline(summaries) in page.text
    for advice in list_advice(summaries):
        assert advice.describe() in page.text
        assert advice.act in page.text
    for summary in summaries:
        for member in summary["members"]:
            assert member["id"] in page.text
    assert len(text.encode()) < MEGABYTE / 2


def test_a_page_loads_nothing_and_runs_only_its_own_scripts(tmp_path: Path) -> None:
    text = render_page([PageSource(make_summary(2), tmp_path)])
    page = Tags(text)
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "action", "srcset", "poster"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:,")), (tag, name, value)
        assert not any(name.startswith("on") for name in attributes)
    assert "@import" not in text
    assert "url(" not in text
    (policy,) = [
        a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_hostile_words_are_words_and_no_more(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(n, 0, 60, lambda _: 9) for n in (1, 2)], names=[EVIL, EVIL])
    summary = build_summary(pack, tmp_path)
    summary |= {"name": EVIL, "node": EVIL, "notes": [EVIL]}
    summary["gpu"] |= {"model": EVIL}
    summary["setup"] |= {"reason": EVIL, "notes": [EVIL], "by": EVIL, "mode": EVIL}
    for member in summary["members"]:
        member |= {"script": EVIL, "arguments": [EVIL, EVIL], "notes": [EVIL], "state": EVIL}
    (pack / "events.jsonl").write_text(json.dumps({"event": "took_over", "at": EVIL}) + "\n")
    text = render_page([PageSource(summary, pack)])
    clean = render_page([PageSource(build_summary(pack, tmp_path), pack)])
    kinds = [tag for tag, _ in Tags(text).tags if tag in ("script", "img")]
    assert kinds == [tag for tag, _ in Tags(clean).tags if tag in ("script", "img")]
    assert "<img" not in text
    assert "49" not in Tags(text).text.partition("Members")[0]
    assert "\x1b" not in text
    assert "\u202e" not in text
    drawn = read_drawing(text)["packs"][0]["members"][0]
    assert "</script>" in drawn["label"], "as it was written, in a string"


def test_the_page_names_the_instance_of_each_member_where_one_had_any(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(n, 0, 60, lambda _: 9) for n in (1, 2)])
    summary = build_summary(pack, tmp_path)
    heads = [re.findall(r"<th scope=\"col\".*?</th>", render_page([PageSource(summary, pack)]))]
    summary["members"][0]["mig"] = {"planned": None, "profile": "3g.40gb", "uuid": "MIG-1",
                                       "memory_mb": None, "shared_by": None}  # fmt: skip
    text = render_page([PageSource(summary, pack)])
    heads.append(re.findall(r"<th scope=\"col\".*?</th>", text))
    assert [any("Instance" in head for head in own) for own in heads] == [False, True]
    assert 'data-label="instance">3g.40gb</td>' in text


def test_a_page_of_very_many_members_stays_small_and_says_what_it_leaves_out(
    tmp_path: Path,
) -> None:
    sources = []
    for index in range(100):
        summary = make_summary(12, 1.3, first=12 * index, job=f"54_{index}")
        for member in summary["members"]:
            member["arguments"] = ["--name", "\u00e4" * 500, str(member["member"])]
            member["interference"] = []
        sources.append(PageSource(summary, tmp_path / str(index)))
    text = render_page(sources)
    assert len(text.encode()) < MEGABYTE
    assert f"And {1200 - ROWS_MOST} more: csub report 54 --csv has all." in Tags(text).text
    assert "packs are not drawn" in Tags(text).text


def test_a_day_is_thinned_and_its_extremes_are_kept(tmp_path: Path) -> None:
    sources = write_days(tmp_path, packs=2, hours=4, members=2)
    text = render_page(sources)
    assert len(text.encode()) < MEGABYTE
    assert "the line is the mean, the shade goes from the least to the greatest" in Tags(text).text
    for pack in read_drawing(text)["packs"]:
        series = {
            name: [value for value in values if value is not None]
            for name, values in pack["gpu"]["sm_active"].items()
        }
        assert max(series["greatest"]) == pytest.approx(SPIKE, abs=0.001)
        assert max(series["mean"]) < 0.7
        assert min(series["least"]) == pytest.approx(0.3, abs=0.01)
        for member in pack["members"]:
            rates = [rate for rate in member["rate"]["mean"] if rate is not None]
            assert rates == pytest.approx([10.0] * len(rates), rel=0.02)
            assert len(rates) > 0.95 * pack["count"]


def read_curves(source: PageSource) -> PackSeries:
    window = source.summary["window"]
    assert window is not None
    return read_series(source.path, (window["from"], window["to"]), ((UUID,), ()), (), points=600)


@pytest.mark.parametrize("first", [1, 40_000])
def test_the_order_of_the_rows_and_the_numbers_of_members_do_not_matter(
    first: int, tmp_path: Path
) -> None:
    [source] = write_days(tmp_path, packs=1, hours=1, members=3)
    straight = read_curves(source)
    file = source.path / "report" / "members.parquet"
    table = pq.read_table(file)
    # One member so far from the others that they are not told apart by a small number.
    place = table.schema.get_field_index("member")
    moved = pc.if_else(pc.equal(table["member"], 1), first, table["member"])
    table = table.set_column(place, "member", moved.cast(table["member"].type))
    pq.write_table(table.take(np.random.default_rng(1).permutation(len(table))), file)
    mixed = read_curves(source)
    assert {first if n == 1 else n: rate for n, rate in straight.rates.items()} == mixed.rates
    assert {first if n == 1 else n: stay for n, stay in straight.stays.items()} == mixed.stays
    assert len(mixed.rates) == 3


def test_samples_without_a_single_time_are_no_curves(tmp_path: Path) -> None:
    [source] = write_days(tmp_path, packs=1, hours=1, members=1)
    file = source.path / "report" / "members.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(0, "at", pa.nulls(len(table), pa.float64())), file)
    found = read_curves(source)
    assert (found.rates, found.stays) == ({}, {})
    assert found.gpu


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=200), st.integers(1, 40))
def test_what_a_point_stands_for_lies_between_its_edges(values: list[float], count: int) -> None:
    at = np.arange(len(values), dtype=np.float64)
    step_s = max(1.0, len(values) / count)
    place = find_places(at, 0.0, step_s)
    thinned = thin(place, np.array(values, dtype=np.float64), count + 1)
    low = thinned.least or thinned.mean
    high = thinned.greatest or thinned.mean
    known = [value for value in values if value == value]  # noqa: PLR0124 - NaN
    assert len(thinned.mean) == count + 1
    if not known:
        assert set(thinned.mean) == {None}
        return

    def close(value: float) -> Any:
        return pytest.approx(value, rel=1e-3, abs=1e-3)

    assert min(v for v in low if v is not None) == close(min(known))
    assert max(v for v in high if v is not None) == close(max(known))
    for least, mean, greatest in zip(low, thinned.mean, high, strict=True):
        if mean is not None:
            assert least is not None
            assert greatest is not None
            margin = 2e-3 * max(abs(least), abs(greatest), 1.0)
            assert least - margin <= mean <= greatest + margin


@pytest.mark.parametrize(
    ("reason", "kind", "told"), [(PARKED, 2, "was parked"), (AT_DOOR, 3, "waited at the door")]
)
def test_paused_time_is_drawn_and_is_in_no_rate(
    tmp_path: Path, reason: str, kind: int, told: str
) -> None:
    truths = [Truth(1, 0, 100, lambda _: 20, stops=[(40.0, 60.0)]), Truth(2, 0, 100, lambda _: 9)]
    pack = make_pack(tmp_path, truths)
    write_stops(pack, truths, reason)
    summary = build_summary(pack, tmp_path)
    text = render_page([PageSource(summary, pack)])
    (drawn,) = read_drawing(text)["packs"]
    first, second = drawn["members"]
    assert [band for band in first["bands"] if band[2] == kind] == [[40.0, 60.0, kind]]
    assert all(band[2] == 0 for band in second["bands"])
    assert f"4711/1 {told} for 20.0 s" in Tags(text).text
    middle = first["rate"]["mean"][45:55]
    assert set(middle) == {None}
    rates = [rate for rate in first["rate"]["mean"][20:90] if rate is not None]
    assert rates == pytest.approx([20.0] * len(rates), rel=0.25)


def test_a_restart_is_two_bars_and_said(tmp_path: Path) -> None:
    truths = [Truth(1, 0, 40, lambda _: 20), Truth(1, 60, 100, lambda _: 20, start=2)]
    pack = make_pack(tmp_path, truths)
    text = render_page([PageSource(build_summary(pack, tmp_path), pack)])
    (member,) = read_drawing(text)["packs"][0]["members"]
    assert len(member["bands"]) == 2
    for words in ("4711/1 started", "4711/1 was interrupted", "4711/1 started again",
                  "4711/1 ended: COMPLETED", "It was interrupted and started again"):  # fmt: skip
        assert words in Tags(text).text


def test_a_table_of_samples_that_is_cut_is_told_and_the_rest_is_drawn(tmp_path: Path) -> None:
    pack = make_pack(tmp_path, [Truth(1, 0, 60, lambda _: 9)])
    summary = build_summary(pack, tmp_path)
    cut = pack / "report" / "members.parquet"
    cut.write_bytes(cut.read_bytes()[:-200])
    text = render_page([PageSource(summary, pack)])
    assert "members.parquet cannot be read" in Tags(text).text
    (drawn,) = read_drawing(text)["packs"]
    assert drawn["gpu"]["sm_active"]["mean"]
    assert drawn["members"][0]["bands"] == [[0.0, 60.0, 0]], "by what its runner wrote"


def test_rates_are_those_of_the_steps(tmp_path: Path) -> None:
    truth = Truth(1, 0, 120, lambda at: 20 if at < 60 else 5)
    pack = make_pack(tmp_path, [truth])
    series = read_series(pack, (T0, T0 + 120), ((UUID,), ()), read_pauses(pack), 1000)
    steps = np.array(truth.make_steps())
    for place, rate in enumerate(series.rates[1].mean):
        middle = T0 + (place + 0.5) * series.step_s
        if rate is None:
            continue
        inside = (steps > middle - RATE_WINDOW_S / 2) & (steps <= middle + RATE_WINDOW_S / 2)
        assert rate == pytest.approx(inside.sum() / RATE_WINDOW_S, abs=0.5 + 0.05 * rate)


# -- as people call it -----------------------------------------------------------------------------


def call(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(home), "PATH": os.defpath, "LC_ALL": "C.UTF-8"}
    return run_csub(*words, environment=environment, directory=home)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    state = tmp_path / ".local" / "state" / "slurm_colloc"
    state.mkdir(parents=True)
    truths = [Truth(n, 0, 60, lambda _: 9) for n in (1, 2)]
    make_pack(state, truths, names=[EVIL, "b"])
    make_pack(state, truths, submission="s2", job_id="4712")
    return tmp_path


def test_the_command_writes_the_page_and_says_the_sentence_and_its_path(home: Path) -> None:
    done = call(home, "report", "4711", "--html")
    assert (done.returncode, done.stderr) == (0, "")
    headline, path = done.stdout.splitlines()
    assert path == str(home / "csub-report-4711.html")
    (told,) = json.loads(call(home, "report", "4711", "--json").stdout)
    assert told["headline"] == headline
    assert headline in Tags(Path(path).read_text()).text
    one = call(home, "report", "--html", "4711/2", "one.html")
    assert one.stdout.splitlines()[1] == str(home / "one.html")
    only = (home / "one.html").read_text()
    assert len(read_drawing(only)["packs"][0]["members"]) == 1
    assert "4711/2 started" in Tags(only).text
    assert "4711/1" not in Tags(only).text, "nothing of the others"


def test_with_open_a_browser_shows_the_page(home: Path) -> None:
    program = home / "browser"
    program.write_text(
        f'#!/bin/sh\necho "$1" >{home}/shown.tmp && mv {home}/shown.tmp {home}/shown\n'
    )
    program.chmod(0o755)
    environment = {"HOME": str(home), "PATH": os.defpath, "BROWSER": f"{program} %s"}
    done = run_csub("report", "4711", "--open", environment=environment, directory=home)
    assert (done.returncode, done.stderr) == (0, "")
    wait_until((home / "shown").exists, "the browser was started")
    assert (home / "shown").read_text().strip() == (home / "csub-report-4711.html").as_uri()


def test_the_page_says_whose_jobs_they_were_and_the_last_words_of_what_failed(
    tmp_path: Path,
) -> None:
    state = tmp_path / ".local" / "state" / "slurm_colloc"
    state.mkdir(parents=True)
    pack = make_pack(state, [Truth(n, 0, 60, lambda _: 9) for n in (1, 2)], failed=[2])
    spec = read_spec(pack, 2)
    assert spec is not None
    job = dataclasses.replace(spec.job, output=str(tmp_path / "out%a.txt"))
    write_spec(pack / "members" / "0002", dataclasses.replace(spec, job=job))
    (tmp_path / "out2.txt").write_text(f"step 1\nValueError: {EVIL}\n\n")
    assert call(tmp_path, "report", "4711", "--html").returncode == 0
    text = (tmp_path / "csub-report-4711.html").read_text()
    page = Tags(text)
    assert getpass.getuser() in page.text.partition("Ran for")[0]
    assert "ValueError: </script>" in page.text
    assert "<img" not in text
    assert "\x1b" not in text


def test_with_open_and_no_screen_it_says_where_the_page_is(home: Path) -> None:
    done = call(home, "report", "4711", "--open")
    assert done.returncode == 0
    assert "no browser can be opened here" in done.stderr
    assert (home / "csub-report-4711.html").exists()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("4711", "--html", "no/such.html"), 1, "cannot write"),
        (("4711", "--html", "folder.html"), 1, "directory"),
        (("4711", "--html", "a.html", "b.html"), 2, "one page is written, not 2"),
        (("4711", "page.html"), 2, "is the name of a page"),
        (("all", "--html"), 2, "a page shows one submission, but 2 were named"),
        (("4711", "--html", "--json"), 2, "--json and --html exclude each other"),
        (("4711", "--html", "--name", "nobody"), 2, "nothing to report"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(
    home: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    (home / "folder.html").mkdir()
    done = call(home, "report", *words)
    assert said.lower() in done.stderr.lower()
    assert done.returncode != 0
    assert (done.returncode == 2) == (status == 2)
    assert "Traceback" not in done.stderr
    assert [path.name for path in home.glob("*.html*")] == ["folder.html"]


def test_a_link_in_the_place_of_the_page_is_replaced_and_not_followed(home: Path) -> None:
    (home / "kept").write_text("mine")
    (home / "csub-report-4711.html").symlink_to(home / "kept")
    assert call(home, "report", "4711", "--html").returncode == 0
    assert (home / "kept").read_text() == "mine"
