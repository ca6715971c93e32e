"""Held members: either their runner starts them, or csub submits them again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from slurm_colloc.store import member_states


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    (tmp_path / "members" / "0003").mkdir(parents=True)
    return tmp_path


def test_a_released_member_is_its_runners(pack: Path) -> None:
    member_states.write_held(pack, 3)
    assert member_states.is_held(pack, 3)
    assert member_states.remove_held(pack, 3)
    assert not member_states.is_held(pack, 3)
    assert not member_states.leave_behind(pack, 3)
    assert not member_states.is_held(pack, 3)


def test_a_member_that_was_left_behind_is_csubs(pack: Path) -> None:
    member_states.write_held(pack, 3)
    assert member_states.leave_behind(pack, 3)
    assert member_states.leave_behind(pack, 3), "a later attempt leaves it, too"
    assert not member_states.remove_held(pack, 3)
    # Until it is taken care of it stays held, whatever is killed meanwhile.
    assert member_states.is_held(pack, 3)
    member_states.forget_hold(pack, 3)
    assert not member_states.is_held(pack, 3)


def test_release_and_leaving_at_the_same_moment_have_one_winner(pack: Path) -> None:
    for _ in range(300):
        member_states.write_held(pack, 3)
        barrier = threading.Barrier(2)
        said: dict[str, bool] = {}

        def release(barrier: threading.Barrier = barrier, said: dict[str, bool] = said) -> None:
            barrier.wait()
            said["runner starts it"] = member_states.remove_held(pack, 3)

        thread = threading.Thread(target=release)
        thread.start()
        barrier.wait()
        left = member_states.leave_behind(pack, 3)
        thread.join()
        assert said["runner starts it"] is not left
        member_states.forget_hold(pack, 3)


def test_csub_sees_a_start_that_has_begun_and_the_runner_a_hold(pack: Path) -> None:
    member = pack / "members" / "0003"
    assert not member_states.may_have_begun(pack, 3, attempt=2, starts=1)
    (member / "run.1.2.log").write_text("")
    (member / "run.2.1.exit").write_text("")
    assert not member_states.may_have_begun(pack, 3, attempt=2, starts=1)
    (member / "run.2.2.launch").write_text("")
    assert member_states.may_have_begun(pack, 3, attempt=2, starts=1)


def test_a_cancelled_member_leaves_no_secrets_and_no_marks(pack: Path) -> None:
    member = pack / "members" / "0003"
    (member / "env").write_text("TOKEN=x")
    (member / "taken").write_text("{}")
    member_states.write_held(pack, 3)
    member_states.leave_behind(pack, 3)
    member_states.cancel_left(pack, 3)
    assert sorted(path.name for path in member.iterdir()) == ["cancelled"]
