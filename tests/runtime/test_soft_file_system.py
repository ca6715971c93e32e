"""Small packs whose state directory fails at random: none is ended by it, no member is lost, and
none runs twice."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.host.system.node_processes import list_processes
from slurm_colloc.model.member import ExitCode, MemberState
from slurm_colloc.store import inbox
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.member_states import read_attempt, read_pauses, read_state
from slurm_colloc.store.pack_directory import NewMember, write_joiner
from slurm_colloc.store.runner_requests import Action, Request, list_requests, write_request

from ..packs import build_member, build_pack, write_packs
from ..wait_until import wait_until

HERE = Path(__file__).parent
SCRIPT = b"""#!/bin/sh
echo start >> "$RAN.$SLURM_COLLOC_MEMBER_NUMBER"
sleep ${NAP:-0}.$((SEED % 4))
exit $CODE
"""
JOINS, IS_CANCELLED = 5, 4
"""The member that enters while the pack runs, and the one that runs until it is cancelled."""


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layer, compiled."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("layer") / "soft.so"
    source = HERE / "soft_file_system.c"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-O1", "-o", library, source, "-ldl"],
        check=True,
    )
    return library


class SoftPack:
    """A pack of five members, of which two run at once, and its runner.

    Args:
        folder: A directory for all of it.
        layer: The compiled layer.
        seed: What is drawn.
        rate: How many of 1000 calls fail.
        **more: Environment of the layer, and of the runner.
    """

    def __init__(
        self,
        folder: Path,
        layer: Path,
        seed: int,
        rate: int,
        **more: str,
    ) -> None:
        self.ran = folder / "ran"
        self.nap = more.get("NAP", "0")
        self.ran.mkdir(parents=True)
        state = State(folder / "state", "")
        entries = [self._build_member(number, seed) for number in range(1, 6)]
        self.pack = write_packs(state, build_pack("s", members=entries[:4], local=True, degree=2))
        (state.root / "local").mkdir()
        self.joiner = entries[4]
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "LD_PRELOAD": str(layer),
            "SOFT_ROOT": str(state.root), "SOFT_MARK": "soft_runner.py", "SOFT_SEED": str(seed),
            "SOFT_RATE": str(rate), "CUDA_VISIBLE_DEVICES": "0", **more,
        }  # fmt: skip
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.runner = subprocess.Popen(
                [sys.executable, HERE / "soft_runner.py", self.pack, "L1"],
                env=environment, stdout=log, stderr=log, cwd=folder,
            )  # fmt: skip

    def _build_member(self, number: int, seed: int) -> NewMember:
        script = (
            SCRIPT.replace(b"sleep ", b"exec sleep 600 #") if number == IS_CANCELLED else SCRIPT
        )
        member = build_member(
            number, script, plan={"cpus": 1, "host_memory_mb": None, "wall_limit_s": None},
            gpus=0, arguments=(), directory=str(self.ran), output="out", name="j",
        )  # fmt: skip
        environment = {
            "PATH": os.environ["PATH"], "RAN": f"{self.ran}/ran", "CODE": str(number % 2 * 3),
            "SEED": str(seed + number), "NAP": self.nap, "SLURM_COLLOC_MEMBER_NUMBER": str(number),
        }  # fmt: skip
        block = b"\0".join(f"{key}={value}".encode() for key, value in environment.items())
        return dataclasses.replace(member, environment=block)

    def join(self) -> bool:
        """Have the fifth member enter, as csub would; False where the pack is closed."""
        assert inbox.claim_number(str(self.pack), JOINS)
        write_joiner(self.pack, self.joiner)
        return inbox.enter(str(self.pack), JOINS)

    def cancel(self) -> None:
        """Cancel the fourth member."""
        write_request(self.pack, Request(Action.CANCEL, IS_CANCELLED, reason="csub cancel"))

    def count_starts(self, number: int) -> int:
        path = Path(f"{self.ran}/ran.{number}")
        return len(path.read_text().splitlines()) if path.exists() else 0

    def close(self) -> None:
        """End the runner, and with it its members, where it has not ended."""
        self.runner.kill()
        self.runner.wait()

    def check(self, has_joined: bool) -> None:
        """All have ended as they did, and each ran once."""
        attempt = read_attempt(self.pack)
        text = self.log.read_text()
        for number in range(1, 6 if has_joined else 5):
            record = read_state(self.pack, number, attempt)
            assert record is not None, (number, text)
            found = (record.state, self.count_starts(number), record.starts)
            if number == IS_CANCELLED:
                assert found == (MemberState.CANCELLED, 1, 1), (number, record, text)
                continue
            code = ExitCode(number % 2 * 3)
            state = MemberState.FAILED if code.code else MemberState.COMPLETED
            assert found == (state, 1, 1), (number, record, text)
            assert record.exit_code == code
            assert not (self.pack / "members" / inbox.format_number(number) / "env").exists()
        assert inbox.list_waiting(str(self.pack)) is None, text
        # That of the cancelled one, killed where its start had not been seen: no other is worse.
        assert self.runner.returncode in (143, 137), text


@pytest.fixture
def packs() -> Iterator[list[SoftPack]]:
    """The packs of a test; whatever becomes of it, their runners end."""
    made: list[SoftPack] = []
    yield made
    for pack in made:
        pack.close()


def run_pack(
    packs: list[SoftPack],
    folder: Path,
    layer: Path,
    seed: int,
    rate: int,
    **more: str,
) -> None:
    pack = SoftPack(folder, layer, seed, rate, **more)
    packs.append(pack)

    def is_up() -> bool:
        assert pack.runner.poll() is None, pack.log.read_text()
        return pack.count_starts(IS_CANCELLED) == 1

    # Each wrapper may see half a minute in which nothing can be written.
    wait_until(is_up, "the fourth member runs", patience_s=240)
    has_joined = pack.join()
    assert has_joined, pack.log.read_text() + (pack.pack / "events.jsonl").read_text()
    pack.cancel()
    what = f"the runner ends: {pack.log}"
    wait_until(lambda: pack.runner.poll() is not None, what, patience_s=240)
    pack.check(has_joined)
    assert "Traceback" not in pack.log.read_text()


@pytest.mark.parametrize(("seed", "rate"), [(0, 0), (1, 10), (2, 30), (3, 60), (4, 90)])
def test_no_failure_of_the_file_system_ends_a_pack_or_loses_a_member(
    packs: list[SoftPack], tmp_path: Path, layer: Path, seed: int, rate: int
) -> None:
    run_pack(packs, tmp_path, layer, seed, rate)
    assert list_requests(packs[0].pack) == [] or rate > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [(11, 20, {}), (12, 60, {}), (13, 10, {"SOFT_READ_ONLY": "1:30"})],
    ids=["few", "many", "read-only"],
)
def test_nor_of_members_that_are_paused_and_whose_wrappers_see_it_fail_too(
    packs: list[SoftPack], tmp_path: Path, layer: Path, case: tuple[int, int, dict[str, str]]
) -> None:
    seed, rate, more = case
    more = {"SOFT_PAUSES": str(seed), "SOFT_MARK": "soft_runner.py,wrapper.py", "NAP": "3", **more}
    run_pack(packs, tmp_path, layer, seed, rate, **more)
    # A pause may be one that could not be written.
    events = (packs[0].pack / "events.jsonl").read_text()
    assert read_pauses(packs[0].pack) or '"pause_not_written"' in events
    named = os.fsencode(f"{tmp_path}/")
    for process in list_processes():
        if process.state == "T":
            with contextlib.suppress(OSError):
                assert named not in Path(f"/proc/{process.id.pid}/environ").read_bytes()


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch", range(20))
def test_two_hundred_packs_on_a_file_system_that_fails(
    packs: list[SoftPack], tmp_path: Path, layer: Path, batch: int
) -> None:
    for seed in range(100 + 10 * batch, 110 + 10 * batch):
        run_pack(packs, tmp_path / str(seed), layer, seed, 5 + seed * 7 % 90)
