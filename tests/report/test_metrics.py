"""Results of members: read from what they print, joined with what they report, the best first."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.report import load_packs
from slurm_colloc.report.data_tables import render_csv
from slurm_colloc.report.member_summary import BYTES_MOST
from slurm_colloc.report.report_view import Ranking, choose_ranking, render_reports
from slurm_colloc.report.summary_file import fits_summary
from slurm_colloc.store.pack_directory import read_spec, write_spec
from slurm_colloc.store.report_files import keep_metrics, keep_own_outputs

from .generated import Truth, build_summary, make_pack
from .test_data import set_arguments

EVIL = "\x1b]0;evil\x07\u202e<b>"


class Sweep:
    """A pack of three trainings that have ended, each with an output file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pack = make_pack(root, [Truth(n, 0, 60, lambda _: 9) for n in (1, 2, 3)])
        for number in (1, 2, 3):
            set_arguments(self.pack, number, "--lr", f"0.{number}")

    def member(self, number: int) -> Path:
        return self.pack / "members" / f"{number:04d}"

    def ask(self, *metrics: str, numbers: Sequence[int] = (1, 2, 3)) -> None:
        for number in numbers:
            spec = read_spec(self.pack, number)
            assert spec is not None
            job = dataclasses.replace(spec.job, metrics=metrics)
            write_spec(self.member(number), dataclasses.replace(spec, job=job))

    def print(self, number: int, text: str, *, begin: int = 0) -> Path:
        path = self.root / f"{number}.out"
        path.write_text(text)
        keep_own_outputs(self.member(number), [(str(path), begin)])
        return path

    def report(self, number: int, values: dict[str, Any], process: int = 1) -> None:
        start = self.root / "progress" / f"{number:04d}.1"
        start.mkdir(parents=True, exist_ok=True)
        (start / f"{process}.1.metrics").write_text(json.dumps(values))
        keep_metrics(str(start.parent), self.pack)

    def summarise(self) -> Any:
        summary = build_summary(self.pack, self.root)
        assert fits_summary(json.loads(json.dumps(summary)))
        return summary

    def read(self) -> list[dict[str, Any]]:
        return [member["metrics"] for member in self.summarise()["members"]]

    def read_notes(self, number: int) -> list[str]:
        notes: list[str] = self.summarise()["members"][number - 1]["notes"]
        return [note for note in notes if "metric" in note or "result" in note]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


def test_what_a_member_prints_is_its_result(sweep: Sweep) -> None:
    sweep.ask("loss", r"val (?P<acc>\S+)")
    sweep.print(1, "loss 2\rloss 0.5\nval 0.9\nloss: 0.75\n")
    sweep.print(2, "loss nan\n")
    printed = {"last": 0.75, "least": 0.5, "greatest": 2.0, "source": "printed"}
    first, second, third = sweep.read()
    assert first["loss"] == printed
    assert first["acc"]["last"] == 0.9
    assert second == {"loss": {**printed, "last": None, "least": None, "greatest": None}}
    assert third == {}
    assert sweep.read_notes(2) == ["acc unknown: its --metric matched none of 1 line of output"]
    assert sweep.read_notes(3) == [
        "loss unknown: its --metric matched none of 0 lines of output",
        "acc unknown: its --metric matched none of 0 lines of output",
    ]


def test_what_lay_in_the_file_before_is_not_its_result(sweep: Sweep) -> None:
    sweep.ask("loss")
    old = "loss 0.001\n"
    sweep.print(1, f"{old}loss 3\n", begin=len(old))
    # A later start of the same member goes on behind what the first has written.
    keep_own_outputs(sweep.member(1), [(str(sweep.root / "1.out"), 10_000)])
    sweep.print(2, "loss 4\n", begin=10_000)
    first, second, _ = sweep.read()
    assert (first["loss"]["least"], first["loss"]["last"]) == (3, 3)
    assert second["loss"]["last"] == 4, "it was emptied meanwhile"


def test_of_a_long_output_the_end_is_read(sweep: Sweep) -> None:
    sweep.ask("loss")
    sweep.print(1, "loss 9\n" + "x" * BYTES_MOST + "\nloss 1\n")
    assert sweep.read()[0]["loss"]["greatest"] == 1


def test_what_is_no_number_is_told_and_harmless(sweep: Sweep) -> None:
    sweep.ask(r"loss=(?P<value>.*)")
    sweep.print(1, f"loss={EVIL}\n")
    assert sweep.read()[0] == {}
    (note,) = sweep.read_notes(1)
    assert note.startswith("loss unknown: its --metric found '\\x1b]0;evil")
    assert note.endswith("', which is not a number")
    assert note.isprintable()


def test_an_expression_that_takes_for_ever_ends(sweep: Sweep) -> None:
    sweep.ask(r"(?P<loss>(a+)+)$", numbers=[1])
    sweep.print(1, "a" * 60 + "b\n")
    (note,) = sweep.read_notes(1)
    assert note.startswith("--metric took more than 0.5 s on its output")


def test_only_files_of_the_pack_s_owner_are_read(sweep: Sweep) -> None:
    sweep.ask("loss")
    path = sweep.print(1, "loss 1\n")
    assert sweep.read()[0]["loss"]["last"] == 1
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        assert sweep.read()[0] == {}
    path.unlink()
    os.mkfifo(path)
    assert sweep.read()[0] == {}


def test_expressions_that_were_changed_after_submission_end_nothing(sweep: Sweep) -> None:
    sweep.ask("(", "", "loss")
    sweep.print(1, "loss 1\n")
    assert list(sweep.read()[0]) == ["loss"]


def test_another_thread_reads_none_and_says_so(sweep: Sweep) -> None:
    sweep.ask("loss")
    sweep.print(1, "loss 1\n")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(sweep.summarise()))
    thread.start()
    thread.join()
    member = found[0]["members"][0]
    assert member["metrics"] == {}
    assert any("what it printed is read only by csub itself" in note for note in member["notes"])


def test_what_is_printed_counts_more_than_what_is_logged(sweep: Sweep) -> None:
    sweep.ask("loss", numbers=[1])
    sweep.print(1, "loss 1\n")
    entry = [2, 2, 2, "mlflow", 5.0]
    sweep.report(1, {"acc": entry, "loss": entry})
    sweep.report(2, {"loss": entry})
    sweep.report(2, {"loss": [3, 3, 3, "python", 4.0]}, process=2)
    first, second, _ = sweep.read()
    assert list(first) == ["loss", "acc"]
    assert (first["loss"]["source"], first["acc"]["source"]) == ("printed", "mlflow")
    assert second["loss"] == {"last": 2, "least": 2, "greatest": 3, "source": "mlflow"}


def test_a_damaged_file_of_results_is_told(sweep: Sweep) -> None:
    sweep.report(1, {"loss": [1, 1, 1, "python", 1.0]})
    (sweep.pack / "report" / "metrics.json").write_text("{")
    assert sweep.read() == [{}, {}, {}]
    (note,) = sweep.read_notes(1)
    assert "results that it has reported cannot be read" in note


def test_csv_and_frames_have_results_as_columns_the_best_first(sweep: Sweep) -> None:
    for number, loss in ((1, 0.5), (2, 0.125), (3, None)):
        least = None if loss is None else 0.1
        values = {"epoch": [3, 1, 3, "wandb", 1.0], "val/loss": [loss, least, least, "wandb", 1.0]}
        sweep.report(number, {**values, EVIL: [7, 7, 7, "python", 1.0]})
    found = [(sweep.summarise(), None)]
    rows = list(csv.DictReader(io.StringIO(render_csv(found))))
    assert [(row["member"], row["metric.val/loss"]) for row in rows] == [
        ("4711/2", "0.125"), ("4711/1", "0.5"), ("4711/3", ""),
    ]  # fmt: skip
    assert rows[0]["metric.epoch"] == "3.0"
    assert all(head.isprintable() for head in rows[0])
    worst = csv.DictReader(io.StringIO(render_csv(found, "max:val/loss")))
    assert [row["member"] for row in worst] == ["4711/1", "4711/2", "4711/3"]
    frames = load_packs(state_dir=sweep.root)
    assert frames.members["metric_val/loss"].tolist()[:2] == [0.5, 0.125]
    assert frames.members["metric_val/loss"].isna().tolist() == [False, False, True]


def test_the_table_has_the_result_by_which_it_is_ordered(sweep: Sweep) -> None:
    for number, loss in ((1, 0.5), (2, 0.125), (3, None)):
        sweep.report(number, {"epoch": [3, 3, 3, "wandb", 1.0],
                              "loss": [loss, loss, loss, "wandb", 1.0]})  # fmt: skip
    text = render_reports([(sweep.summarise(), None)], 90)
    lines = [line for line in text.splitlines() if line.startswith("4711/")]
    values = (("4711/2", "0.125"), ("4711/1", "0.5"), ("4711/3", "not finite"))
    for line, (who, value) in zip(lines, values, strict=True):
        assert line.startswith(who)
        assert f" {value} COMPLETED" in line
    sweep.report(1, {EVIL: [1, 1, 1, "python", 1.0]})
    styled = render_reports([(sweep.summarise(), None)], 200, styled=True)
    assert "evil" in styled
    assert "\x1b]0" not in styled
    assert "\u202e" not in styled
    assert "epoch" not in text
    assert "epoch" in render_reports([(sweep.summarise(), None)], 160)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("nosuch", "no member has the metric 'nosuch'"),
        ("epoch", "it is not known whether small or large values of 'epoch' are better"),
        ("min:", "no member has the metric 'min:'"),
    ],
)
def test_an_order_that_is_not_known_is_refused(wanted: str, said: str) -> None:
    entry = {"last": 1.0, "least": 1.0, "greatest": 1.0, "source": "python"}
    members: list[Any] = [
        {"metrics": {"epoch": entry, "loss": entry}}, {"metrics": {}},
    ]  # fmt: skip
    with pytest.raises(UsageProblem, match=said):
        choose_ranking(members, wanted)
    assert choose_ranking(members) == Ranking("loss", True)
    assert choose_ranking(members, "max:epoch") == Ranking("epoch", False)
    assert choose_ranking(members[1:]) is None
