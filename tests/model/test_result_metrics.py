"""`--metric`: what it finds in a line, what it refuses, and what is a number."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.result_metrics import (
    EXPRESSION_MOST,
    METRICS_MOST,
    is_less_better,
    parse_metric,
    parse_metrics,
    parse_number,
)


@pytest.mark.parametrize(
    ("expression", "line", "found"),
    [
        ("loss", "step 3 loss: 0.25, acc 0.9", [("loss", "0.25")]),
        ("loss", "{'loss': 1.5e-3, 'val_loss': 9}", [("loss", "1.5e-3")]),
        ("loss", "loss=nan", [("loss", "nan")]),
        ("loss", "train/loss 3 my_loss 4 losses 5 loss x", []),
        ("val/top1", "val/top1 = 71.25%", [("val/top1", "71.25")]),
        ("loss=(?P<value>[0-9.]+)", "loss=0.5 loss=0.4", [("loss", "0.5"), ("loss", "0.4")]),
        (r"^accuracy: (?P<value>\S+)", "accuracy: 0.9", [("accuracy", "0.9")]),
        (r"epoch \d+ (?P<loss>\S+) (?P<acc>\S+)", "epoch 3 1 2", [("loss", "1"), ("acc", "2")]),
        (r"(?P<a>a\d)|(?P<b>b\d)", "a1 b2", [("a", "a1"), ("b", "b2")]),
    ],
)
def test_an_expression_names_its_metric_and_finds_its_number(
    expression: str, line: str, found: list[tuple[str, str]]
) -> None:
    assert list(parse_metric(expression).search(line)) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("loss=(", "it is not a regular expression of Python's: missing )"),
        ("loss=.*", "it does not say which part is the number"),
        (r"\S+ (?P<value>\S+)", "its group 'value' has no name"),
        ("x" * 101, "its name has 101 characters, and may have 100"),
        ("y" * (EXPRESSION_MOST + 1), f"may have {EXPRESSION_MOST}"),
        ("\n".join(f"m{n}" for n in range(METRICS_MOST + 1)), f"and may be {METRICS_MOST}"),
        (
            "".join(f"(?P<m{n}>x)?" for n in range(METRICS_MOST + 1)),
            "17 named groups, and may have",
        ),
        ("loss\n(", "it is not a regular expression"),
    ],
)
def test_what_is_no_metric_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        parse_metrics(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.25", 0.25), (" -1e-3 ", -0.001), ("7", 7.0), (".5", 0.5), ("3.", 3.0), ("+2E2", 200.0)],
)
def test_a_number_is_read(text: str, value: float) -> None:
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text", ["", "0.25,", "1_000", "0x10", "1e", "1,5", "٣", "0.2.5", "1e9999 x", "--1", "9" * 81]
)
def test_what_is_not_quite_a_number_is_none(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-inf", "Infinity", "1e999"])
def test_what_is_not_finite_is_known_as_that(text: str) -> None:
    value = parse_number(text)
    assert value is not None
    assert math.isnan(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_python_prints_of_a_float_is_read_back(value: float) -> None:
    assert parse_number(repr(value)) == value


@pytest.mark.parametrize(
    ("name", "less"),
    [
        ("loss", True), ("val_loss", True), ("evalLoss", True), ("test/WER", True), ("rmse", True),
        ("accuracy", False), ("val/top1", False), ("f1", False), ("mean_reward", False),
        ("epoch", None), ("lr", None), ("lossy", None), ("", None),
    ],
)  # fmt: skip
def test_the_name_says_what_is_better(name: str, less: bool | None) -> None:
    assert is_less_better(name) is less
