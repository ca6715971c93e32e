"""Members that are paused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .running_member import RunningMember


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningMember]]:
    """Starts members of a pack, and ends them."""
    members: list[RunningMember] = []

    def run(*argv: str, number: int | None = None) -> RunningMember:
        member = RunningMember(tmp_path, number or len(members) + 1, list(argv))
        members.append(member)
        return member

    yield run
    for member in members:
        if member.process.poll() is None:
            # From who has started it a TERM ends all of the member, paused or not.
            member.process.terminate()
        member.process.wait(30)
