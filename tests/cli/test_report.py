"""`csub report` and `csub top` as people call them."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest

from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.model.plan import MemberPlan
from slurm_colloc.report.summary_file import summary_path
from slurm_colloc.store.atomic_files import hold_lock

from ..calls import UserWithoutSlurm
from ..report.generated import T0, UUID, Truth, make_pack


@pytest.fixture
def person(tmp_path: Path) -> UserWithoutSlurm:
    return UserWithoutSlurm(tmp_path)


def make_two(person: UserWithoutSlurm) -> Path:
    return make_pack(
        person.state,
        [Truth(1, 0, 120, lambda at: 20 if at < 60 else 12), Truth(2, 60, 120, lambda _: 9)],
        names=["\x1b[31mresnet", "[red]vit"],
    )


@pytest.mark.parametrize("columns", [80, 140])
def test_a_report_is_a_table_of_the_members(person: UserWithoutSlurm, columns: int) -> None:
    make_two(person)
    done = person.csub("report", "4711", COLUMNS=str(columns))
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= columns
    for words in ("4711/1", "4711/2", "\\x1b[31mresnet", "[red]vit", "1.67", "estimated"):
        assert words in done.stdout, words
    assert "\x1b" not in done.stdout
    last = person.csub("report", COLUMNS=str(columns))
    assert last.stdout == done.stdout, "the newest submission is meant"


def test_json_and_csv_have_the_chosen_members(person: UserWithoutSlurm) -> None:
    make_two(person)
    (summary,) = json.loads(person.csub("report", "4711/2", "--json").stdout)
    assert summary["schema"] == 1
    assert [member["id"] for member in summary["members"]] == ["4711/2"]
    assert summary["members"][0]["slowdown"] is None
    rows = list(csv.DictReader(io.StringIO(person.csub("report", "last", "--csv").stdout)))
    assert [row["member"] for row in rows] == ["4711/1", "4711/2"]
    by_name = person.csub("report", "--name", "*vit", "--csv").stdout
    assert "4711/1" not in by_name
    assert "4711/2" in by_name


def test_what_cannot_be_reported_is_one_sentence(person: UserWithoutSlurm) -> None:
    assert person.csub("report", "4711").returncode == 7
    make_two(person)
    done = person.csub("report", "4711", "--json", "--csv")
    assert done.returncode == 2
    assert "exclude each other" in done.stderr
    assert person.csub("report", "4711/9").returncode == 7


def test_the_runner_has_the_summary_written(person: UserWithoutSlurm, tmp_path: Path) -> None:
    pack = make_two(person)
    done = person.csub("report", "--write", str(pack))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    value = json.loads(summary_path(pack).read_text())
    assert value["final"] is True
    assert list((person.state / "profiles").glob("*.nvidia-h200.json"))
    # From now on that one is shown, though profiles know more.
    value["members"][0]["slowdown"] = 7.77
    summary_path(pack).write_text(json.dumps(value))
    assert "7.77" in person.csub("report", "4711").stdout
    refused = person.csub("report", "--write", str(tmp_path))
    assert refused.returncode != 0
    assert "was not written" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_summary_that_was_damaged_is_made_anew(person: UserWithoutSlurm) -> None:
    pack = make_two(person)
    learn_from_pack(pack)
    summary_path(pack).write_text("{")
    done = person.csub("report", "4711")
    assert done.returncode == 0
    assert "4711/2" in done.stdout


def test_top_says_when_nothing_runs(person: UserWithoutSlurm) -> None:
    make_two(person)
    done = person.csub("top")
    assert done.returncode == 0
    assert done.stdout.startswith("No pack of yours is running.")


@pytest.mark.parametrize("columns", [80, 140])
def test_top_shows_what_the_monitors_saw_last(person: UserWithoutSlurm, columns: int) -> None:
    truths = [Truth(1, 0, 60, lambda _: 9), Truth(2, 0, 60, lambda _: 9)]
    pack = make_pack(person.state, truths, job_id="L1", running=True, names=["\x1b[2Jwiped", "b"])
    with hold_lock(pack / "alive", 0) as lock:
        assert lock
        waiting = person.csub("top", COLUMNS=str(columns))
        assert "has measured nothing yet" in waiting.stdout
        latest = {
            "schema": 1, "at": time.time(),
            "gpus": {UUID: {"sm_active": 0.42, "power_w": 310.0, "dram_active": None}},
            "members": {"1": {"start": 1, "steps": 4321, "steps_per_s": 9.01, "cpu_cores": 1.5,
                              "gpu_memory_mb": 812.0, "wait_share": 0.25, "last_step_age_s": 0.4},
                        "2": {"start": 1, "steps": None}},
        }  # fmt: skip
        (pack / "latest.json").write_text(json.dumps(latest))
        done = person.csub("top", "--once", COLUMNS=str(columns))
        assert (done.returncode, done.stderr) == (0, "")
        for words in ("L1/1", "4321", "9.01", "812 MB", "25 %", "SM 42 %", "whole GPU", "unknown"):
            assert words in done.stdout, words
        assert "\x1b" not in done.stdout
        assert "DRAM" not in done.stdout, "it could not be read"
        assert max(map(len, done.stdout.splitlines())) <= columns
        assert "L1/2" not in person.csub("top", "L1/1").stdout
        (pack / "latest.json").write_text(json.dumps({**latest, "at": T0}))
        assert "its monitor last reported" in person.csub("top", COLUMNS=str(columns)).stdout
        (pack / "latest.json").write_text("{")
        assert "is damaged" in " ".join(person.csub("top", COLUMNS=str(columns)).stdout.split())
        running = person.csub("report", "L1", COLUMNS=str(columns))
        assert "have run together for" in running.stdout


def test_why_says_how_much_slower_than_alone_a_running_member_is(person: UserWithoutSlurm) -> None:
    truths = [Truth(1, 0, 60, lambda _: 9), Truth(2, 0, 60, lambda _: 9)]
    plans = {
        1: MemberPlan(0, 2, 100, 60, solo_steps_per_s=15.0),
        2: MemberPlan(1, 2, 100, 60, predicted_slowdown=1.25),
    }
    pack = make_pack(person.state, truths, job_id="L1", running=True, plans=plans)
    member = {"start": 1, "steps_per_s": 10.0, "window_s": 10.1}
    latest = {"schema": 1, "at": time.time(), "gpus": {}, "members": {"1": member, "2": member}}
    with hold_lock(pack / "alive", 0) as lock:
        assert lock
        (pack / "latest.json").write_text(json.dumps(latest))
        one, two = person.csub("why", "L1").stdout.splitlines()
        assert ", 1.50 times slower than alone (10 of 15 steps/s, over the last 10 s)" in one
        assert ", predicted to be 1.25 times slower than alone while all run" in two
        (pack / "latest.json").write_text("[")
        one, _ = person.csub("why", "L1").stdout.splitlines()
        assert one.startswith("L1/1 RUNNING: ")
        assert "slower" not in one
