"""csub sweep: jobs of a script that differ in their parameters, on a fake Slurm."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import check_refused, list_jobs

SHARE = ("--gres=gpu:1", "--time=5", "--share=timeslice", "--mem=100M", "-c1")
PRINTS = 'echo "args $*"; env | grep ^SLURM_COLLOC_PARAM_ | sort; echo $SLURM_COLLOC_CHECKPOINT'


def show(user: CsubUser, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(user.csub(*words, "--json").stdout)
    return rows


def sweep(user: CsubUser, *words: str) -> str:
    return user.csub("sweep", "--parsable", *SHARE, *words).stdout.strip()


def test_a_grid_is_one_submission_whose_members_know_their_parameters(user: CsubUser) -> None:
    user.script("train.sh", PRINTS)
    job_id = sweep(user, "train.sh", "--lr", "0.1,0.20", "--seed=0:2", "--epochs", "3")
    user.finish(job_id)
    rows = {row["member"]: row for row in show(user, "queue", "--all", job_id)}
    found = [rows[f"{job_id}/{number}"]["parameters"] for number in range(1, 5)]
    assert found == [
        {"lr": "0.1", "seed": "0"}, {"lr": "0.1", "seed": "1"},
        {"lr": "0.20", "seed": "0"}, {"lr": "0.20", "seed": "1"},
    ]  # fmt: skip
    assert rows[f"{job_id}/3"]["arguments"] == ["--lr", "0.20", "--seed=0", "--epochs", "3"]
    assert user.csub("logs", f"{job_id}/3").stdout.splitlines() == [
        "args --lr 0.20 --seed=0 --epochs 3",
        "SLURM_COLLOC_PARAM_LR=0.20",
        "SLURM_COLLOC_PARAM_SEED=0",
        f"{job_id}_3",
    ]
    table = user.csub("queue", "--all", job_id).stdout
    assert "ARGS" in table
    assert "lr=0.20 seed=1" in table
    assert "lr=0.20 seed=1" in user.csub("history", job_id).stdout
    assert "lr=0.20 seed=1" in user.csub("show", f"{job_id}/4").stdout
    assert "lr=0.20 seed=1" in user.csub("report", job_id).stdout


def test_where_chooses_members_by_their_parameters(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    job_id = sweep(user, "train.sh", "--lr", "0.1,0.2", "--bs", "32,64")
    chosen = show(user, "queue", "--where", "lr=0.10", "--where", "bs=64")
    assert [row["member"] for row in chosen] == [f"{job_id}/2"]
    user.csub("cancel", "--where", "lr=0.2", job_id)
    slurm.go_on()
    states = {name: row["state"] for name, row in user.finish(job_id).items()}
    assert [number for number in states if states[number] == "CANCELLED"] == [3, 4]
    check_refused(
        user, ("queue", "--where", "lr"), 2,
        "--where: 'lr' is not a condition: write NAME=VALUE, as in lr=0.1",
    )  # fmt: skip


def test_placeholders_take_values_in_arguments_names_and_files(user: CsubUser) -> None:
    user.script("train.sh", PRINTS)
    (user.home / "p.csv").write_bytes(b"\xef\xbb\xbflr,note\r\n0.1,a b\r\n\r\n0.2,'c\r\n")
    job_id = sweep(
        user, "-J", "run-{lr}", "-o", "out-{lr}.txt", "--from=p.csv", "train.sh", "-l", "{lr}",
        "{note}", "{{lr}}",
    )  # fmt: skip
    user.finish(job_id)
    assert {row["name"] for row in show(user, "queue", "--all", job_id)} == {"run-0.1", "run-0.2"}
    texts = {path.name: path.read_text() for path in user.home.glob("out-*.txt")}
    assert texts["out-0.1_1.txt"].startswith("args -l 0.1 a b {lr}\n")
    assert texts["out-0.2_2.txt"].startswith("args -l 0.2 'c {lr}\n")


def test_a_command_takes_values_as_single_words(user: CsubUser) -> None:
    (user.home / "p.jsonl").write_text('{"lr": 0.10, "note": "a; touch oops"}\n')
    job_id = sweep(user, "--from=p.jsonl", "--wrap", "echo {lr} {note}")
    user.finish(job_id)
    assert user.csub("logs", job_id).stdout == "0.10 a; touch oops\n"
    assert not (user.home / "oops").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.yaml", "lr: [0.10, 1e-3]\nbs: [32]\n"),
        ("p.yaml", "- {lr: 0.10, bs: 32}\n- {lr: 1e-3, bs: 32}\n"),
        ("p.toml", 'bs = 32\n[[run]]\nlr = 0.10\n[[run]]\nlr = "1e-3"\n'),
        ("p.json", '[{"lr": 0.10, "bs": 32}, {"lr": 1e-3, "bs": 32}]'),
        ("p.tsv", "lr\tbs\n0.10\t32\n1e-3\t32\n"),
    ],
)
def test_every_format_keeps_values_as_they_were_written(
    user: CsubUser, name: str, text: str
) -> None:
    user.script("train.sh", "exit 0")
    (user.home / name).write_text(text)
    dry = user.csub("sweep", "--dry-run", *SHARE, f"--from={name}", "train.sh").stdout
    assert "--lr 0.10" in dry
    assert "--lr 1e-3" in dry
    assert dry.count("--bs 32") == 2
    assert list_jobs(user) == []


def test_zip_goes_along_and_sample_draws_the_same_each_time(user: CsubUser) -> None:
    user.script("train.sh", "exit 0")

    def count(*words: str) -> list[str]:
        lines = user.csub("sweep", "--dry-run", *SHARE, *words).stdout.splitlines()
        return [line for line in lines if "train.sh --" in line]

    zipped = count("--zip", "train.sh", "--lr", "0.1,0.2", "--bs", "32,64")
    assert [line.split("train.sh ")[-1] for line in zipped] == [
        "--lr 0.1 --bs 32", "--lr 0.2 --bs 64",
    ]  # fmt: skip
    large = ("train.sh", "--a", "0:1000", "--b", "0:1000", "--c", "0:1000")
    assert len(count("--sample=7", *large)) == 7
    assert count("--sample=7", *large) == count("--sample=7", *large)
    assert count("--sample=7", *large) != count("--sample=7:1", *large)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train.sh", "--epochs", "3"), "there is nothing to sweep"),
        (("train.sh", "--lr", "1,,2"), "--lr: '1,,2' has an empty value among its commas"),
        (("train.sh", "--lr", "5:5"), "--lr: '5:5' is a range without numbers"),
        (("train.sh", "--lr", "[1,2"), "has a bracket or a quote without its other half"),
        (("train.sh", "--lr", "1,2", "--lr=3,4"),
         "the parameter lr is given twice: the command line: leave one of them out"),
        (("train.sh", "--a.b", "1,2", "--a_b", "1,2"), "would be one variable in the environment"),
        (("--zip", "train.sh", "--a", "1,2", "--b", "1,2,3"), "a has 2 values, b has 3"),
        (("--sample=0", "train.sh", "--a", "1,2"), "a number of at least 1 is needed"),
        (("train.sh", "--a", "0:1000", "--b", "0:1000"), "a sweep of 1000000 jobs: one call takes"),
        (("train.sh", "--a", "1,2", "--dry-run"), "--dry-run stands behind the script"),
        (("train.sh", "--a", "1,2", "{b}"), "there is no such parameter: write {{b}}"),
        (("train.sh", "{b}", "--a", "1,2", "--b", "1-9"), "--b 1-9 is a single value"),
        (("--from=no.csv", "train.sh"), "cannot read the table no.csv: No such file or directory"),
        (("--from=twice.csv", "train.sh"), "twice.csv:1: two columns are called lr"),
        (("--from=short.csv", "train.sh"), "short.csv:3: 1 cells, and the header has 2"),
        (("--from=latin.csv", "train.sh"), "latin.csv:2: the byte 0xe9 is not UTF-8"),
        (("--from=binary.csv", "train.sh"), "binary.csv is not a table: it holds NUL bytes"),
        (("--from=utf16.csv", "train.sh"), "utf16.csv is written in UTF-16: save it as UTF-8"),
        (("--from=twice.yaml", "train.sh"), "twice.yaml:2: lr stands there twice"),
        (("--from=deep.yaml", "train.sh"), "deep.yaml, lr: a value must be a text or a number"),
        (("--from=null.json", "train.sh"), "a value must be a text or a number, not null"),
        (("--from=null.yaml", "train.sh"), "null.yaml, lr: a value must be a text or a number,"),
        (("--from=bad.toml", "train.sh"), "bad.toml is not TOML"),
        (("--from=empty.csv", "train.sh"), "empty.csv has no rows"),
        (("--from=table.txt", "train.sh"), "table.txt: its name does not say which format it has"),
        (("--from=many.csv", "train.sh"), "many.csv has 100000 rows: one call takes"),
        (("--from=good.csv", "train.sh", "{lr}"), "good.csv:2: no placeholder takes the"),
        (("--array=1-3", "train.sh", "--a", "1,2"), "csub sweep takes no --array"),
        (("--resume", "train.sh", "--a", "1,2"), "--resume is an option of csub batch alone"),
    ],
)  # fmt: skip
def test_a_wrong_sweep_is_one_sentence_and_nothing_is_submitted(
    user: CsubUser, words: tuple[str, ...], sentence: str
) -> None:
    user.script("train.sh", "exit 0")
    files = {
        "twice.csv": b"lr,lr\n1,2\n", "short.csv": b"lr,bs\n1,2\n3\n",
        "latin.csv": b"lr\ncaf\xe9\n", "binary.csv": b"lr\n\0\n",
        "utf16.csv": "lr\n1\n".encode("utf-16"), "twice.yaml": b"lr: [1]\nlr: [2]\n",
        "deep.yaml": b"lr: [[1, 2], [3]]\n", "null.json": b'[{"lr": null}]',
        "null.yaml": b"lr: [1, ~]\n",
        "bad.toml": b"lr = [1,", "empty.csv": b"lr,bs\n", "table.txt": b"lr\n1\n",
        "good.csv": b"lr,bs\n1,2\n", "many.csv": b"lr\n" + b"1\n" * 100_000,
    }  # fmt: skip
    for name, data in files.items():
        (user.home / name).write_bytes(data)
    refused = user.csub("sweep", *SHARE, *words, check=False)
    assert refused.returncode == 2, refused
    assert sentence in refused.stderr
    assert refused.stderr.startswith("csub: error: ")
    assert refused.stderr.count("\n") == 1
    assert list_jobs(user) == []
    assert not (user.state / "packs").exists()


def test_plain_csub_refuses_the_options_of_a_sweep(user: CsubUser) -> None:
    user.script("train.sh", "exit 0")
    check_refused(
        user, ("--zip", "train.sh"), 2,
        "the command line: --zip is an option of csub sweep alone: csub sweep --help",
    )  # fmt: skip
    for command in ("plan", "probe", "notebook"):
        told = user.csub(command, "--sample=3", *SHARE, *("train.sh",) * (command != "notebook"),
                         check=False)  # fmt: skip
        assert "--sample is an option of csub sweep alone" in told.stderr, command
    assert list_jobs(user) == []


@pytest.mark.long
def test_forty_configurations_become_a_csv_and_what_failed_is_tried_again(user: CsubUser) -> None:
    """The page for researchers tells it so: configs.yaml, sweep, retry, report."""
    user.script(
        "train.sh",
        '[ "$SLURM_COLLOC_PARAM_LR" != 1.0 ] || [ -e fixed ] || exit 3',
    )
    rates = "[0.001, 0.003, 0.01, 0.03, 1.0]"
    (user.home / "configs.yaml").write_text(
        f"lr: {rates}\nbatch_size: [32, 64]\nseed: [0, 1, 2, 3]\n"
    )
    ended = user.csub("sweep", "--wait", *SHARE, "--from=configs.yaml", "train.sh", check=False)
    assert ended.returncode == 3
    (user.home / "fixed").touch()
    tried = user.csub("retry", "last", "--wait")
    assert tried.returncode == 0, tried
    printed = user.csub("report", "last", "--csv", "--state", "COMPLETED").stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    found = {(row["param.lr"], row["param.batch_size"], row["param.seed"]) for row in rows}
    assert len(rows) == len(found) == 40
    assert {row["state"] for row in rows} == {"COMPLETED"}
    again = [row for row in rows if row["retry_of"]]
    assert {row["param.lr"] for row in again} == {"1.0"}
    assert len(again) == 8


def test_the_page_for_researchers_shows_that_way() -> None:
    page = (Path(__file__).parents[2] / "docs" / "researchers.md").read_text()
    for command in ("csub sweep", "--from=configs.yaml", "csub retry last", "report last --csv"):
        assert command in page
