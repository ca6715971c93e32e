"""Values, tables and placeholders: what is written comes back as it was, whatever it is."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import build_parameter_variable, check_parameter_name, meets
from slurm_colloc.submission.jobs import table_rows
from slurm_colloc.submission.jobs.job_options import Filler, keep_literally
from slurm_colloc.submission.jobs.sweep_jobs import read_swept_arguments
from slurm_colloc.submission.jobs.table_formats import (
    ParameterSetting,
    build_axis,
    combine,
    decode_table,
    list_numbers,
    parse_table,
    split_values,
)
from slurm_colloc.submission.jobs.table_rows import hash_cells

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
# Cells are stripped, and an empty one says nothing.
TEXTS = st.text(
    st.characters(
        codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Cs"], include_characters="\n"
    ),
    min_size=1,
).filter(lambda text: text == text.strip() and "\ufeff" not in text)
TABLES = st.lists(NAMES, min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.lists(
        st.fixed_dictionaries(dict.fromkeys(names, TEXTS)), min_size=1, max_size=5
    )
)


def read(text: str, name: str) -> list[dict[str, str]]:
    data = text.encode()
    return [dict(s.values) for s in combine(parse_table(decode_table(data, name), name))]


@given(TABLES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_table_comes_back_from_csv(rows: list[dict[str, str]], end: str, has_mark: bool) -> None:
    file = io.StringIO()
    # All cells quoted: a comma more in them than in the head would be taken for what divides.
    writer = csv.DictWriter(file, rows[0], lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    mark = "\ufeff" if has_mark else ""
    assert read(mark + file.getvalue(), "t.csv") == rows


@given(TABLES)
def test_a_table_comes_back_from_json_lines_and_yaml(rows: list[dict[str, str]]) -> None:
    lines = "\n".join(json.dumps(row) for row in rows)
    assert read(lines, "t.jsonl") == rows
    assert read(json.dumps(rows), "t.json") == rows
    assert read(yaml.safe_dump(rows, allow_unicode=True), "t.yaml") == rows


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_numbers_keep_their_digits(number: float, whole: int) -> None:
    text = repr(number)
    assert read(f"- a: {text}\n  b: {whole}\n", "t.yml") == [{"a": text, "b": str(whole)}]
    assert read(f'{{"a": {text}, "b": {whole}}}', "t.jsonl") == [{"a": text, "b": str(whole)}]


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_grid_has_each_combination_once_in_order(lists: list[list[str]]) -> None:
    axes = [build_axis(f"p{at}", values, "here") for at, values in enumerate(lists)]
    found = [tuple(value for _, value in setting.values) for setting in combine(axes)]
    assert found == list(itertools.product(*lists))
    count = max(1, math.prod(map(len, lists)) // 2)
    drawn = [tuple(v for _, v in s.values) for s in combine(axes, sample=(count, 1))]
    assert len(drawn) == count
    places = iter(found)
    assert all(entry in places for entry in drawn), "in their order"


@given(st.lists(st.from_regex(r"[A-Za-z0-9_./=-]{1,8}", fullmatch=True), min_size=2, max_size=5))
def test_values_divided_by_commas_come_back(values: list[str]) -> None:
    assert split_values(",".join(values)) == values
    quoted = ",".join(f'"{value},{value}"' for value in values)
    assert split_values(quoted) == [f"{value},{value}" for value in values]
    assert split_values(rf"{values[0]}\,{values[1]}") == [f"{values[0]},{values[1]}"]


@given(st.text())
def test_any_text_is_a_list_of_values_or_refused(text: str) -> None:
    try:
        values = split_values(text)
    except ValueError:
        return
    assert values


@given(st.lists(st.text(st.characters(exclude_characters=",:\0"), max_size=12), max_size=6))
def test_arguments_without_lists_stay_as_they_are(words: list[str]) -> None:
    if "--" in words or any(w.partition("=")[0] in ("--zip", "--sample", "--from", "--dry-run")
                            for w in words):  # fmt: skip
        return
    assert read_swept_arguments(words).words == tuple(words)


@given(st.text())
def test_what_is_kept_literally_comes_back(text: str) -> None:
    assert Filler({}, "here").fill(keep_literally(text)) == text


@given(NAMES, TEXTS)
def test_a_placeholder_takes_its_value_whatever_is_in_it(name: str, value: str) -> None:
    filler = Filler({name: value}, "here")
    assert filler.fill(f"a{{{name}}}b{{{{{name}}}}}") == f"a{value}b{{{name}}}"
    assert filler.taken == {name}


@given(NAMES)
def test_each_name_of_a_parameter_is_a_variable(name: str) -> None:
    check_parameter_name(name)
    assert build_parameter_variable(name).isascii()
    assert build_parameter_variable(name).replace("_", "a").isalnum()


@given(TABLES)
def test_rows_are_known_by_what_stands_in_them(rows: list[dict[str, str]]) -> None:
    def compute(row: dict[str, str]) -> str:
        return hash_cells(ParameterSetting(tuple(row.items()), ""))

    for row in rows:
        backwards = dict(reversed(row.items()))
        assert compute(row) == compute(backwards)
        assert compute(row) != compute({**row, "more": "x"})
    assert len({compute(row) for row in rows}) == len({frozenset(row.items()) for row in rows})


@given(st.binary(max_size=200))
@pytest.mark.parametrize("name", ["t.csv", "t.yaml", "t.toml", "t.json", "t.jsonl", "t.tsv"])
def test_any_bytes_are_a_table_or_one_sentence(name: str, data: bytes) -> None:
    told = name
    try:
        parse_table(decode_table(data, name), name)
    except UsageProblem as problem:
        told = str(problem)
    assert told.startswith(name)


def test_conditions_compare_numbers_as_numbers() -> None:
    own = (("lr", "0.10"), ("name", "a"))
    assert meets(own, (("lr", "1e-1"),))
    assert meets(own, (("lr", "0.2"), ("lr", "0.1")))
    assert not meets(own, (("lr", "0.1"), ("name", "b")))
    assert not meets(own, (("bs", "1"),))


def test_radts_workloads_on_mig_name_the_instance_of_each_row() -> None:
    rows = [
        ParameterSetting((("Experiment", "0"), ("Workload", "4"), ("File", "a.py"),
                 ("Collocation", word)), f"t.csv:{at}")
        for at, word in enumerate(("3g.20gb", "3g.20GB"), start=2)
    ]  # fmt: skip
    (workload,) = table_rows.group_workloads(rows, given=frozenset(), folder="/data")
    assert {dict(row.values)["share"] for row in workload.settings} == {"mig=3g.20gb+3g.20gb"}
    mixed = [rows[0], ParameterSetting(rows[1].values[:-1], "t.csv:3")]
    with pytest.raises(UsageProblem, match="other rows of its workload have none"):
        table_rows.group_workloads(mixed, given=frozenset(), folder="/data")


def test_numbers_of_many_leave_room_for_packs() -> None:
    assert list_numbers(500)[0] == 1
    assert (list_numbers(501)[0], list_numbers(501)[-1]) == (10001, 10501)
