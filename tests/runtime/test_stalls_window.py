"""When the window of csub probe --stalls is over."""

from __future__ import annotations

import pytest

from slurm_colloc.model.measurement import ProbePatience, ProbeProgress
from slurm_colloc.runtime.pause_windows import judge_stalls_window

SHORT = ProbePatience(60.0, 200.0)


@pytest.mark.parametrize(
    ("progress", "has_begun", "is_told", "told"),
    [
        (ProbeProgress(20, 900, True, 24.1, 20.0), True, True, "its stalls were looked for"),
        # Its rate changes with the phases, and is no sign.
        (ProbeProgress(90, 900, True, 60.0, 20.0), True, False, ""),
        (ProbeProgress(200, 900, True, 60.0, 20.0), True, False, "not told within 200 s"),
        # Without a DataLoader no phase begins.
        (ProbeProgress(45, 900, True, 24.1, 20.0), False, False, "its rate is steady"),
        (ProbeProgress(90, 39, True, 60.0, 0.5), False, False, ""),
        (ProbeProgress(60, None, False), False, False, "no step within 60 s"),
    ],
)
def test_when_a_window_for_stalls_is_over(
    progress: ProbeProgress, has_begun: bool, is_told: bool, told: str
) -> None:
    reason = judge_stalls_window(progress, SHORT, has_begun=has_begun, is_told=is_told)
    assert told in reason
    assert bool(told) is bool(reason)
