"""The phases of csub probe --stalls, on a clock of their own and in programs."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections import UserList
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.instrument import torch_stalls
from slurm_colloc.instrument.layout import STALLS
from slurm_colloc.instrument.torch_stalls import Lockstep, StallPhases
from slurm_colloc.metrics.input_stalls import InputStalls, compute_stalls

from .counted_programs import PROGRAMS, build_environment, run, run_python

GPU_S, COPY_S, DECODE_S, DISK_S = 0.04, 0.01, 0.03, 0.02


class Tensor:
    """What is to be copied to a GPU, which takes its time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def to(self, device: str) -> str:
        self.clock.now += COPY_S
        return device

    def cuda(self) -> str:
        return self.to("cuda")


class Clock:
    """Time that passes only as it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Dropper:
    """Makes what the loader reads cold."""

    def __init__(self) -> None:
        self.turn = 0
        self.dropped = 0

    def set_turn(self, turn: int) -> None:
        self.turn = turn

    def drop_now(self, _: object) -> None:
        self.dropped += 1


class FakeIterator:
    """One epoch of a loader without workers."""

    _num_workers = 0

    def __init__(self, training: Training, sampler: list[int]) -> None:
        self._dataset_kind = training.kind
        self._index_sampler = sampler
        self._sampler_iter = iter(sampler)
        self._training = training

    def fetch(self) -> list[Any]:
        training = self._training
        index = training.phases.choose_index(self, lambda it: next(it._sampler_iter))
        training.drawn.append(index)
        training.clock.now += DECODE_S
        if training.dropper.turn:
            training.clock.now += DISK_S
        return [Tensor(training.clock), index]


class Training:
    """Epochs of steps until the phases are over."""

    def __init__(self, path: Path, *, kind: int = 0, epoch: int = 40) -> None:
        self.clock, self.dropper, self.kind, self.epoch = Clock(), Dropper(), kind, epoch
        self.phases = StallPhases(
            str(path),
            self.dropper,  # type: ignore[arg-type]
            Tensor,
            lambda: Lockstep([0] * Lockstep.count_words(1)),
            self.clock,
        )
        self.drawn: list[int] = []
        self.got: list[Any] = []
        self.sampler = list(range(epoch))
        self.validation = list(range(5))

    def is_over(self) -> bool:
        return self.phases.over

    def read(self, sampler: list[int]) -> Iterator[list[Any]]:
        iterator = FakeIterator(self, sampler)
        while True:
            try:
                yield self.phases.take(iterator, FakeIterator.fetch)
            except StopIteration:
                return

    def run(self, counted: SimpleNamespace, *, most: int = 20_000, breaks: bool = False) -> None:
        while len(self.got) < most and not self.is_over():
            for number, batch in enumerate(self.read(self.sampler)):
                self.got.append(batch)
                batch[0].to("cuda")
                self.clock.now += GPU_S
                counted.count_of_steps += 1
                if self.is_over() or (breaks and number + 1 == self.epoch):
                    break
            for batch in self.read(self.validation) if breaks else ():
                self.clock.now += 5.0
                batch[0].to("cuda")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    steps = SimpleNamespace(count_of_steps=0)
    monkeypatch.setattr(torch_stalls, "tally", steps)
    monkeypatch.setattr(torch_stalls, "measure_batch", lambda _: 1)
    return steps


def read_shares(path: Path) -> InputStalls:
    stalls = compute_stalls(json.loads(path.read_text()))
    assert stalls is not None
    return stalls


@pytest.mark.parametrize("breaks", [False, True])
def test_what_was_injected_is_told(tmp_path: Path, counted: SimpleNamespace, breaks: bool) -> None:
    path = tmp_path / "stalls"
    training = Training(path)
    training.run(counted, breaks=breaks)
    stalls = read_shares(path)
    found = (stalls.gpu, stalls.copies, stalls.decoding, stalls.disk)
    assert found == pytest.approx((0.4, 0.1, 0.3, 0.2), abs=0.01)
    assert stalls.turns == torch_stalls.TURNS
    assert training.dropper.turn == 0, "nothing is dropped any more"
    assert training.dropper.dropped >= torch_stalls.TURNS


def test_afterwards_the_loader_is_as_it_was(tmp_path: Path, counted: SimpleNamespace) -> None:
    training = Training(tmp_path / "stalls")
    training.run(counted)
    assert [batch[1] for batch in training.read(training.sampler)] == training.sampler
    assert all("to" not in batch[0].__dict__ for batch in training.got)


def test_an_iterable_data_set_is_named(tmp_path: Path, counted: SimpleNamespace) -> None:
    path = tmp_path / "stalls"
    training = Training(path, kind=1)
    training.run(counted, most=100)
    assert "IterableDataset" in json.loads(path.read_text())["problem"]
    # It got its own batches all the time.
    assert [batch[1] for batch in training.got] == training.drawn


def test_batches_without_counted_steps_are_named(tmp_path: Path, counted: SimpleNamespace) -> None:
    path = tmp_path / "stalls"
    training = Training(path)
    for _ in range(50):
        for _ in training.read(training.sampler):
            training.clock.now += GPU_S
    assert counted.count_of_steps == 0
    assert "no step of an optimizer is counted" in json.loads(path.read_text())["problem"]


def test_a_surprise_leaves_the_program_its_own_batches(
    tmp_path: Path, counted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stalls"
    training = Training(path)

    def fail(_: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(training.dropper, "drop_now", fail)
    training.run(counted)
    assert "ZeroDivisionError: by nothing" in json.loads(path.read_text())["problem"]
    assert [batch[1] for batch in training.read(training.sampler)] == training.sampler


def test_only_one_process_of_a_program_is_measured(
    tmp_path: Path, counted: SimpleNamespace
) -> None:
    path = tmp_path / "stalls"
    (tmp_path / "stalls.begun").touch()
    training = Training(path)
    training.run(counted)
    assert not path.exists()
    assert [batch[1] for batch in training.got] == training.drawn


EXCHANGE_S = 0.05


class Rank(Training):
    """One process of a training, whose steps meet those of the others."""

    def __init__(self, path: Path, words: list[int], rank: int, **more: int) -> None:
        super().__init__(path, **more)
        self.lockstep = Lockstep(words, rank, 2)
        self.phases = StallPhases(
            str(path),
            self.dropper,  # type: ignore[arg-type]
            Tensor,
            lambda: self.lockstep,
            self.clock,
        )
        self.steps = self.apart = self.validates_every = 0

    def validate(self) -> None:
        """As many programs let one process do alone."""
        for batch in self.read(self.validation):
            self.clock.now += 1.0
            batch[0].to("cuda")

    def train(
        self, counted: SimpleNamespace, gpu_s: float, *, exchanges: bool = True
    ) -> Iterator[None]:
        """Steps without end; yields where it exchanges, and does not go on until all do."""
        while True:
            iterator = FakeIterator(self, self.sampler)
            while True:
                counted.count_of_steps = self.steps
                try:
                    batch = self.phases.take(iterator, FakeIterator.fetch)
                except StopIteration:
                    break
                self.got.append(batch)
                batch[0].to("cuda")
                self.clock.now += gpu_s
                self.lockstep.exchanges += exchanges
                if exchanges and self.lockstep.is_apart(self.steps):
                    self.apart += 1
                else:
                    yield
                self.steps += 1
                if self.validates_every and self.steps % self.validates_every == 0:
                    self.validate()


def run_ranks(
    ranks: list[Rank], counted: SimpleNamespace, *, exchanges: bool = True, most: int = 5000
) -> None:
    """Let ranks train until the phases are over; the others are twice as fast as the first."""
    running = [
        rank.train(counted, GPU_S / (1 + number), exchanges=exchanges)
        for number, rank in enumerate(ranks)
    ]
    for _ in range(most):
        # The faster one is as far ahead as it gets.
        for generator in reversed(running):
            next(generator)
        now = max(rank.clock.now for rank in ranks) + EXCHANGE_S
        for rank in ranks:
            rank.clock.now = now
        if all(rank.is_over() for rank in ranks):
            return


def make_ranks(path: Path, **more: int) -> list[Rank]:
    words = [0] * Lockstep.count_words(2)
    return [Rank(path, words, number, **more) for number in (0, 1)]


def test_exchange_is_told_apart(tmp_path: Path, counted: SimpleNamespace) -> None:
    path = tmp_path / "stalls"
    ranks = make_ranks(path)
    run_ranks(ranks, counted)
    assert all(rank.is_over() for rank in ranks)
    stalls = read_shares(path)
    whole = GPU_S + EXCHANGE_S + COPY_S + DECODE_S + DISK_S
    found = (stalls.gpu, stalls.exchange, stalls.copies, stalls.decoding, stalls.disk)
    parts = (GPU_S, EXCHANGE_S, COPY_S, DECODE_S, DISK_S)
    assert found == pytest.approx([part / whole for part in parts], abs=0.01)
    assert (stalls.turns, stalls.processes, stalls.exchange_untold) == (torch_stalls.TURNS, 2, "")
    # As often exchanged: neither ever waits for what does not come.
    assert ranks[0].apart == ranks[1].apart > 0
    for rank in ranks:
        assert [batch[1] for batch in rank.read(rank.sampler)] == rank.sampler


def test_ranks_whose_epochs_differ_in_length_stay_in_step(
    tmp_path: Path, counted: SimpleNamespace
) -> None:
    path = tmp_path / "stalls"
    words = [0] * Lockstep.count_words(2)
    ranks = [Rank(path, words, 0, epoch=40), Rank(path, words, 1, epoch=37)]
    run_ranks(ranks, counted)
    assert all(rank.is_over() for rank in ranks)
    assert read_shares(path).exchange == pytest.approx(1 / 3, abs=0.01)


def test_one_rank_alone_may_validate(tmp_path: Path, counted: SimpleNamespace) -> None:
    path = tmp_path / "stalls"
    ranks = make_ranks(path)
    ranks[0].validates_every = 33
    run_ranks(ranks, counted)
    assert all(rank.is_over() for rank in ranks)
    assert ranks[0].apart == ranks[1].apart > 0
    assert read_shares(path).exchange == pytest.approx(1 / 3, abs=0.01)


class LateWords(UserList[int]):
    """Shared words of which a rank sees three steps too late that a phase begins."""

    def __init__(self, words: list[int], rank: Rank) -> None:
        super().__init__()
        self.data = words
        self.rank = rank

    def __getitem__(self, number: Any) -> Any:
        value = self.data[number]
        is_first = number == torch_stalls._STARTS
        return 0 if is_first and self.rank.steps < value + 3 else value


def test_a_late_rank_ends_the_phases_and_none_waits_forever(
    tmp_path: Path, counted: SimpleNamespace
) -> None:
    path = tmp_path / "stalls"
    words = [0] * Lockstep.count_words(2)
    ranks = [Rank(path, words, number) for number in (0, 1)]
    ranks[1].lockstep = Lockstep(LateWords(words, ranks[1]), 1, 2)
    run_ranks(ranks, counted)
    assert all(rank.is_over() for rank in ranks)
    assert json.loads(path.read_text())["problem"] == "its processes do not step together"
    # As often exchanged all the same.
    assert ranks[0].apart == ranks[1].apart > 0
    for rank in ranks:
        assert [batch[1] for batch in rank.read(rank.sampler)] == rank.sampler


def test_without_ddp_nothing_is_apart(tmp_path: Path, counted: SimpleNamespace) -> None:
    path = tmp_path / "stalls"
    ranks = make_ranks(path)
    run_ranks(ranks, counted, exchanges=False)
    stalls = read_shares(path)
    assert stalls.exchange is None
    assert "without DistributedDataParallel" in stalls.exchange_untold
    whole = GPU_S + EXCHANGE_S + COPY_S + DECODE_S + DISK_S
    assert (stalls.gpu, stalls.disk) == pytest.approx(
        ((GPU_S + EXCHANGE_S) / whole, DISK_S / whole), abs=0.01
    )


def test_one_rank_that_fails_ends_the_phases_of_all(
    tmp_path: Path, counted: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stalls"
    ranks = make_ranks(path)

    def fail(_: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(ranks[1].dropper, "drop_now", fail)
    run_ranks(ranks, counted)
    assert all(rank.is_over() for rank in ranks)
    assert "ZeroDivisionError: by nothing" in json.loads(path.read_text())["problem"]
    for rank in ranks:
        assert [batch[1] for batch in rank.read(rank.sampler)] == rank.sampler


def test_a_rank_that_takes_no_batches_is_named(tmp_path: Path, counted: SimpleNamespace) -> None:
    path = tmp_path / "stalls"
    ranks = make_ranks(path)[:1]
    run_ranks(ranks, counted)
    told = json.loads(path.read_text())["problem"]
    assert told.startswith("1 of its 2 processes take batches of a DataLoader")
    assert [batch[1] for batch in ranks[0].got] == ranks[0].drawn


@given(st.integers(0, 30), st.integers(1, 40))
def test_a_late_rank_is_apart_for_as_many_steps(ahead: int, lasting: int) -> None:
    words = [0] * Lockstep.count_words(2)
    first, other = (Lockstep(words, rank, 2) for rank in (0, 1))
    first.find_phase(10)
    other.find_phase(10)
    kept = list(words)
    first.announce(0, lasting)
    # The other goes on without having seen it.
    announced, words[:] = list(words), kept
    seen = [other.is_apart(step) for step in range(11, 11 + ahead)]
    words[:] = announced
    seen += [other.is_apart(step) for step in range(11 + ahead, 120)]
    mine = [first.is_apart(step) for step in range(11, 120)]
    assert sum(seen) == sum(mine) == lasting
    assert other.is_late == (10 + ahead >= 10 + torch_stalls.AHEAD)
    assert not first.is_late


def with_torch(test: Any) -> Any:
    """A test that trains."""
    is_missing = importlib.util.find_spec("torch") is None
    test = pytest.mark.skipif(is_missing, reason="PyTorch is missing")(test)
    return pytest.mark.long(pytest.mark.torch(test))


def run_two_processes(home: Path, how: str) -> tuple[list[dict[str, int]], InputStalls]:
    """What two processes of torchrun say, and what was found."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    result = home / "stalls"
    environment = build_environment(home) | {STALLS: str(result)}
    argv: list[str | Path] = [sys.executable, *launch, PROGRAMS / "exchanging.py", result, how]
    ended = run(argv, home, environment=environment)
    assert ended.code == 0, ended.stderr
    said = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert len(said) == 2
    return said, read_shares(result)


@with_torch
def test_two_processes_leave_out_the_same_exchanges(tmp_path: Path) -> None:
    said, stalls = run_two_processes(tmp_path, "ddp")
    assert said[0]["steps"] == said[1]["steps"]
    assert said[0]["exchanges"] == said[1]["exchanges"]
    least = torch_stalls.TURNS * torch_stalls.LEAST_BATCHES
    assert said[0]["steps"] - said[0]["exchanges"] >= least
    assert (stalls.processes, stalls.turns, stalls.exchange_untold) == (2, torch_stalls.TURNS, "")
    assert stalls.exchange is not None


@with_torch
def test_two_processes_without_ddp_tell_the_rest(tmp_path: Path) -> None:
    said, stalls = run_two_processes(tmp_path, "plain")
    assert said[0]["steps"] == said[1]["steps"]
    assert stalls.exchange is None
    assert stalls.exchange_untold == "its processes compute without DistributedDataParallel"


_COMPILED = """\
import torch
from torch._dynamo.utils import counters
from slurm_colloc.instrument import torch_stalls
from slurm_colloc.instrument.tally import Tally
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
exchanges = 0
def exchange(_, bucket):
    global exchanges
    exchanges += 1
    sent = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
    return sent.then(lambda done: done.value()[0])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model.register_comm_hook(None, exchange)
compiled = torch.compile(model, backend="eager")
steps = 0
Tally.count_of_steps = property(lambda _: steps)
def train(most):
    global steps
    for _ in range(most):
        compiled(torch.ones(2, 4)).sum().backward()
        steps += 1
train(5)
before = counters["stats"]["unique_graphs"]
lockstep = torch_stalls.Lockstep([0] * torch_stalls.Lockstep.count_words(1))
torch_stalls.hook_exchange(lockstep)
train(20)
lockstep.find_phase(steps)
lockstep.announce(0, 7)
train(20)
print(steps - exchanges, counters["stats"]["unique_graphs"] - before)
"""


@with_torch
def test_a_compiled_ddp_is_not_compiled_anew(tmp_path: Path) -> None:
    ended = run_python(_COMPILED, tmp_path)
    assert ended.code == 0, ended.stderr
    assert ended.stdout.split() == ["7", "0"]


_DROP = """\
import ctypes, os, sys
from slurm_colloc.instrument import torch_stalls
from slurm_colloc.instrument.layout import STALLS
path, mark = sys.argv[1:]
dropper = torch_stalls.PageDropper(mark)
def read():
    before = torch_stalls.read_bytes(None)[1]
    with open(path, "rb") as file:
        file.read()
    return torch_stalls.read_bytes(None)[1] - before
cached = read()
dropper.set_turn(1)
cold = read()
again = read()
dropper.set_turn(0)
print(cached, cold, again)
"""


def test_pages_are_dropped_once_in_a_turn(tmp_path: Path) -> None:
    path = Path(sys.executable).parent / f".stalls-{tmp_path.name}"
    try:
        with path.open("wb") as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        code = f"import sys; sys.argv[1:] = {[str(path), str(tmp_path / 'turn')]!r}\n{_DROP}"
        ended = run_python(code, tmp_path)
        assert ended.code == 0, ended.stderr
        cached, cold, again = (int(word) for word in ended.stdout.split())
        if not cold:
            pytest.skip("this file system keeps its pages elsewhere")
        assert cached == again == 0
        assert cold >= 1 << 20
    finally:
        path.unlink(missing_ok=True)
