"""What the MPS server has to do with a member's end, and what its output says."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.runtime.blame import (
    LISTENS_MAX,
    OUTPUT_LIMIT,
    BlameFinder,
    Circumstances,
    OutputFinding,
    Sign,
    add_seen,
    read_end_of_output,
)
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.mps_clients import MpsMember
from slurm_colloc.runtime.verdict import Verdict
from slurm_colloc.store.member_states import StateRecord

from .test_members import SPEC

TEXT = "Client {PID: 7, Context: 1} encountered a fatal GPU error."
ENDED = "the MPS server has ended"
DIED = "the MPS daemon has died"


def build_seen(**fields: object) -> MpsMember:
    return MpsMember(100, 0.0, **fields)  # type: ignore[arg-type]


# What was seen, what the output says, then suspects and why the server went.
@pytest.mark.parametrize(
    ("seen", "signs", "suspects", "lost"),
    [
        (build_seen(), (), (), ""),
        (build_seen(is_client=True), (Sign.OUT_OF_GPU_MEMORY, Sign.ASSERT), (), ""),
        # Gone while it was a client, or as its own output says.
        (build_seen(is_client=True, lost=DIED), (), (), DIED),
        (build_seen(is_client=False, lost=DIED), (), (), ""),
        (build_seen(is_client=False, lost=DIED), (Sign.MPS_GONE,), (), DIED),
        (build_seen(is_client=True), (Sign.MPS_GONE,), (), ENDED),
        # Hit, as the server's log says.
        (build_seen(is_client=True, suspects=(1, 2), fault=TEXT), (), (1, 2), ""),
        (build_seen(is_client=True, suspects=(2,), fault=TEXT), (Sign.FAULT,), (2,), ""),
        # Not known to be a client: only where its output says so as well.
        (build_seen(suspects=(1, 2), fault=TEXT), (), (), ""),
        (build_seen(suspects=(1, 2), fault=TEXT), (Sign.FAULT,), (1, 2), ""),
        # Hit, as only its output says.
        (build_seen(is_client=True), (Sign.FAULT,), (2,), ""),
        (build_seen(is_outside=True), (Sign.FAULT,), (), ""),
        # The end of the server explains all.
        (build_seen(is_client=True, suspects=(1, 2), fault=TEXT, lost=ENDED), (), (), ENDED),
        # Also where a later program of its script has got a new context.
        (build_seen(is_client=True, broken=DIED), (), (), DIED),
    ],
)
def test_what_the_server_has_to_do_with_an_end(
    seen: MpsMember, signs: tuple[Sign, ...], suspects: tuple[int, ...], lost: str
) -> None:
    findings = tuple(OutputFinding(sign, sign.value) for sign in signs)
    around = add_seen(Circumstances(findings=findings), 2, seen)
    assert (around.suspects, around.mps_lost) == (suspects, lost)
    assert around.fault == (seen.fault if suspects else "")


# What was seen, what the output says, then suspects and why the server went.
@pytest.mark.parametrize(
    ("seen", "signs", "suspects", "lost"),
    [
        # None of its processes was a client at that moment: it had ended, or was none at all.
        (build_seen(is_client=True, lost=DIED), (), (), ""),
        (build_seen(lost=DIED), (), (), ""),
        (build_seen(is_outside=True, lost=DIED), (), (), ""),
        (build_seen(is_client=True, lost=DIED, broken=DIED), (), (), DIED),
        # Too quick to be seen as one: its output and the daemon say the same.
        (build_seen(lost=DIED), (Sign.MPS_GONE,), (), DIED),
        # Its output alone is no proof.
        (build_seen(is_client=True), (Sign.MPS_GONE, Sign.FAULT), (), ""),
        (build_seen(is_client=True, suspects=(1, 2), fault=TEXT, is_hit=True), (), (1, 2), ""),
        (build_seen(is_client=True, suspects=(1, 2), fault=TEXT), (Sign.FAULT,), (), ""),
    ],
)
def test_of_a_member_with_exit_code_0_the_server_itself_has_to_say_that_it_was_hit(
    seen: MpsMember, signs: tuple[Sign, ...], suspects: tuple[int, ...], lost: str
) -> None:
    findings = tuple(OutputFinding(sign, sign.value) for sign in signs)
    around = add_seen(Circumstances(findings=findings), 2, seen, has_failed=False)
    assert (around.suspects, around.mps_lost) == (suspects, lost)
    assert around.fault == (seen.fault if suspects else "")


DONE = Verdict(MemberState.COMPLETED, ExitCode())


@pytest.mark.parametrize(
    ("seen", "leaves_at", "asked"),
    [
        (build_seen(is_client=True), 0, 0),
        (build_seen(is_outside=True), 0, 0),
        # It may have been too quick to be seen as a client.
        (build_seen(), 0, 1),
        (build_seen(is_client=True, contexts={7}), 2, 2),
        (build_seen(is_client=True, contexts={7}), 9, LISTENS_MAX),
    ],
)
def test_of_a_client_that_is_not_known_to_have_left_the_daemon_is_asked_before_0_is_believed(
    seen: MpsMember, leaves_at: int, asked: int
) -> None:
    times = 0

    def catch_up() -> None:
        nonlocal times
        times += 1
        if times == leaves_at:
            seen.contexts.clear()

    mode = SimpleNamespace(clients=SimpleNamespace(get=lambda _: seen), catch_up=catch_up)
    finder = BlameFinder(
        pack=cast("Any", None),
        states=cast("Any", None),
        gpu_mode=cast("Any", mode),
        progress=cast("Any", None),
    )
    finder.listen(build_member(), DONE)
    assert times == asked


def build_member(*outputs: tuple[Path, int]) -> Member:
    member = Member(1, SPEC, StateRecord(MemberState.RUNNING, 1))
    member.outputs = tuple((str(path), size) for path, size in outputs)
    return member


def test_only_what_was_written_since_the_last_start_is_read(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("CUDA out of memory\n")
    size = out.stat().st_size
    with out.open("a") as file:
        file.write("second start\n")
    err.write_bytes(b"\xff traceback\n")
    assert read_end_of_output(build_member((out, size), (err, 0))) == (
        "second start\n\n\ufffd traceback\n"
    )


def test_of_a_long_output_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("x" * OUTPUT_LIMIT + "the end")
    assert read_end_of_output(build_member((path, 0))) == "x" * (OUTPUT_LIMIT - 7) + "the end"


def test_an_output_that_was_truncated_meanwhile_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("short")
    assert read_end_of_output(build_member((path, 1000))) == ""


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    member = build_member((pipe, 0), (Path("/dev/zero"), 0), (tmp_path / "gone", 0), (tmp_path, 0))
    assert read_end_of_output(member) == ""
