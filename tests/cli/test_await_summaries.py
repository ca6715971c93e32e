"""Summaries that packs had no time for: the call that needs what they teach makes them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.learning import learn_from_pack
from slurm_colloc.session import await_summaries as module
from slurm_colloc.session.await_summaries import await_summaries, prepare_summaries
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.indexes import forget_due, is_due, note_due

from ..packs import build_pack, write_packs


@pytest.fixture
def state(tmp_path: Path) -> State:
    """A state with one pack that was watched."""
    state = State(tmp_path / "state", "here")
    write_packs(state, build_pack("s"))
    note_due(state.root, "s.0")
    return state


@pytest.fixture
def made(state: State, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which packs were learned from."""
    packs: list[str] = []

    def learn(pack: Path, calibrations: Path | None = None) -> list[str]:  # noqa: ARG001
        packs.append(pack.name)
        forget_due(state.root, pack.name)
        return []

    monkeypatch.setattr(learn_from_pack, "learn_from_pack", learn)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return packs


def test_a_plan_has_what_an_ended_pack_teaches(state: State, made: list[str]) -> None:
    state.forget_open("s.0")
    prepare_summaries(state, Settings())
    assert made == ["s.0"]
    prepare_summaries(state, Settings())
    assert made == ["s.0"]


def test_a_plan_does_not_wait_for_a_pack_that_runs(state: State, made: list[str]) -> None:
    prepare_summaries(state, Settings())
    assert made == []
    assert is_due(state.root, "s.0")


def test_a_plan_waits_for_a_runner_that_is_just_at_it(
    state: State, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note_due(state.root, "s.0", is_ending=True)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            forget_due(state.root, "s.0")

    monkeypatch.setattr(time, "sleep", wait)
    prepare_summaries(state, Settings())
    assert (len(waits), made) == (3, [])


def test_a_wait_ends_once_the_runner_has_made_it(state: State, made: list[str]) -> None:
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            forget_due(state.root, "s.0")

    await_summaries(state, Settings(), ["s.0"], look)
    assert (len(looks), made) == (2, [])


def test_a_wait_makes_it_once_the_pack_is_over_without(state: State, made: list[str]) -> None:
    await_summaries(state, Settings(), ["s.0"], lambda: state.forget_open("s.0"))
    assert made == ["s.0"]


def test_a_wait_for_other_packs_looks_at_none(state: State, made: list[str]) -> None:
    await_summaries(state, Settings(), ["t.0"], lambda: pytest.fail("nothing is due"))
    assert is_due(state.root, "s.0")
    assert made == []


def test_a_wait_is_bounded_and_says_so(
    state: State, made: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    await_summaries(state, Settings(), ["s.0"], lambda: None)
    assert made == []
    assert "their summary is not written yet" in capsys.readouterr().err


def test_what_cannot_be_learned_is_said_once(
    state: State, made: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(pack: Path, calibrations: Path | None = None) -> list[str]:  # noqa: ARG001
        raise StateError(f"{pack} is damaged")

    monkeypatch.setattr(learn_from_pack, "learn_from_pack", fail)
    state.forget_open("s.0")
    for _ in range(2):
        prepare_summaries(state, Settings())
    told = capsys.readouterr().err
    assert told.count("nothing is learned from pack s.0: ") == 1
    assert made == []


def test_of_a_pack_that_is_gone_nothing_is_due(state: State, made: list[str]) -> None:
    note_due(state.root, "gone.0")
    prepare_summaries(state, Settings())
    assert not is_due(state.root, "gone.0")
    assert made == []
