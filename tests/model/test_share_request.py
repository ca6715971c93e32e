"""--share: words that are understood, and one sentence for those that are not."""

from __future__ import annotations

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.share_request import ShareRequest


@pytest.mark.parametrize(
    "text", ["auto", "mps", "mps!", "mig", "mig!", "mig=3g+2g+1g+1g", "mig=1g.10gb+me+2g!"]
)
def test_what_is_asked_for_is_written_as_it_was_typed(text: str) -> None:
    request = ShareRequest.parse(text)
    assert str(request) == text
    assert request.strict == text.endswith("!")


def test_mig_falls_back_to_mps_and_then_to_time_slices_unless_that_is_forbidden() -> None:
    fallback = ShareRequest.parse("mig=3g+3g").describe_mode(SharingMode.MIG)
    assert fallback == "mig, mps or timeslice"
    assert ShareRequest.parse("mig!").describe_mode(SharingMode.MIG) == "mig"


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
