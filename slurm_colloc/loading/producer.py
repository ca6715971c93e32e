"""The process that makes the batches of one epoch, once for all members that share them.

It is a child of the member that came first, ends with that member, and serves who has joined
before the first batch was dropped. A thread answers; the main thread draws from the loader.
"""

from __future__ import annotations

import contextlib
import gc
import hmac
import multiprocessing
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from slurm_colloc.loading import batch_blocks
from slurm_colloc.loading.batch_blocks import Block, CannotBeShared, close_private, keep_private
from slurm_colloc.loading.members import compute_patience_s

if TYPE_CHECKING:
    from slurm_colloc.loading.members import MeetingPlace

WINDOW_MOST = 16
WINDOW_LEAST = 2
WINDOW_BYTES = 256 << 20
"""Batches that one member may be ahead of another: so many bytes of them, within these numbers."""

PATIENCE_LEAST_S = 2.0
"""How long members that are a window behind hold the others up before they must go, at least."""
PATIENCE_SHARE = 0.05
"""And so much of an epoch: those who are as slow as that are better shared with."""

LOOK_S = 0.05
NO_ONE_S = 10.0
"""After which a producer that no one has come to ends."""


def prove(key: bytes, who: str, nonce: bytes) -> bytes:
    """What shows that a process knows the pack's key."""
    return hmac.new(key, who.encode() + nonce, "sha256").digest()


class Consumer:
    """A member that is served.

    Attributes:
        channel: Its socket.
        name: As it is called at the meeting place; empty until it has proved itself.
        cursor: The batch that it needs next.
        waits: Whether it has asked for that, and not been given it.
    """

    __slots__ = ("channel", "cursor", "name", "waits")

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.name = ""
        self.cursor = 0
        self.waits = False


class EpochServer:
    """One epoch, and those who share it.

    Args:
        place: Where they meet.
        listener: At which they come.
        lifeline: Becomes readable when the member whose child this is ends.
        order: The epoch's order, as a block.
        digest: Of the order, which a member that has its own must have too.
        total: Batches in the epoch.
    """

    def __init__(
        self,
        place: MeetingPlace,
        *,
        listener: socket.socket,
        lifeline: int,
        order: Block,
        digest: bytes,
        total: int,
    ) -> None:
        self.place = place
        self.listener = listener
        self.lifeline = lifeline
        self.order = order
        self.digest = digest
        self.total = total
        self.window = WINDOW_LEAST
        self.made = 0
        self.failure = ""
        self.is_over = False
        self._base = 0
        self._blocks: dict[int, Block] = {}
        self._changed = threading.Condition()
        self._consumers: dict[int, Consumer] = {}
        self._is_open = True
        self._opened_ns = time.monotonic_ns()
        self._closed_ns = 0
        # For how long members have waited for slower ones.
        self._held_s = 0.0
        self._looked_at = 0.0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    # -- the main thread ----------------------------------------------------------------------

    def add(self, block: Block) -> bool:
        """Offer the next batch, and wait for room for one more; False once it is over."""
        with self._changed:
            if self.made == 0:
                fitting = WINDOW_BYTES // max(block.size, 1)
                self.window = max(WINDOW_LEAST, min(WINDOW_MOST, fitting))
            self._blocks[self.made] = block
            self.made += 1
            self._wake()
            while self.made - self._base >= self.window and not self.is_over:
                self._changed.wait()
            return not self.is_over

    def fail(self, reason: str) -> None:
        """Tell all who share, after what was made, that there is no more."""
        with self._changed:
            self.failure = reason
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    # -- the thread that answers --------------------------------------------------------------

    def serve(self) -> None:
        """Answer until no one needs anything more."""
        try:
            while not self._is_finished():
                self._look()
        finally:
            with self._changed:
                self.is_over = True
                self._changed.notify_all()

    def _is_finished(self) -> bool:
        if any(each.name for each in self._consumers.values()):
            return False
        waited_s = (time.monotonic_ns() - self._opened_ns) / 1e9
        return not self._is_open or waited_s > NO_ONE_S

    def _look(self) -> None:
        poller = select.poll()
        for handle in (self.listener.fileno(), self.lifeline, self._wake_read, *self._consumers):
            poller.register(handle, select.POLLIN)
        ready = [handle for handle, _ in poller.poll(LOOK_S * 1000)]
        if self.lifeline in ready:
            # What others still need they make themselves.
            for worker in multiprocessing.active_children():
                worker.terminate()
            os._exit(0)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        for handle in ready:
            if handle in self._consumers:
                self._hear(handle)
        if self.listener.fileno() in ready:
            self._accept()
        with self._changed:
            self._answer_all()
            self._close_door()
            self._drop_slow()
            self._forget_blocks()

    def _accept(self) -> None:
        try:
            channel, _ = self.listener.accept()
        except OSError:
            # It has gone again, or there are too many open files.
            return
        if batch_blocks.read_peer(channel)[1] != os.geteuid():
            channel.close()
            return
        channel.setblocking(False)
        self._consumers[channel.fileno()] = Consumer(keep_private(channel))

    def _part(self, handle: int) -> None:
        close_private(self._consumers.pop(handle).channel)

    def _hear(self, handle: int) -> None:
        consumer = self._consumers[handle]
        try:
            kind, number, _, more, descriptor = batch_blocks.receive(consumer.channel)
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._part(handle)
            return
        if descriptor >= 0:
            os.close(descriptor)
        if kind == batch_blocks.HELLO and not consumer.name:
            self._welcome(handle, consumer, more)
        elif kind == batch_blocks.WANT and consumer.name and number >= consumer.cursor:
            consumer.cursor, consumer.waits = number, True
        else:
            self._part(handle)

    def _welcome(self, handle: int, consumer: Consumer, more: bytes) -> None:
        nonce, proof, digest, name = more[:16], more[16:48], more[48:64], more[64:]
        if not hmac.compare_digest(proof, prove(self.place.key, "member", nonce)):
            self._part(handle)
            return
        answer = prove(self.place.key, "producer", nonce)
        try:
            if self._is_open and digest in (bytes(16), self.digest):
                consumer.name = name.decode()
                size, fd = self.order.head, self.order.descriptor
                batch_blocks.send(
                    consumer.channel, batch_blocks.WELCOME, self.total, size, more=answer,
                    descriptor=fd,
                )  # fmt: skip
                return
            taken_s = (time.monotonic_ns() - self._opened_ns) / 1e9
            pace_ms = 1000 * taken_s / max(self.made, 1)
            left = 0 if self.failure else self.total - self.made
            batch_blocks.send(
                consumer.channel,
                batch_blocks.CLOSED,
                int(pace_ms * left),
                int(pace_ms * self.total),
                more=answer,
            )
        except OSError:
            pass
        self._part(handle)

    def _answer_all(self) -> None:
        for handle, consumer in list(self._consumers.items()):
            if not consumer.waits:
                continue
            block = self._blocks.get(consumer.cursor)
            try:
                if block is not None:
                    batch_blocks.send(
                        consumer.channel, batch_blocks.BATCH, consumer.cursor, block.head,
                        descriptor=block.descriptor,
                    )  # fmt: skip
                    consumer.waits = False
                elif self.failure:
                    text = self.failure.encode()
                    batch_blocks.send(consumer.channel, batch_blocks.FAILED, more=text)
                    # Who has just come was let in to be told; no one else need be.
                    self._is_open = False
                    self._part(handle)
            except OSError:
                # It has gone, or so many descriptors are under way that it must do without.
                self._part(handle)

    def _close_door(self) -> None:
        """Let no one in any more, once those have come who were worth waiting for."""
        here = {each.name for each in self._consumers.values() if each.name}
        if not self._is_open or not self.made or not here:
            return
        now_ns = time.monotonic_ns()
        patience_s = self.place.compute_start_patience_s()
        missing = set()
        for name, state, _ in self.place.list_others():
            if name not in here and name != self.place.name:
                missing.add(name)
                patience_s = max(patience_s, compute_patience_s(state, now_ns, self._opened_ns))
        if patience_s <= 0:
            self._is_open = False
            self._closed_ns = now_ns
            for name in missing:
                self.place.note_in_vain(name)

    def _drop_slow(self) -> None:
        """Part from those who are a window behind and have held up others for as long as that."""
        now = time.monotonic()
        spent_s = now - self._looked_at
        self._looked_at = now
        waiting = any(each.waits and each.cursor >= self.made for each in self._consumers.values())
        if self._is_open or not waiting or self.made - self._base < self.window:
            return
        self._held_s += spent_s
        epoch_s = (time.monotonic_ns() - self._closed_ns) / 1e9
        a_window_s = self.window * max(0.0, epoch_s - self._held_s) / self.made
        if self._held_s < max(PATIENCE_LEAST_S, a_window_s) + PATIENCE_SHARE * epoch_s:
            return
        self._held_s = 0.0
        for handle, consumer in list(self._consumers.items()):
            if consumer.cursor <= self._base:
                with contextlib.suppress(OSError):
                    batch_blocks.send(consumer.channel, batch_blocks.DROPPED)
                self._part(handle)

    def _forget_blocks(self) -> None:
        if self._is_open:
            return
        cursors = [each.cursor for each in self._consumers.values() if each.name]
        base = min(cursors, default=self.made)
        while self._base < min(base, self.made):
            self._blocks.pop(self._base).close()
            self._base += 1
            self._changed.notify_all()


def run_producer(loader: Any, seed: int, server: EpochServer, cpus: set[int]) -> None:
    """Make an epoch and serve it; runs in the child that was forked for it.

    Args:
        loader: Gives the epoch's batches, in its order, as often as it is iterated.
        seed: For what is random in the transforms.
        server: The epoch.
        cpus: Of all who share it.
    """
    _stand_alone(seed, cpus)
    keep_private(server.listener)
    # Workers are forked before there is a thread.
    failure = ""
    try:
        batches = iter(loader)
    except Exception as error:
        batches, failure = iter(()), f"{type(error).__name__}"
    thread = threading.Thread(target=server.serve, name="slurm_colloc answers", daemon=True)
    thread.start()
    try:
        _make(batches, server)
    except CannotBeShared as reason:
        failure = f"!{reason}"
    except Exception as error:
        failure = type(error).__name__
    if failure or server.made < server.total:
        server.fail(failure or "it gave fewer batches than it has")
    thread.join()


def _make(batches: Any, server: EpochServer) -> None:
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        block = batch_blocks.pack_batch(batch)
        del batch
        if not server.add(block):
            return


def _stand_alone(seed: int, cpus: set[int]) -> None:
    """Be no part of the training any more: not its signals, its counts or its random numbers."""
    import torch

    # What it has on a GPU is not this process's to free.
    gc.freeze()
    for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCONT"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    for name in ("SIGTERM", "SIGCHLD"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus)
    counting = sys.modules.get("_slurm_colloc_instrument.tally")
    if counting is not None:
        counting.tally.active = False
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
