"""The first sentence of a report and its notes, in many situations; words and arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.report.advice import list_advice
from slurm_colloc.report.headline import compute_gain, compute_part_gain, tell_headline
from slurm_colloc.report.page.render_page import render_page
from slurm_colloc.report.page.timelines import PageSource
from slurm_colloc.report.report_sentences import WORDS, find_word
from slurm_colloc.report.report_view import group_submissions, render_reports
from slurm_colloc.report.state_meanings import explain_word
from slurm_colloc.report.submission_mail import render_mail
from slurm_colloc.report.terminal_tables import show_arguments

from .generated import Truth, build_summary, make_pack
from .situations import DOCUMENT, ROOT, SITUATIONS, build_document, describe, is_there, make_summary


@pytest.mark.skipif(
    not all(map(is_there, SITUATIONS.values())), reason="the recordings are not here"
)
def test_the_document_has_what_is_said_of_each_situation() -> None:
    assert len(SITUATIONS) >= 20
    assert build_document() == DOCUMENT.read_text(), "python -m tests.report.situations"


def test_the_documentation_shows_what_is_printed(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "report.md").read_text()
    shown = text.partition("$ csub report 54\n")[2].partition("```")[0]
    sources = SITUATIONS["slower than the bound"].make(tmp_path)
    assert shown == render_reports([(source.summary, None) for source in sources], 120)


@pytest.mark.parametrize("name", [n for n, s in SITUATIONS.items() if is_there(s)])
def test_the_terminal_begins_with_the_sentence_and_has_the_notes(name: str, tmp_path: Path) -> None:
    headline, notes = describe(SITUATIONS[name], tmp_path / "one")
    sources = SITUATIONS[name].make(tmp_path / "two")
    text = render_reports([(source.summary, None) for source in sources], 200)
    shown = " ".join(text.split())
    assert shown.startswith(headline)
    assert all(note in shown for note in notes)
    for source in sources:
        for member in source.summary["members"]:
            assert f"{member['id']} " in text


def test_members_that_met_for_a_moment_have_not_shared() -> None:
    summary = make_summary(3, [1.0, 1.0, 1.0])
    summary["pack"] |= {"overlap_s": 0.03, "shared_s": 15.5, "serial_s": 14.2}
    assert tell_headline([summary]).startswith("3 trainings ran one at a time, for 16 s in all.")
    assert not any("longer than one after" in note.say() for note in list_advice([summary]))
    summary["pack"]["overlap_s"] = 5.0
    assert "sharing did not pay" in tell_headline([summary])
    assert any("longer than one after" in note.say() for note in list_advice([summary]))


def test_a_failure_that_another_try_has_made_good_is_told_so() -> None:
    summary = make_summary(4, [1.0, 1.0, 1.0, 1.0])
    first, second, third, fourth = summary["members"]
    first |= {"state": "FAILED", "exit_code": 1}
    third |= {"retry_of": first["id"]}
    told = tell_headline([summary])
    assert "3 trainings in 4 tries" in told
    assert "1 of the 3 completed only when tried again." in told
    assert "failed" not in told
    assert not [note for note in list_advice([summary]) if note.finding == "failed"]
    second |= {"state": "FAILED", "exit_code": 1}
    told = tell_headline([summary])
    assert "1 failed (54/2: exit code 1). 1 of the 3 completed only when tried again." in told
    fourth |= {"retry_of": second["id"]}
    assert "All 2 completed only when tried again." in tell_headline([summary])
    # The second try may fail, too, and the third complete.
    second |= {"retry_of": first["id"]}
    third |= {"started_at": second["started_at"] + 1}
    fourth |= {"retry_of": first["id"], "started_at": third["started_at"] + 1}
    assert tell_headline([summary]).startswith("1 training in 4 tries took ")


def test_failures_are_counted_by_their_last_try() -> None:
    summary = make_summary(12, [1.0] * 12)
    for number, member in enumerate(summary["members"], 1):
        if number in (7, 8, 9, 10, 11, 12):
            member |= {"state": "FAILED", "exit_code": 3}
        if number > 9:
            member |= {"retry_of": f"54/{number - 3}", "started_at": member["started_at"] + 60}
    told = tell_headline([summary])
    assert told.startswith("9 trainings in 12 tries")
    assert "3 failed (54/10: exit code 3, 54/11: exit code 3, 54/12: exit code 3)." in told
    assert "All of these failed twice." in told
    notes = [note.members for note in list_advice([summary]) if note.finding == "failed"]
    assert notes == [("54/10", "54/11", "54/12")]
    assert "9 members: 6 COMPLETED, 3 FAILED" in render_mail([summary], "54")


def test_one_member_is_told_of_without_the_figures_of_the_others() -> None:
    summary = make_summary(4, [1.2, 1.3, 1.4, 1.6])
    told = tell_headline([summary], {"54/4"})
    assert told == (
        "54/4 ran with 3 others at 12.5 steps/s, 1.60 times slower than alone, over the accepted "
        "1.5; it took 6.0 s of GPU time instead of 15 s alone (2.5 times the work per GPU hour)."
    )
    some = tell_headline([summary], {"54/1", "54/4"})
    assert some.startswith(
        "2 trainings ran with 2 others and took 12 s of GPU time instead of 35 s one after the "
        "other (2.9 times the work per GPU hour); they ran 1.20 to 1.60 times slower"
    )


def test_only_those_who_were_there_are_company() -> None:
    summary = make_summary(3)
    first, second, third = summary["members"]
    second["ended_at"] = third["started_at"] = first["started_at"] + 10
    first["ended_at"] = first["started_at"] + 5
    assert tell_headline([summary], {"54/3"}).startswith("54/3 ran alone at 12.1 steps/s")
    assert "54/1 ran with 1 other at" in tell_headline([summary], {"54/1"})
    # One that runs has no end yet.
    running: Any = {**summary, "final": False}
    third |= {"started_at": first["started_at"] + 6, "ended_at": None}
    assert "54/3 runs with 1 other at" in tell_headline([running], {"54/3"})


def test_parameters_tell_members_apart_and_arguments_those_that_have_none() -> None:
    summary = make_summary(2)
    first, second = summary["members"]
    first |= {"parameters": {"rate": "0.1"}, "arguments": []}
    second |= {"parameters": {}, "arguments": ["--own", "2"]}
    for text in (render_reports([(summary, None)], 200), render_mail([summary], "54")):
        assert "rate=0.1" in text
        assert "--own 2" in text


def test_figures_that_are_lost_are_not_taken_for_a_monitor_that_did_not_run(
    tmp_path: Path,
) -> None:
    pack = make_pack(tmp_path, [Truth(n, 0, 60, lambda _: 9) for n in (1, 2)])
    assert "measured" not in tell_headline([build_summary(pack, tmp_path)])
    for name in ("members", "gpu"):
        (pack / "report" / f"{name}.parquet").unlink()
    summary = build_summary(pack, tmp_path)
    lost = "Nothing was measured: what the monitor wrote is missing."
    assert tell_headline([summary]).endswith(lost)
    summary["final"] = False
    assert "measured:" not in tell_headline([summary])
    page = render_page([PageSource(summary, pack)])
    assert "there are no samples: no curves are drawn" in page


def test_members_that_still_wait_are_told_of() -> None:
    summary: Any = {**make_summary(4), "final": False}
    for member in summary["members"][2:]:
        member |= {"started_at": None, "ended_at": None, "state": "PENDING", "starts": 0}
    assert "2 have not started yet." in tell_headline([summary])
    summary["members"][2] |= {"state": "RUNNING", "starts": 1}
    assert "1 has not started yet." in tell_headline([summary])
    assert "not started" not in tell_headline([summary], {"54/1", "54/2"})


def test_members_that_ran_in_the_pack_of_another_submission_are_of_their_own() -> None:
    host, own = make_summary(4), make_summary(2, first=4, job="60")
    for number, member in enumerate(host["members"][2:], 1):
        member |= {"member": 10**6 + number, "id": f"60/{number}"}
    guests = {10**6 + 1, 10**6 + 2}
    found = [(host, guests), (own, None)]
    assert group_submissions([*found, (host, {1, 2})]) == [found, [(host, {1, 2})]]
    some = render_reports(found, 300)
    # Half of 24 s that are the host's, and 24 s of their own.
    told = (
        "4 trainings ran with 2 others and took 36 s of GPU time instead of 58 s one after the "
        "other (1.62 times the work per GPU hour); each ran 1.65 times slower than alone, over the "
        "accepted 1.5."
    )
    assert told in some
    assert "2 ran in the pack of 54 (60/1, 60/2)." in some
    assert "csub report 60 --detail" in some
    mail = render_mail([host, own], "60")
    assert mail.startswith(told)
    assert "54/1" not in mail
    assert tell_headline([host], {"60/1", "60/2"}).endswith("All 2 ran in the pack of 54.")
    one = tell_headline([host], {"60/2"})
    assert "; it took 6.0 s of GPU time instead of 15 s alone " in one
    assert "(2.4 times the work per GPU hour). It ran in" in one
    assert one.endswith("It ran in the pack of 54.")
    assert "the pack of" not in tell_headline([host], {"54/1", "54/2"})


def test_the_parts_of_a_pack_add_up_to_its_gain() -> None:
    summary = make_summary(4, [1.2, 1.3, 1.4, 1.65])
    # One came later, one went earlier.
    summary["members"][0]["started_at"] += 6
    summary["members"][3]["ended_at"] -= 9
    parts = [compute_part_gain([summary], [member]) for member in summary["members"]]
    serial_s, shared_s = compute_gain([summary])
    assert sum(serial or 0 for serial, _ in parts) == pytest.approx(serial_s)
    assert sum(part_s for _, part_s in parts) == pytest.approx(shared_s)
    assert compute_part_gain([summary], summary["members"]) == pytest.approx((serial_s, shared_s))
    assert parts[0][1] < parts[1][1]


def test_what_is_not_known_of_one_leaves_the_gain_out() -> None:
    summary = make_summary(4)
    summary["members"][1]["solo_time_s"] = None
    told = tell_headline([summary], {"54/1", "54/2"})
    assert "instead of" not in told
    assert "instead of 29 s one after" in tell_headline([summary], {"54/1", "54/3"})
    summary["members"][1]["ended_at"] = summary["members"][1]["started_at"] + 4
    assert "instead of" not in tell_headline([summary], {"54/1", "54/2"})
    # What was there for a moment alone would have been there for as long.
    summary["members"][1]["ended_at"] = summary["members"][1]["started_at"] + 1
    assert "instead of 16 s one after" in tell_headline([summary], {"54/1", "54/2"})


def test_before_anything_has_started_that_is_said() -> None:
    summary = make_summary(2)
    for member in summary["members"]:
        member |= {"started_at": None, "state": "PENDING", "starts": 0}
    waiting: Any = {**summary, "window": None, "final": False}
    assert tell_headline([waiting]) == "None of the 2 jobs has started yet."
    summary["members"][0] |= {"state": "RUNNING", "starts": 1}
    assert tell_headline([waiting]) == "1 of 2 jobs has just started; nothing is measured yet."
    for member in summary["members"]:
        member |= {"state": "CANCELLED", "starts": 0}
    waiting["final"] = True
    assert tell_headline([waiting]) == (
        "None of the 2 jobs was ever started. All 2 were cancelled (54/1, 54/2)."
    )


def test_nothing_that_a_user_wrote_is_in_the_sentence() -> None:
    summary = make_summary(3)
    for member in summary["members"]:
        member |= {"name": "\x1b[31mEVIL", "script": "EVIL", "arguments": ["EVIL"]}
    summary["name"] = "EVIL"
    assert "EVIL" not in tell_headline([summary])


def test_members_are_named_as_csub_takes_them() -> None:
    notes = [
        advice.say() for advice in list_advice([make_summary(7, [1.9] * 3 + [1.1] + [1.9] * 3)])
    ]
    assert notes[0].startswith("54/1-3,5-7 ran more than the accepted 1.5 times slower")
    assert "--degree=6" in notes[0]


def test_each_column_of_the_table_is_explained() -> None:
    summary = make_summary(2, 1.2)
    summary["members"][0]["mig"] = {"planned": None, "profile": "3g.40gb", "uuid": None,
                                       "memory_mb": None, "shared_by": None}  # fmt: skip
    head = render_reports([(summary, None)], 200).splitlines()
    (line,) = [text for text in head if text.startswith("MEMBER")]
    assert "INSTANCE" in line
    for word in line.split():
        if word not in ("DOWN", "WAIT", "GPU"):
            assert find_word(word) is not None, word
    for word in ("STP", "antt", "Fairness", "gpu sm", "data wait", "slowdown", "mps", "modelled"):
        assert "Means:" in explain_word(word)
    assert all(text.endswith(".") for text in WORDS.values())


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        ([("--lr", "0.1"), ("--lr", "0.2")], ["--lr 0.1", "--lr 0.2"]),
        (
            [("--data", "/scratch/images/of/cats", "--lr", x) for x in ("1", "2")],
            ["... --lr 1", "... --lr 2"],
        ),
        ([("a b", "$x"), ("c",)], ["'a b' '$x'", "c"]),
        ([("same",), ("same",)], ["same", "same"]),
        ([(), ()], ["", ""]),
        ([], []),
        ([("long-common-argument-of-all", "x"), ("long-common-argument-of-all",)],
         ["... x", "..."]),
        ([("--an-option-that-is-long", x) for x in ("1", "2")],
         ["--an-option-that-is-long 1", "--an-option-that-is-long 2"]),
    ],
)  # fmt: skip
def test_arguments_show_what_differs(calls: list[tuple[str, ...]], shown: list[str]) -> None:
    assert show_arguments(calls) == shown
