"""The policy of a call: what was said, else the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.settings import Settings
from slurm_colloc.submission.plan.call_policy import choose_policy

from .test_collect import collect, write


@pytest.mark.parametrize(
    ("words", "settings", "degree", "size"),
    [
        ((), Settings(), 4, None),
        (("--pack-size=8",), Settings(), 4, 8),
        (("--pack-size=2",), Settings(), 2, 2),
        (("--pack-size=3",), Settings(degree=6), 3, 3),
        # A site's size is no user's word.
        ((), Settings(pack_size=2), 4, 4),
        (("--degree=3", "--pack-size=3"), Settings(), 3, 3),
    ],
)
def test_a_pack_has_no_more_members_than_was_said(
    tmp_path: Path, words: tuple[str, ...], settings: Settings, degree: int, size: int | None
) -> None:
    write(tmp_path)
    policy = choose_policy(collect(tmp_path, *words, "--array=1-9", "a.sh"), settings)
    assert (policy.degree, policy.pack_size) == (degree, size)


def test_more_at_once_than_members_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, "--degree=4", "--pack-size=2", "--array=1-9", "a.sh")
    with pytest.raises(UsageProblem, match=r"--degree=4 run at once, .* --pack-size=2 members"):
        choose_policy(call, Settings())


def test_a_word_that_is_none_is_shown_harmlessly(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, "--goal=\x1b[31m" + "x" * 5000, "--array=1-9", "a.sh")
    with pytest.raises(UsageProblem, match="is none of") as problem:
        choose_policy(call, Settings())
    assert "\x1b" not in str(problem.value)
    assert len(str(problem.value)) < 200


@pytest.mark.parametrize(
    ("words", "turn_s"),
    [(("--take-turns",), 120.0), (("--take-turns=300",), 300.0), ((), 0.0)],
)
def test_turns_are_by_time_slices_and_as_long_as_was_said(
    tmp_path: Path, words: tuple[str, ...], turn_s: float
) -> None:
    write(tmp_path)
    call = collect(tmp_path, *words, "--array=1-3", "a.sh")
    assert {candidate.job.turn_s for candidate in call.candidates} == {turn_s}
    share = choose_policy(call, Settings()).share
    assert (share == "timeslice") == bool(words)


@pytest.mark.parametrize("text", ["0", "2m", "-1", "0864001", "9" * 30])
def test_a_turn_that_is_no_number_of_seconds_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path)
    with pytest.raises(UsageProblem, match="a number of seconds from 1 to 86400"):
        collect(tmp_path, f"--take-turns={text}", "a.sh")


def test_turns_under_mps_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    call = collect(tmp_path, "--take-turns", "--share=mps", "--array=1-3", "a.sh")
    with pytest.raises(UsageProblem, match="--take-turns needs time slices, and --share is mps"):
        choose_policy(call, Settings())
