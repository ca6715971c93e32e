"""What `--share` may say, and what it means."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import AUTO, SHARE_CHOICES, ShareRequest
from slurm_colloc.model.plan import SharingMode


# Text, mode, strict, what is tried first, what is said before the node has prepared anything.
@pytest.mark.parametrize(
    ("text", "mode", "strict", "planned", "told"),
    [
        ("auto", None, False, SharingMode.MPS, "mps or timeslice"),
        ("mps", SharingMode.MPS, False, SharingMode.MPS, "mps or timeslice"),
        ("mps!", SharingMode.MPS, True, SharingMode.MPS, "mps"),
        ("mig", SharingMode.MIG, False, SharingMode.MIG, "mig, mps or timeslice"),
        ("mig!", SharingMode.MIG, True, SharingMode.MIG, "mig"),
        ("mig=1g.10gb+me+2g!", SharingMode.MIG, True, SharingMode.MIG, "mig"),
        ("timeslice", SharingMode.TIMESLICE, False, SharingMode.TIMESLICE, "timeslice"),
        ("timeslice!", SharingMode.TIMESLICE, True, SharingMode.TIMESLICE, "timeslice"),
        ("exclusive", SharingMode.EXCLUSIVE, False, SharingMode.EXCLUSIVE, "exclusive"),
    ],
)
def test_each_value(
    text: str, mode: SharingMode | None, strict: bool, planned: SharingMode, told: str
) -> None:
    request = ShareRequest.parse(text)
    assert (request.mode, request.strict, request.planned) == (mode, strict, planned)
    assert request.describe_mode(request.planned) == told
    assert str(request) == text
    assert ShareRequest.parse(str(request)) == request


@pytest.mark.parametrize("share", ["auto", "mps", "mps!"])
def test_a_pack_of_one_is_exclusive_whatever_was_asked_for(share: str) -> None:
    assert ShareRequest.parse(share).describe_mode(SharingMode.EXCLUSIVE) == "exclusive"


@pytest.mark.parametrize("text", ["", "!", "mps!!", "MPS", " mps", "mps !", "migs", "auto,mps"])
def test_what_is_no_value_is_refused_with_the_place_and_the_choices(text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        ShareRequest.parse(text, "train.sh:3")
    assert str(caught.value) == (
        f"train.sh:3: --share={text} is none of auto, mps, mig, timeslice, exclusive: "
        "mps! forbids any other mode instead, mig=3g+2g+1g+1g names MIG instances"
    )


def test_auto_cannot_be_strict() -> None:
    with pytest.raises(UsageProblem, match=re.escape("--share=auto! cannot be strict: write mps!")):
        ShareRequest.parse("auto!")


@given(
    text=st.text(alphabet="aeimopstuvx!", max_size=10)
    | st.builds("{}{}".format, st.sampled_from(SHARE_CHOICES), st.sampled_from(["", "!", "x"]))
)
def test_every_text_is_a_value_or_refused(text: str) -> None:
    try:
        request = ShareRequest.parse(text)
    except UsageProblem:
        assert text not in SHARE_CHOICES
    else:
        assert str(request) == text
        assert text.removesuffix("!") in SHARE_CHOICES
        assert text != f"{AUTO}!"


def test_what_auto_has_cut_falls_back_to_one_at_a_time() -> None:
    assert ShareRequest().describe_mode(SharingMode.MIG) == "mig or one at a time"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mig=", "which is none"),
        ("mig=5g", "'5g', which is none"),
        ("mig=3g+", "which is none"),
        ("mig=3g 2g", "which is none"),
        ("mig=" + "+".join(["1g"] * 300), "has 300 words"),
        ("mig=4c.3g", "4 compute slices do not fit into 3"),
        ("mig=\x1b[31m", "which is none"),
        ("migs", "is none of"),
        ("mig\x1b[31m", "is none of"),
    ],
)
def test_words_that_are_none_are_refused_in_one_harmless_sentence(text: str, told: str) -> None:
    with pytest.raises(UsageProblem, match="--share") as refused:
        ShareRequest.parse(text)
    assert told in refused.value.message
    assert str(refused.value).isprintable()
    assert len(refused.value.message) < 300
