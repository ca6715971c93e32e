"""All that the end of a member calls for, with the parts of a runner and without Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime.blame import BlameFinder
from slurm_colloc.runtime.collect_ends import MemberEnds
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.member_progress import ProgressReader, WindowRates
from slurm_colloc.runtime.members import Member, PackMembers, PackPlace
from slurm_colloc.runtime.pause_members import MemberPauser
from slurm_colloc.runtime.verdict import StopReason, Verdict
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import StateRecord, begin_attempt, read_state
from slurm_colloc.store.pack_directory import read_spec

from ..packs import build_pack, write_packs
from .pack_contexts import build_context

M = MemberState


class PackWithEnds:
    """A pack of two places, whose first two members run while the third waits.

    Args:
        folder: Where its state is.
    """

    def __init__(self, folder: Path) -> None:
        state = State(folder / "state", "here")
        self.pack = write_packs(state, build_pack("s", members=3))
        attempt = begin_attempt(self.pack, 1)
        record = state.read_pack("s.0")
        assert record is not None
        self.members = PackMembers([PackPlace(0, 1, (), 1), PackPlace(1, 1, (), 2)])
        for number in (1, 2, 3):
            running = StateRecord(M.RUNNING if number < 3 else M.PENDING, attempt)
            self.members.by_number[number] = Member(number, read_spec(self.pack, number), running)
        self.members.waiting.append(3)
        # What the mails hear: a member, and its state of before.
        self.told: list[tuple[int, MemberState, MemberState]] = []
        context = build_context(
            self.pack, record=record, state=state, attempt=attempt, members=self.members
        )
        states = StateWriter(
            pack=context,
            listener=lambda m, before: self.told.append((m.number, before.state, m.record.state)),
        )
        gpu_mode = GpuMode(pack=context, lone=True)
        self.ends = MemberEnds(
            pack=context,
            blame_finder=BlameFinder(
                pack=context,
                states=states,
                gpu_mode=gpu_mode,
                progress=ProgressReader(pack=context, rates=WindowRates(lambda _: "")),
            ),
            states=states,
            pauser=MemberPauser(pack=context),
        )
        self.first = self.members.by_number[1]

    def list_events(self) -> list[str]:
        lines = (self.pack / "events.jsonl").read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]


@pytest.fixture
def bed(tmp_path: Path) -> PackWithEnds:
    return PackWithEnds(tmp_path)


@pytest.mark.parametrize(
    ("verdict", "cause"),
    [
        (Verdict(M.COMPLETED, ExitCode(0), ended_at=9.0), "success"),
        (Verdict(M.FAILED, ExitCode(3), "exit code 3", ended_at=9.0), "exit code"),
        (Verdict(M.TIMEOUT, ExitCode(0, 15), "its time limit was reached", ended_at=9.0), None),
    ],
)
def test_an_end_for_good_frees_the_place_and_is_written(
    bed: PackWithEnds, verdict: Verdict, cause: str | None
) -> None:
    bed.first.pid, bed.first.deadline, bed.first.asked = 7, 5.0, StopReason.TIMEOUT
    bed.ends.end(bed.first, verdict)
    written = read_state(bed.pack, 1, 1)
    assert written == bed.first.record
    assert written is not None
    assert (written.state, written.exit_code, written.ended_at) == (
        verdict.state, verdict.exit_code, 9.0,
    )  # fmt: skip
    assert cause is None or written.cause == cause
    # Its environment may hold secrets.
    assert not (bed.pack / "members" / "0001" / "env").exists()
    assert bed.members.place_of(1) is None
    assert bed.members.place_of(2) is not None
    assert [bed.first.pid, bed.first.deadline, bed.first.asked] == [None] * 3
    assert list(bed.members.waiting) == [3]
    assert bed.told == [(1, M.RUNNING, verdict.state)]
    assert bed.list_events() == ["member_end"]


def test_one_that_starts_again_waits_in_its_turn(bed: PackWithEnds) -> None:
    asked = StopReason.REQUEUE
    bed.first.asked = asked
    bed.ends.end(bed.first, Verdict(M.PENDING, ExitCode(0), asked.value))
    written = read_state(bed.pack, 1, 1)
    assert written is not None
    assert (written.state, written.reason, written.exit_code) == (M.PENDING, asked.value, None)
    assert (bed.pack / "members" / "0001" / "env").exists()
    assert bed.members.place_of(1) is None
    assert list(bed.members.waiting) == [3, 1]
    assert bed.told == [(1, M.RUNNING, M.PENDING)]
    assert bed.list_events() == ["requeue"]
