"""Which loaders are the same, who is waited for, and who is let in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from slurm_colloc.loading import batch_blocks  # noqa: E402
from slurm_colloc.loading.members import (  # noqa: E402
    APART,
    NEWCOMER,
    SHARING,
    MeetingPlace,
    MemberPosition,
    compute_patience_s,
    is_worth_waiting,
)
from slurm_colloc.loading.producer import EpochServer, prove  # noqa: E402
from slurm_colloc.loading.same_loader import identify  # noqa: E402
from slurm_colloc.runtime.pack_monitor import injected_environment  # noqa: E402
from slurm_colloc.store.progress_counters import read_member_progress  # noqa: E402

from .loader_programs import ROOT  # noqa: E402

pytestmark = pytest.mark.torch

# What a script of a user's may look like; it prints what its loader is.
SCRIPT = """
import random, sys, torch
from argparse import Namespace
from torch.utils.data import DataLoader, Dataset
from slurm_colloc.loading.same_loader import identify
args = Namespace(size=int(sys.argv[1]))
KINDS = {{"jpg", "png", "gif"}}
def crop(picture): return picture[:args.size]
class Pictures(Dataset):
    kinds = (1, 2)
    def __init__(self, transform):
        self.transform, self.data = transform, torch.arange({length})
    def __len__(self): return len(self.data)
    def __getitem__(self, index):
        if "jpg" in {{"jpg", "png", "gif"}}: return self.transform(self.data[index])
    @property
    def first(self): return self[0]
    @classmethod
    def make(cls): return cls(lambda picture: crop(picture){more})
torch.manual_seed(random.randrange(100))
print(identify(DataLoader(Pictures.make(), batch_size={batch}, shuffle=True), None)[0])
"""


def identify_in_script(
    directory: Path, size: int = 1, *, more: str = "", length: int = 9, batch: int = 2
) -> str:
    script = directory / "train.py"
    script.write_text(SCRIPT.format(more=more, length=length, batch=batch))
    return subprocess.run(
        [sys.executable, str(script), str(size)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.mark.long
def test_the_same_script_has_the_same_loader_and_another_one_another(tmp_path: Path) -> None:
    plain = identify_in_script(tmp_path)
    assert len(plain) == 16
    # Strings of a set come in another order in each process.
    assert identify_in_script(tmp_path) == plain
    others = [
        identify_in_script(tmp_path, 2),
        identify_in_script(tmp_path, more=" + 1"),
        identify_in_script(tmp_path, length=10),
        identify_in_script(tmp_path, batch=3),
    ]
    assert len({plain, *others}) == 5


def test_a_key_says_what_the_dataset_is_but_not_its_length() -> None:
    def build(length: int, value: float) -> Any:
        return DataLoader(TensorDataset(torch.full((length, 1), value)))

    assert identify(build(3, 1.0), None)[0] != identify(build(3, 2.0), None)[0]
    assert identify(build(3, 1.0), "k")[0] == identify(build(3, 2.0), "k")[0]
    assert identify(build(3, 1.0), "k")[0] != identify(build(4, 1.0), "k")[0]
    assert identify(build(3, 1.0), "k")[0] != identify(build(3, 1.0), "other")[0]


def make_state(**values: int) -> MemberPosition:
    state = MemberPosition(bytes(256))
    for name, value in values.items():
        setattr(state, name, value)
    return state


S = 1_000_000_000


@pytest.mark.parametrize(
    ("state", "patience_s"),
    [
        # It has named its loader 10 s ago; 40 s ago; and has been waited for already.
        (make_state(registered_ns=90 * S), 20),
        (make_state(registered_ns=60 * S), -10),
        (make_state(registered_ns=90 * S, in_vain=1), 0),
        # Between two epochs, since before the door was opened 2 s ago.
        (make_state(taken=7, total=7, changed_ns=60 * S), 3),
        # A newcomer that has made 6 of 10 batches in 6 s; 2 of 10 in 2 s.
        (make_state(begun_ns=94 * S, changed_ns=100 * S, taken=6, total=10), 4),
        (make_state(begun_ns=98 * S, changed_ns=100 * S, taken=2, total=10), 0),
        # One that went its own way is only waited for near its end; one that shares always.
        (make_state(begun_ns=94 * S, changed_ns=100 * S, taken=6, total=10, part=APART), 0),
        (make_state(begun_ns=91 * S, changed_ns=100 * S, taken=9, total=10, part=APART), 1),
        (make_state(begun_ns=94 * S, changed_ns=100 * S, taken=6, total=10, part=SHARING), 4),
        # That is a little late; and too late.
        (make_state(begun_ns=80 * S, changed_ns=98 * S, taken=9, total=9, part=SHARING), 3),
        (make_state(begun_ns=81 * S, changed_ns=99 * S, taken=36, total=37, part=SHARING), 1.0),
        (make_state(begun_ns=72 * S, changed_ns=90 * S, taken=36, total=37, part=SHARING), 0),
    ],
)
def test_members_are_waited_for_where_that_is_soon_over(
    state: MemberPosition, patience_s: float
) -> None:
    assert compute_patience_s(state, 100 * S, 98 * S) == pytest.approx(patience_s)


def test_no_one_waits_longer_than_it_is_worth() -> None:
    assert is_worth_waiting(40, 100, NEWCOMER)
    assert not is_worth_waiting(60, 100, NEWCOMER)
    assert not is_worth_waiting(40, 100, APART)
    assert not is_worth_waiting(130, 1000, NEWCOMER)
    assert not is_worth_waiting(0, 100, SHARING)


@pytest.fixture
def server(pack: Path) -> Any:
    place = MeetingPlace(str(pack), "0" * 16, {})
    lifeline, other = os.pipe()
    listener = place.listen()
    order = batch_blocks.pack_batch(torch.arange(3))
    serving = EpochServer(
        place, listener=listener, lifeline=lifeline, order=order, digest=b"d" * 16, total=3
    )
    thread = threading.Thread(target=serving.serve)
    thread.start()
    yield serving
    # The first who comes and goes again is the last one, too.
    if not serving.state.failure:
        for number in range(3):
            serving.add(batch_blocks.pack_batch([number]))
        channel = say_hello(place, place.key)
        assert batch_blocks.receive(channel)[0] == batch_blocks.WELCOME
        channel.close()
    thread.join()
    listener.close()
    os.close(lifeline)
    os.close(other)
    place.leave()


def say_hello(place: MeetingPlace, key: bytes, digest: bytes = bytes(16)) -> socket.socket:
    channel = place.connect()
    assert channel is not None
    nonce = os.urandom(16)
    more = nonce + prove(key, "member", nonce) + digest + b"name"
    batch_blocks.send(channel, batch_blocks.HELLO, more=more)
    return channel


def test_who_does_not_know_the_key_is_not_let_in(server: EpochServer) -> None:
    with say_hello(server.place, bytes(32)) as channel, pytest.raises(EOFError):
        batch_blocks.receive(channel)
    with say_hello(server.place, server.place.key, b"x" * 16) as channel:
        assert batch_blocks.receive(channel)[0] == batch_blocks.CLOSED


def test_who_asks_before_it_has_proved_itself_gets_nothing(server: EpochServer) -> None:
    channel = server.place.connect()
    assert channel is not None
    with channel:
        batch_blocks.send(channel, batch_blocks.WANT, 0)
        with pytest.raises(EOFError):
            batch_blocks.receive(channel)


def test_who_comes_after_the_producer_has_failed_is_told(server: EpochServer) -> None:
    server.fail("!why")
    with say_hello(server.place, server.place.key) as channel:
        assert batch_blocks.receive(channel)[0] == batch_blocks.WELCOME
        batch_blocks.send(channel, batch_blocks.WANT, 0)
        kind, _, _, more, _ = batch_blocks.receive(channel)
        assert (kind, more) == (batch_blocks.FAILED, b"!why")


@pytest.mark.root
def test_another_user_is_not_let_in_even_with_the_key(server: EpochServer, tmp_path: Path) -> None:
    # Through a way that the directories would not leave open.
    path = f"\0{tmp_path.name}.{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        listener.setblocking(False)
        own, server.listener = server.listener, listener
        code = (
            "import os, socket, sys; os.setuid(65534)\n"
            "channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "channel.connect('\\0' + sys.argv[1]); channel.settimeout(20)\n"
            "print(channel.recv(10))"
        )
        said = subprocess.run(
            [sys.executable, "-c", code, path[1:]], capture_output=True, text=True, check=False
        )
        assert said.stdout == "b''\n"
        server.listener = own


def test_a_directory_of_another_users_is_none_of_the_pack(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slurm_colloc.loading.members import find_pack_directory

    assert find_pack_directory() == str(pack)
    other = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: other)
    assert find_pack_directory() == ""


def test_a_member_that_has_gone_is_no_company(pack: Path) -> None:
    here = MeetingPlace(str(pack), "1" * 16, {})
    there = MeetingPlace(str(pack), "1" * 16, {})
    assert [name for name, *_ in here.list_others()] == [there.name]
    there.leave()
    assert list(here.list_others()) == []
    here.leave()


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_what_is_shared_is_counted_where_it_is_used(pack: Path, workers: int) -> None:
    own = pack / "0001.1"
    own.mkdir()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHONPATH")
    }
    environment |= injected_environment(environment, str(own))
    environment["PYTHONPATH"] += f":{ROOT}"
    program = Path(__file__).parent / "programs" / "counted.py"
    subprocess.run([sys.executable, str(program), str(workers)], env=environment, check=True)
    progress = read_member_progress(str(own))
    assert progress is not None
    assert [(each.steps, each.batches, each.samples) for each in progress.processes] == [
        (26, 26, 100)
    ]
