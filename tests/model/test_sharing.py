"""What `--share` may say, and what it means."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.share_request import AUTO, SHARE_CHOICES, ShareRequest


# Text, mode, strict, what is tried first, what is said before the node has prepared anything.
@pytest.mark.parametrize(
    ("text", "mode", "strict", "planned", "told"),
    [
        ("auto", None, False, SharingMode.MPS, "mps or timeslice"),
        ("mps", SharingMode.MPS, False, SharingMode.MPS, "mps or timeslice"),
        ("mps!", SharingMode.MPS, True, SharingMode.MPS, "mps"),
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


@pytest.mark.parametrize("text", ["", "!", "mps!!", "MPS", " mps", "mps !", "mig", "auto,mps"])
def test_what_is_no_value_is_refused_with_the_place_and_the_choices(text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        ShareRequest.parse(text, "train.sh:3")
    assert str(caught.value) == (
        f"train.sh:3: --share={text} is none of auto, mps, timeslice, exclusive: "
        "mps! forbids any other mode instead"
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
