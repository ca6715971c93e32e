"""`shared(loader)`: in a pack, one loader for all members that load the same.

    loader = slurm_colloc.shared(DataLoader(pictures, batch_size=64, shuffle=True, num_workers=4))

Outside a pack it is the loader itself. docs/loader.md tells what is shared, and what is not.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import select
import socket
import sys
import time
import warnings
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, TypeVar

from slurm_colloc.loading import batch_blocks
from slurm_colloc.loading.batch_blocks import close_private, keep_private
from slurm_colloc.loading.epoch_state import WINDOW_MOST, MemberEpoch
from slurm_colloc.loading.members import APART, MeetingPlace, find_pack_directory, is_worth_waiting
from slurm_colloc.loading.producer import EpochServer, begin_worker, prove, run_producer
from slurm_colloc.loading.same_loader import (
    compute_order_digest,
    find_obstacle,
    has_free_order,
    identify,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    Batches = list[list[Any]]

Loader = TypeVar("Loader")

LOOK_S = 0.5
ANSWER_S = 10.0
"""A producer that does not answer for so long is done without."""
POLL_S = 0.05
LINGER_S = 5.0
"""How long a program's end waits for those who are some batches behind."""

_said: set[str] = set()


def shared(loader: Loader, *, key: str | None = None) -> Loader:
    """Share a DataLoader with the other members of the pack that have the same.

    All of them get each sample once an epoch, in the same order and with the same augmentations.

    Args:
        loader: A DataLoader of torch, or what `accelerate` has made of one.
        key: A name for what it loads. Loaders of the same key are the same, whatever their
            datasets are; without it they are compared by their contents and the program's code.

    Returns:
        The loader itself outside a pack, or where it cannot be shared, which is said once; else a
        loader of the same class that may be used in its place.
    """
    pack = find_pack_directory()
    if not pack:
        return loader
    # accelerate's: it moves to the device what the loader inside gives.
    if "base_dataloader" in getattr(loader, "__dict__", {}):
        outer: Any = loader
        outer.base_dataloader = shared(outer.base_dataloader, key=key)
        return loader
    if "_slurm_colloc_sharing" in getattr(loader, "__dict__", {}):
        return loader
    obstacle = find_obstacle(loader)
    if not obstacle:
        try:
            place = MeetingPlace(pack, *identify(loader, key))
        except OSError as error:
            obstacle = f"{error.filename or 'the pack'}: {error.strerror}"
        except Exception as error:
            obstacle = f"its parts cannot be compared ({type(error).__name__}); key= names it"
        else:
            # multiprocessing would wait for ever; what is registered later is called before that.
            atexit.unregister(_end_producers)
            atexit.register(_end_producers)
            _places.append(place)
            return _make_shared(loader, place)
    _say(obstacle)
    return loader


def _say(reason: str) -> None:
    _say_once(f"a loader is used as it is, not shared: {reason}")


def _say_once(sentence: str) -> None:
    # Names are the program's own.
    sentence = "".join(c if c.isprintable() else "?" for c in sentence)
    if sentence not in _said:
        _said.add(sentence)
        sys.stderr.write(f"slurm_colloc: {sentence}\n")


def _name_members(names: list[str]) -> str:
    ordered = sorted(names, key=lambda name: (len(name), name))
    return f"member{'s' * (len(names) > 1)} {', '.join(ordered)}"


_classes: dict[type, type] = {}


def _make_shared(loader: Loader, place: MeetingPlace) -> Loader:
    kind = type(loader)
    if kind not in _classes:
        bases = (_SharedIteration, kind)
        _classes[kind] = type(kind.__name__, bases, {"__module__": kind.__module__})
    made: Any = object.__new__(_classes[kind])
    vars(made).update(vars(loader), _slurm_colloc_sharing=Sharing(place, has_free_order(loader)))
    shared_one: Loader = made
    return shared_one


class _SharedIteration:
    """What a loader becomes that is shared; all else is the loader's own."""

    def __iter__(self) -> Any:
        sharing = vars(self).get("_slurm_colloc_sharing")
        # Frameworks may build another loader of this class; it is an ordinary one.
        if sharing is None or not sharing.is_usable():
            return super().__iter__()  # type: ignore[misc]
        return sharing.begin(self)


def build_loader(loader: Any, batches: Batches, workers: int) -> Any:
    """An ordinary loader that gives certain batches of another's, in their order."""
    kinds = type(loader).__mro__
    made: Any = object.__new__(
        next(kind for kind in kinds if not issubclass(kind, _SharedIteration))
    )
    vars(made).update(
        vars(loader), batch_sampler=batches, num_workers=workers, persistent_workers=False,
        _iterator=None,
    )  # fmt: skip
    vars(made).pop("_slurm_colloc_sharing", None)
    if workers == 0:
        vars(made).update(prefetch_factor=None, timeout=0)
    return made


class SharedEpoch:
    """A member's part in an epoch that is shared.

    Args:
        channel: Connected to the producer, which has let the member in.
        batches: The epoch.
    """

    def __init__(self, channel: socket.socket, batches: Batches) -> None:
        self.batches = batches
        self.failure = ""
        self.progress = MemberEpoch(len(batches))
        self._channel = channel
        self._producer = batch_blocks.read_peer(channel)[0]
        batch_blocks.send(channel, batch_blocks.WANT, 0)

    def draw(self) -> Iterator[Any]:
        """Give batches, from the first on, until the last, or until the producer gives no more."""
        try:
            while self.progress.taken < len(self.batches):
                self._wait()
                kind, number, head, more, descriptor = batch_blocks.receive(self._channel)
                is_batch = kind == batch_blocks.BATCH and descriptor >= 0
                if not is_batch or not self.progress.is_next(number):
                    self.failure = more.decode() if kind == batch_blocks.FAILED else ""
                    return
                wanted = self.progress.choose_wanted()
                if wanted is not None:
                    # Asked for already, so that it is here when this one is used up. That the
                    # producer has gone shows when the next one is received.
                    with contextlib.suppress(OSError):
                        batch_blocks.send(self._channel, batch_blocks.WANT, wanted)
                batch = batch_blocks.unpack_batch(descriptor, head)
                self.progress.taken += 1
                yield batch
        except (EOFError, OSError):
            return
        finally:
            close_private(self._channel)

    def _wait(self) -> None:
        """Wait for the producer, unless it was stopped, as its member is while it is paused."""
        poller = select.poll()
        poller.register(self._channel.fileno(), select.POLLIN)
        stopped = 0
        while not poller.poll(LOOK_S * 1000):
            stopped = stopped + 1 if is_stopped(self._producer) else 0
            if stopped > 1:
                raise EOFError


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


class Sharing:
    """How one loader of this process is shared.

    Args:
        place: Where it meets the others.
        free: Whether any order will do.
    """

    def __init__(self, place: MeetingPlace, free: bool) -> None:
        self._place = place
        self._free = free
        self._pid = os.getpid()
        self._given_up = False
        self._told_with: set[str] = set()
        self._told_apart: set[str] = set()
        self._iterating = 0

    def is_usable(self) -> bool:
        """Whether the next epoch may be shared: not in a forked child, nor within another."""
        return not self._given_up and not self._iterating and os.getpid() == self._pid

    def begin(self, loader: Any) -> Iterator[Any]:
        """Begin an epoch, and give its batches."""
        import torch

        # As an ordinary loader draws, in its order: a seed for its workers, then the epoch's.
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
        order = list(loader.batch_sampler.sampler)
        batches = _divide(order, loader.batch_sampler)
        session = None
        if all(type(index) is int for index in order):
            try:
                session = self._join(loader, order, batches, seed)
            except OSError as error:
                _say(f"{type(error).__name__}: {error.strerror}")
        else:
            self._given_up = True
            _say("its sampler gives no whole numbers")
        return self._draw(loader, batches, session)

    def _draw(self, loader: Any, batches: Batches, session: SharedEpoch | None) -> Iterator[Any]:
        taken = 0
        self._iterating += 1
        try:
            if session is not None:
                batches = session.batches
                self._place.begin_epoch(len(batches), shared=True)
                for batch in _counted(session.draw(), loader):
                    taken += 1
                    self._place.take_batch(taken)
                    # By then no one is let in any more.
                    if taken == min(WINDOW_MOST + 1, len(batches)):
                        self._say_company(loader)
                    yield _pin(batch, loader)
                if session.failure[:1] == "!":
                    self._given_up = True
                    _say(session.failure[1:])
                elif session.failure:
                    _say_once(
                        f"the process that makes shared batches ended an epoch: {session.failure}; "
                        "this member goes on with its own loader"
                    )
            else:
                self._place.begin_epoch(len(batches), shared=False)
                self._say_company(loader)
            if taken < len(batches):
                self._place.go_apart()
                for batch in build_loader(loader, batches[taken:], loader.num_workers):
                    taken += 1
                    self._place.take_batch(taken)
                    yield batch
        finally:
            self._iterating -= 1
            if os.getpid() == self._pid:
                self._place.stand_idle()

    def _say_company(self, loader: Any) -> None:
        """With whom it is shared, and by what; with whom not, and why."""
        with contextlib.suppress(OSError):
            self._compare(loader)

    def _compare(self, loader: Any) -> None:
        kind = f"the loader of {type(loader.dataset).__name__}"
        others = self._place.find_sharing()
        # Who ends is no news.
        if not self._told_with.issuperset(others):
            self._told_with.update(others)
            _say_once(f"{kind} is shared with {_name_members(others)} (key {self._place.identity})")
        apart: dict[str, list[str]] = {}
        for member, differing in self._place.find_apart().items():
            if member not in self._told_apart:
                self._told_apart.add(member)
                apart.setdefault(differing[0] if differing else "what it loads", []).append(member)
        for first, others in apart.items():
            _say_once(
                f"{kind} is not shared with {_name_members(others)}: {first} differs (key= names "
                "those that may be shared all the same)"
            )

    # -- finding those with whom to share it --------------------------------------------------

    def _join(
        self, loader: Any, order: list[int], batches: Batches, seed: int
    ) -> SharedEpoch | None:
        """The epoch that is shared; None where the member makes this one for itself."""
        digest = bytes(16) if self._free else compute_order_digest(order)
        deadline: float | None = None
        self._place.stand_idle()
        while True:
            with self._place.locked(ANSWER_S) as alone:
                if not alone:
                    return None
                answer = self._knock(loader, digest)
                if isinstance(answer, SharedEpoch):
                    return answer
                if answer is None:
                    if not self._has_company():
                        return None
                    self._start_producer(loader, order, batches, seed)
                    answer = self._knock(loader, digest)
                    return answer if isinstance(answer, SharedEpoch) else None
            left_s, epoch_s = answer
            now = time.monotonic()
            if deadline is None:
                part = min(self._place.state.part, APART)
                if not is_worth_waiting(left_s, epoch_s, part):
                    return None
                deadline = now + 2 * left_s + 1
            if now > deadline:
                return None
            time.sleep(POLL_S)

    def _has_company(self) -> bool:
        if next(self._place.list_others(), None) is not None:
            return True
        return self._place.state.total == 0 and self._place.compute_start_patience_s() > 0

    def _knock(self, loader: Any, digest: bytes) -> SharedEpoch | tuple[float, float] | None:
        """Ask the newest producer to be let in.

        Returns:
            The session; or how long its epoch still takes, and takes in all; None where there is
            no producer, or it is at its end.
        """
        channel = self._place.connect()
        if channel is None:
            return None
        descriptor = -1
        try:
            if batch_blocks.read_peer(channel)[1] != os.geteuid():
                return None
            nonce = os.urandom(16)
            proof = prove(self._place.key, "member", nonce)
            more = nonce + proof + digest + self._place.name.encode()
            batch_blocks.send(channel, batch_blocks.HELLO, more=more)
            channel.settimeout(ANSWER_S)
            kind, left, head, answer, descriptor = batch_blocks.receive(channel)
            if answer != prove(self._place.key, "producer", nonce):
                return None
            if kind == batch_blocks.CLOSED:
                return (left / 1e3, head / 1e3) if left else None
            order = batch_blocks.unpack_batch(descriptor, head).tolist()
            descriptor = -1
            batches = _divide(order, loader.batch_sampler)
            channel.settimeout(None)
            session = SharedEpoch(keep_private(channel), batches)
            channel = None
            return session
        except (EOFError, OSError):
            return None
        finally:
            if descriptor >= 0:
                os.close(descriptor)
            if channel is not None:
                channel.close()

    def _start_producer(self, loader: Any, order: list[int], batches: Batches, seed: int) -> None:
        import torch

        others = list(self._place.list_others())
        cpus = set(os.sched_getaffinity(0)).union(*(each for _, _, each in others))
        own = loader.num_workers
        workers = max(own, min(own * (1 + len(others)), len(cpus)))
        made = build_loader(loader, batches, workers)
        begin = partial(begin_worker, loader.worker_init_fn)
        vars(made).update(pin_memory=False, worker_init_fn=begin)
        block = batch_blocks.pack_batch(torch.tensor(order, dtype=torch.int64))
        read_end, write_end = os.pipe()
        lifeline = keep_private(os.fdopen(write_end, "wb"))
        listener = self._place.listen()
        try:
            server = EpochServer(
                self._place,
                listener=listener,
                lifeline=read_end,
                order=block,
                digest=compute_order_digest(order),
                total=len(batches),
            )
            process = multiprocessing.get_context("fork").Process(
                target=run_producer, args=(made, seed, server, cpus), name="slurm_colloc loader"
            )
            with warnings.catch_warnings():
                # Of a fork beside threads, as workers of a loader are forked too.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
        except AssertionError as error:
            close_private(lifeline)
            raise OSError(0, str(error)) from error
        finally:
            listener.close()
            block.close()
            os.close(read_end)
        _keep_alive(process, lifeline)


_places: list[MeetingPlace] = []
_producers: list[tuple[Any, Any]] = []
"""Producers that are children of this process, with the pipe at whose end they end."""


def _forget_inherited() -> None:
    _places.clear()
    _producers.clear()


os.register_at_fork(after_in_child=_forget_inherited)


def _keep_alive(process: Any, lifeline: Any) -> None:
    for old in [each for each in _producers if not each[0].is_alive()]:
        close_private(old[1])
        _producers.remove(old)
    _producers.append((process, lifeline))


def _end_producers() -> None:
    """At the program's end: let the others have what is made for them already, but not for long."""
    for place in _places:
        place.leave()
    deadline = time.monotonic() + LINGER_S
    for process, lifeline in _producers:
        process.join(max(0.0, deadline - time.monotonic()))
        close_private(lifeline)


def _divide(order: list[Any], sampler: Any) -> Batches:
    size = sampler.batch_size
    batches = [order[begin : begin + size] for begin in range(0, len(order), size)]
    if sampler.drop_last and batches and len(batches[-1]) < size:
        batches.pop()
    return batches


def _pin(batch: Any, loader: Any) -> Any:
    import torch

    if not (loader.pin_memory and torch.cuda.is_available()):
        return batch
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory(batch)


def _counted(batches: Iterator[Any], loader: Any) -> Iterator[Any]:
    """Count batches as those of an ordinary loader are, where the pack counts them."""
    counting = sys.modules.get("_slurm_colloc_instrument.torch_loader")
    if counting is None:
        yield from batches
        return
    while True:
        begun_ns = monotonic_ns()
        try:
            batch = next(batches)
        except StopIteration:
            return
        if counting.tally.active:
            samples = counting.measure_batch(batch)
            counting.tally.count_batch(id(loader.batch_sampler), samples, begun_ns, monotonic_ns())
        yield batch
