"""`csub report` of some members, and of a pack of which nothing was measured yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .generated import Truth, build_summary, make_pack, render_report

TOTALS = ("Together", "In a row", "Saved", "GPU:", "Monitor")


def test_of_some_members_no_totals_of_the_pack_are_told(tmp_path: Path) -> None:
    truths = [Truth(n, 0, 60, lambda _at: 10, wait_share=0.3) for n in (1, 2, 3)]
    summary = build_summary(make_pack(tmp_path, truths), tmp_path)
    whole, one = render_report(summary, 140), render_report(summary, 140, {2})
    assert all(word in whole for word in TOTALS[:3])
    assert not any(word in one for word in TOTALS if word != "GPU:")
    assert "4711/1" not in one
    assert "csub report 4711 shows all 3 members" in one
    assert "shows all" not in whole


@pytest.mark.parametrize(
    ("starts", "final", "words"),
    [
        (0, False, "no member has started"),
        (1, False, "none yet: the monitor has not looked at what has just started"),
        (1, True, "none: nothing was measured"),
    ],
)
@pytest.mark.parametrize("chosen", [None, {1}])
def test_without_figures_the_reason_is_told(
    tmp_path: Path, starts: int, final: bool, words: str, chosen: set[int] | None
) -> None:
    summary = build_summary(make_pack(tmp_path, [Truth(1, 0, 60, lambda _at: 10)]), tmp_path)
    members = [{**member, "starts": starts} for member in summary["members"]]
    early: Any = {**summary, "window": None, "final": final, "members": members}
    assert words in render_report(early, 140, chosen)
