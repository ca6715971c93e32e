"""The words of a MIG layout."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.comment_token import LAYOUT, LAYOUT_MAX_CHARACTERS, WORD
from slurm_colloc.model.mig_layout import (
    LayoutWord,
    group_words,
    parse_layout,
    render_layout,
    resolve,
)
from slurm_colloc.model.mig_profiles import MIG_TABLES

H100 = MIG_TABLES["H100-80"]


def _try(text: str) -> tuple[UsageProblem | None, tuple[LayoutWord, ...]]:
    try:
        return None, parse_layout(text)
    except UsageProblem as problem:
        return problem, ()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("3g+2g+1g+1g", ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]),
        ("3g.40gb+1g.20gb", ["3g.40gb", "1g.20gb"]),
        ("1g.10gb+me+2g", ["1g.10gb+me", "2g.20gb"]),
        ("1g+me", ["1g.10gb+me"]),
        ("3c.7g+4c.7g", ["7g.80gb"]),
        ("3c.7g.80gb+1c.7g.80gb+1c.7g.80gb", ["7g.80gb"]),
        ("1c.3g+1c.3g+1c.3g+1c.3g", ["3g.40gb", "3g.40gb"]),
        ("1c.2g+2g", ["2g.20gb", "2g.20gb"]),
        ("7g", ["7g.80gb"]),
    ],
)
def test_words_name_profiles_of_the_gpu(text: str, names: list[str]) -> None:
    words = parse_layout(text)
    assert render_layout(words) == text
    assert [profile.name for profile in resolve(words, H100)] == names


@given(st.lists(st.from_regex(WORD, fullmatch=True), min_size=1, max_size=7))
def test_every_word_of_the_pattern_is_read_or_refused_and_written_back(words: list[str]) -> None:
    text = "+".join(words)
    assert len(text) <= LAYOUT_MAX_CHARACTERS
    assert re.fullmatch(LAYOUT, text)
    problem, parsed = _try(text)
    if problem is not None:
        assert "do not fit into" in problem.message
        return
    assert render_layout(parsed) == text
    groups = group_words(parsed)
    assert [word for group in groups for word in group] == list(parsed)
    for group in groups:
        assert sum(word.compute_slices for word in group) <= group[0].gpu_instance_slices


@given(st.text(max_size=60))
def test_any_other_text_is_refused_in_one_printable_sentence(text: str) -> None:
    problem, _ = _try(text)
    if problem is None:
        assert re.fullmatch(LAYOUT, text, re.ASCII)
    else:
        assert str(problem).isprintable()
        assert len(str(problem)) < 400


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("+".join(["1g"] * 300), "the MIG layout has 300 words, and a GPU has 7 slices"),
        ("9g", "the MIG layout has the word '9g', which is none"),
        ("", "the MIG layout has the word '', which is none"),
        ("3g+", "the MIG layout has the word '3g+', which is none"),
        ("3g.040gb", "the MIG layout has the word '3g.040gb', which is none"),
        ("1g\x1b[2J", "the MIG layout has the word '1g\\x1b[2J', which is none"),
        ("\N{ARABIC-INDIC DIGIT THREE}g", "which is none"),
        ("4c.3g", "the MIG layout has the word '4c.3g': 4 compute slices do not fit into 3"),
    ],
)
def test_what_is_wrong_is_said(text: str, sentence: str) -> None:
    with pytest.raises(UsageProblem, match=re.escape(sentence)):
        parse_layout(text)


@pytest.mark.parametrize("text", ["3g.39gb", "4g.20gb", "2g+me", "1g+gfx"])
def test_a_name_of_another_driver_or_gpu_is_refused_with_the_names_there_are(text: str) -> None:
    with pytest.raises(UsageProblem) as problem:
        resolve(parse_layout(text), H100)
    assert problem.value.message == f"this GPU has no MIG profile {text}"
    assert "3g.40gb" in problem.value.hint


def test_a_driver_that_rounds_otherwise_is_taken_at_its_word() -> None:
    from dataclasses import replace

    rounded = [replace(p, name=p.name.replace("40gb", "39gb")) for p in H100]
    assert [p.name for p in resolve(parse_layout("3g+3g.39gb"), rounded)] == ["3g.39gb"] * 2
