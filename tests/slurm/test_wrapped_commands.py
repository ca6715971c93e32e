"""Slurm's commands behind a site's wrapper: whatever it does, csub does not wait for ever."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.errors import SlurmNoAnswer, SlurmRefused
from slurm_colloc.slurm.run_command import HeldInterrupts, run_slurm

from ..wait_until import wait_until


class Wrapper:
    """A program that writes down the processes of which it consists."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "scontrol"
        self.pids = folder / "pids"

    def write(self, body: str) -> str:
        self.path.write_text(f"#!/bin/bash\nexec 9>>{self.pids}; echo $$ >&9\n{body}\n")
        self.path.chmod(0o755)
        return str(self.path)

    def list_alive(self) -> list[int]:
        pids = map(int, self.pids.read_text().split()) if self.pids.exists() else ()
        return [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@pytest.fixture
def wrapper(tmp_path: Path) -> Iterator[Wrapper]:
    wrapper = Wrapper(tmp_path)
    yield wrapper
    for pid in wrapper.list_alive():
        os.kill(pid, signal.SIGKILL)


FOREVER = "while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    "body",
    [
        FOREVER,
        f"trap '' TERM INT; {FOREVER}",
        f"(echo $BASHPID >&9; {FOREVER}) & wait",
        f"(echo $BASHPID >&9; trap '' TERM; {FOREVER}) & wait",
        f"exec >&- 2>&-; {FOREVER}",
    ],
    ids=["waits", "ignores TERM", "has a child", "has a stubborn child", "closes its pipes"],
)
def test_at_its_time_limit_it_ends_with_all_that_it_has_started(
    wrapper: Wrapper, body: str
) -> None:
    with pytest.raises(SlurmNoAnswer, match=r"gave no answer within 0\.5 s"):
        run_slurm([wrapper.write(body)], timeout_s=0.5)
    wait_until(lambda: not wrapper.list_alive(), "nothing of it is left")


def test_a_child_that_has_left_its_group_is_not_waited_for(wrapper: Wrapper) -> None:
    child = f"setsid bash -c 'echo $$ >&9; {FOREVER}' & wait"
    with pytest.raises(SlurmNoAnswer):
        run_slurm([wrapper.write(child)], timeout_s=0.5)
    wait_until(lambda: len(wrapper.list_alive()) == 1, "only what has left its group is there")


@pytest.mark.parametrize("start", ["", "setsid "])
def test_an_answer_counts_although_a_child_keeps_the_pipes_open(
    wrapper: Wrapper, start: str
) -> None:
    body = f"{start}bash -c 'echo $$ >&9; {FOREVER}' & echo answer; echo aside >&2"
    output = run_slurm([wrapper.write(body)], timeout_s=60)
    assert (output.stdout, output.stderr) == ("answer\n", "aside\n")


def test_a_refusal_counts_although_a_child_keeps_the_pipes_open(wrapper: Wrapper) -> None:
    with pytest.raises(SlurmRefused, match="no such job"):
        run_slurm(
            [wrapper.write(f"({FOREVER}) & echo $! >&9; echo 'no such job' >&2; exit 1")],
            timeout_s=60,
        )


def test_a_long_answer_on_both_pipes_is_whole(wrapper: Wrapper) -> None:
    output = run_slurm([wrapper.write("seq 100000; seq 100000 >&2")], timeout_s=60)
    assert output.stdout == output.stderr == "".join(f"{n}\n" for n in range(1, 100001))


@pytest.mark.parametrize(("presses", "trap"), [(2, ""), (3, "trap '' TERM;")])
def test_ctrl_c_pressed_again_ends_all_of_it(wrapper: Wrapper, presses: int, trap: str) -> None:
    held = HeldInterrupts()
    argv = [wrapper.write(f"{trap} (echo $BASHPID >&9; {FOREVER}) & wait; {FOREVER}")]

    def press() -> None:
        wait_until(lambda: len(wrapper.list_alive()) == 2, "it runs")
        for _ in range(presses):
            held.note()

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(SlurmNoAnswer, match="ended by signal"):
        run_slurm(argv, held=held)
    thread.join()
    wait_until(lambda: not wrapper.list_alive(), "nothing of it is left")
