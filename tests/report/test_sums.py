"""Sums over packs, by the index of summaries; one submission against another."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.report.summary_file import summary_path
from slurm_colloc.report.sums_view import find_entries
from slurm_colloc.store.all_packs import State, StateReader
from slurm_colloc.store.indexes import read_index

from ..calls import UserWithoutSlurm
from .generated import T0, Truth, make_pack

INDEX = "summaries"


class Week(UserWithoutSlurm):
    """A user with three packs that have ended: two members, a lone one, one that failed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.packs = [
            self._make("a", "4711", [Truth(1, 0, 120, lambda at: 20 if at < 60 else 12),
                                     Truth(2, 60, 180, lambda _: 9)]),
            self._make("b", "4712", [Truth(1, 0, 360, lambda _: 20)], setup=False),
            self._make("c", "4713", [Truth(1, 0, 36, lambda _: 20)], failed=[1], setup=False),
        ]  # fmt: skip

    def _make(self, name: str, job_id: str, truths: list[Truth], **options: Any) -> Path:
        submission = f"20260101-000000-{name}"
        pack = make_pack(self.state, truths, submission=submission, job_id=job_id, **options)
        assert learn_from_pack(pack) == []
        return pack

    def sums(self, *words: str) -> dict[str, Any]:
        done = self.csub("report", "--since=999w", "--json", *words)
        assert (done.returncode, done.stderr) == (0, "")
        value: dict[str, Any] = json.loads(done.stdout)
        return value


@pytest.fixture
def week(tmp_path: Path) -> Week:
    return Week(tmp_path)


def test_sums_are_of_all_packs(week: Week) -> None:
    total = week.sums()["all"]
    assert (total["packs"], total["members"]) == (3, 4)
    assert total["gpu_hours"] == pytest.approx((180 + 360 + 36) / 3600, rel=0.01)
    assert total["gpu_hours_wasted"] == pytest.approx(36 / 3600, rel=0.02)
    # Alone they have a slowdown of 1, and the one that shared all the time is slower by a third.
    assert total["mean_slowdown"] == pytest.approx((20 / 12 + 3) / 4, rel=0.02)
    assert total["sm_active"] == pytest.approx(0.5, rel=0.05)
    # 300 W all the time.
    assert total["energy_kwh"] == pytest.approx(576 * 300 / 3.6e6, rel=0.02)


@pytest.mark.parametrize(
    ("by", "names"),
    [("script", {"job.sh"}), ("mode", {"mps", "exclusive"}), ("gpu", {"NVIDIA H200"})],
)
def test_sums_are_by_what_was_asked(week: Week, by: str, names: set[str]) -> None:
    value = week.sums("--by", by)
    assert {row["name"] for row in value["rows"]} == names
    hours = sum(row["gpu_hours"] for row in value["rows"])
    assert hours == pytest.approx(value["all"]["gpu_hours"])
    rows = list(csv.DictReader(io.StringIO(
        week.csub("report", "--since=999w", "--by", by, "--csv").stdout)))  # fmt: skip
    assert {row["name"] for row in rows} == names
    table = week.csub("report", "--since=999w", "--by", by).stdout
    assert by.upper() in table
    assert all(name in table for name in names)


def test_figures_that_are_not_known_are_unknown_and_of_how_many_is_said(tmp_path: Path) -> None:
    week = Week(tmp_path)
    # Nothing reports steps: it is not known what sharing cost and saved.
    silent = [Truth(n, 0, 60, lambda _: 9, reports=False) for n in range(1, 10)]
    week._make("d", "4714", silent)
    week._make("e", "4715", silent[:1], setup=False)
    total = week.sums()["all"]
    assert (total["members"], total["mean_slowdown_of_members"]) == (14, 4)
    assert (total["packs"], total["packs_shared"], total["gpu_hours_saved_of_packs"]) == (5, 2, 1)
    for width in ("80", "140"):
        table = week.csub("report", "--since=999w", COLUMNS=width).stdout
        assert "1.17 (4 of 14)" in table
        assert "(1 of 2)" in table
        assert ("KWH" in table) == (width == "140")
    rows = {row["name"]: row for row in week.sums("--by=mode")["rows"]}
    # Who was alone has saved nothing, which is known.
    assert rows["exclusive"]["gpu_hours_saved"] == pytest.approx(0, abs=1e-6)
    assert rows["exclusive"]["mean_slowdown_of_members"] == 2
    for path in week.packs:
        path.rename(week.home / path.name)
    shared = next(row for row in week.sums("--by=mode")["rows"] if row["name"] == "mps")
    assert (shared["gpu_hours_saved"], shared["mean_slowdown"]) == (None, None)
    lines = week.csub("report", "--since=999w", "--by=mode").stdout.splitlines()
    assert next(line for line in lines if line.startswith("mps")).count("unknown") >= 2
    (row,) = (
        row for row in csv.DictReader(io.StringIO(
            week.csub("report", "--since=999w", "--by=mode", "--csv").stdout))
        if row["name"] == "mps"
    )  # fmt: skip
    assert (row["gpu_hours_saved"], row["mean_slowdown"]) == ("", "")


def test_only_packs_that_have_ended_within_the_time_count(week: Week) -> None:
    done = week.csub("report", "--since=1h")
    assert "no pack has ended within 1h" in done.stdout
    now = time.time()
    state = State(week.state, "here")
    assert len(find_entries(state, T0 + 300).entries) == 1
    assert find_entries(state, now).entries == []


def test_what_the_index_lacks_is_read_once_and_a_damaged_line_is_a_missing_one(week: Week) -> None:
    before = week.sums()
    index = week.state / INDEX
    lines = index.read_text().splitlines()
    assert len(lines) == 3
    for text in ("", "\n".join([lines[0], '{"v":1,"pack":"x', "[1]", lines[1][:40], "\x00"])):
        index.write_text(text)
        assert week.sums() == before
        assert set(read_index(week.state)) >= {pack.name for pack in week.packs}
    # By the index: the summaries are not opened any more.
    for pack in week.packs:
        summary_path(pack).write_text("{")
    assert week.sums() == before
    # Values of other kinds are none; with the summary gone the pack is told as one without.
    index.write_text(lines[0].replace('"gpu_s":', '"gpu_s":"x","was":') + "\n")
    value = week.sums()
    assert value["all"]["packs"] == 0
    assert "3 packs have ended without a summary" in " ".join(value["notes"])


def test_a_pack_that_ended_again_has_its_last_entry_and_one_that_is_gone_none(week: Week) -> None:
    assert learn_from_pack(week.packs[0]) == []
    assert week.sums()["all"]["packs"] == 3
    week.packs[2].rename(week.home / "gone")
    assert week.sums()["all"]["packs"] == 2


def test_a_pack_that_never_began_is_no_pack_without_a_summary(week: Week) -> None:
    for place, begun in enumerate((True, False)):
        pack = make_pack(week.state, [Truth(1, 0, 30, lambda _: 9)], job_id=f"481{place}",
                         submission=f"20260103-000000-{place}")  # fmt: skip
        if not begun:
            # Another pack took over all that it had, or it was cancelled in the queue.
            (pack / "attempt").unlink()
    for _ in range(2):
        assert week.sums()["notes"] == [
            "1 pack has ended without a summary, as when nothing was watched: not in the sums"
        ]


def test_packs_that_run_are_told(week: Week) -> None:
    make_pack(week.state, [Truth(1, 0, 30, lambda _: 9)], submission="20260102-000000-d",
              job_id="L9", running=True)  # fmt: skip
    value = week.sums()
    assert value["all"]["packs"] == 3
    assert value["notes"] == ["1 pack is not over: not in the sums"]


def test_an_index_that_is_a_link_or_another_users_is_not_written(week: Week) -> None:
    index = week.state / INDEX
    victim = week.home / "victim"
    victim.write_text("")
    index.unlink()
    index.symlink_to(victim)
    assert week.sums()["all"]["packs"] == 3
    assert victim.read_text() == ""
    index.unlink()
    reader = StateReader(week.state, "here")
    assert len(find_entries(reader, 0).entries) == 3
    assert not index.exists(), "a reader writes nothing"


def test_wrong_words_are_one_sentence(week: Week) -> None:
    for words in (("--by", "moon"), ("--since", "yesterday"), ("--since=7d", "4711"),
                  ("--by=user", "--user", "no-such-user")):  # fmt: skip
        done = week.csub("report", *words)
        assert done.returncode == 2, words
        assert len(done.stderr.splitlines()) == 1
        assert done.stdout == ""


def test_one_submission_against_another(week: Week) -> None:
    done = week.csub("compare", "4712", "4711/1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "times as fast in 4711/1" in done.stdout
    value = json.loads(week.csub("compare", "4712", "4711/1", "--json").stdout)
    (job,) = value["jobs"]
    assert (job["first"], job["second"]) == ("4712/1", "4711/1")
    assert job["first_steps_per_s"] == pytest.approx(20, rel=0.02)
    assert 0.5 < job["rate_ratio"] < 1
    assert [side["members"] for side in value["sides"]] == [1, 1]
    # Equal scripts and arguments are paired, what is left over is told.
    value = json.loads(week.csub("compare", "4711", "4713", "--json").stdout)
    assert [side["without_like"] for side in value["sides"]] == [1, 0]
    assert value["sides"][1]["failed"] == 1
    assert week.csub("compare", "4711", "99").returncode == 7
    assert week.csub("compare", "4711").returncode == 2


def test_a_mean_says_of_how_many_it_is(week: Week) -> None:
    path = summary_path(week.packs[0])
    summary = json.loads(path.read_text())
    summary["members"][1]["rate"]["steps_per_s"] = None
    path.write_text(json.dumps(summary))
    first, second = json.loads(week.csub("compare", "4711", "4712", "--json").stdout)["sides"]
    assert (first["members"], first["steps_per_s_of_members"]) == (2, 1)
    assert first["steps_per_s"] == summary["members"][0]["rate"]["steps_per_s"]
    assert (second["members"], second["steps_per_s_of_members"]) == (1, 1)
    table = week.csub("compare", "4711", "4711").stdout
    assert "(1 of 2)" in table
    rate = next(line for line in table.splitlines() if line.startswith("mean steps/s"))
    assert rate.endswith("unknown")
    assert "1 of the 2 jobs that both have, the others with an unknown rate: 1.00" in table
    summary["members"][0]["rate"]["steps_per_s"] = None
    path.write_text(json.dumps(summary))
    side, _ = json.loads(week.csub("compare", "4711", "4712", "--json").stdout)["sides"]
    assert (side["steps_per_s"], side["steps_per_s_of_members"]) == (None, 0)
    assert "(0 of" not in week.csub("compare", "4711", "4712").stdout


def test_of_a_job_that_was_tried_again_the_last_try_is_compared(week: Week) -> None:
    path = summary_path(week.packs[0])
    summary = json.loads(path.read_text())
    summary["members"][0]["state"] = "FAILED"
    summary["members"][1] |= {"retry_of": "4711/1"}
    path.write_text(json.dumps(summary))
    value = json.loads(week.csub("compare", "4711", "4712", "--json").stdout)
    assert [(side["members"], side["retries"], side["failed"]) for side in value["sides"]] == [
        (1, 1, 0), (1, 0, 0),
    ]  # fmt: skip
    assert [(job["first"], job["second"]) for job in value["jobs"]] == [("4711/2", "4712/1")]
    assert "earlier tries of these" in week.csub("compare", "4711", "4712").stdout
    assert "earlier tries" not in week.csub("compare", "4712", "4713").stdout
    # Who names the first try means it.
    value = json.loads(week.csub("compare", "4711/1", "4712", "--json").stdout)
    assert (value["sides"][0]["failed"], value["sides"][0]["retries"]) == (1, 0)


def test_the_page_of_a_time_is_written_where_it_is_wanted(week: Week) -> None:
    done = week.csub("report", "--since=999w", "--html")
    assert (done.returncode, done.stderr) == (0, "")
    sentence, path = done.stdout.splitlines()
    assert sentence.startswith("4 jobs of ")
    file = week.home / "csub-report-since-999w.html"
    assert Path(path) == file
    text = file.read_text()
    assert sentence in text
    assert "GPU hours by day" in text
    other = week.csub("report", "--since=999w", "--by=gpu", "--html", "x.html")
    assert other.returncode == 0
    assert "By GPU" in (week.home / "x.html").read_text()


@pytest.mark.parametrize(
    "words", [("4711",), ("--best=loss",), ("--detail",), ("--where=lr=1",), ("x.html",)]
)
def test_what_is_about_members_is_refused_with_a_time(week: Week, words: tuple[str, ...]) -> None:
    done = week.csub("report", "--since=999w", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert not list(week.home.glob("*.html"))
