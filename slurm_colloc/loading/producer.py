"""The process that makes the batches of one epoch, once for all members that share them.

It is a child of the member that came first, ends with that member, and serves who has joined
before the first batch was dropped. A thread answers; the main thread draws from the loader.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hmac
import multiprocessing
import multiprocessing.connection
import multiprocessing.queues
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
from slurm_colloc.loading.epoch_state import CLOSE, DROP, REFUSE, EpochState
from slurm_colloc.loading.members import compute_patience_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from slurm_colloc.loading.members import MeetingPlace, MemberPosition

LOOK_S = 0.05
ENDING_S = 0.5
"""Within which a worker that ends has ended."""


def prove(key: bytes, who: str, nonce: bytes) -> bytes:
    """What shows that a process knows the pack's key."""
    return hmac.new(key, who.encode() + nonce, "sha256").digest()


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
        self.state = EpochState(digest, total, time.monotonic())
        self.is_over = False
        self._blocks: dict[int, Block] = {}
        self._changed = threading.Condition()
        # Of all who have come; of those let in the state knows how far they are.
        self._channels: dict[int, socket.socket] = {}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    # -- the main thread ----------------------------------------------------------------------

    def add(self, block: Block) -> bool:
        """Offer the next batch, and wait for room for one more; False once it is over."""
        with self._changed:
            self._blocks[self.state.add(block.size)] = block
            self._wake()
            while not self.state.has_room() and not self.is_over:
                self._changed.wait()
            return not self.is_over

    def fail(self, reason: str) -> None:
        """Tell all who share, after what was made, that there is no more."""
        with self._changed:
            self.state.failure = reason
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    # -- the thread that answers --------------------------------------------------------------

    def serve(self) -> None:
        """Answer until no one needs anything more."""
        try:
            while not self.state.is_finished(time.monotonic()):
                self._look()
        finally:
            with self._changed:
                self.is_over = True
                self._changed.notify_all()

    def _look(self) -> None:
        poller = select.poll()
        for handle in (self.listener.fileno(), self.lifeline, self._wake_read, *self._channels):
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
            if handle in self._channels:
                self._hear(handle)
        if self.listener.fileno() in ready:
            self._accept()
        with self._changed:
            for act, handle in self.state.list_answers():
                self._answer(act, handle)
            for act, number in self.state.list_changes(time.monotonic(), self._compute_patience_s):
                self._change(act, number)

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
        self._channels[channel.fileno()] = keep_private(channel)

    def _part(self, handle: int) -> None:
        self.state.part(handle)
        close_private(self._channels.pop(handle))

    def _hear(self, handle: int) -> None:
        try:
            kind, number, _, more, descriptor = batch_blocks.receive(self._channels[handle])
        except BlockingIOError:
            return
        except (EOFError, OSError):
            self._part(handle)
            return
        if descriptor >= 0:
            os.close(descriptor)
        if kind == batch_blocks.HELLO and handle not in self.state.consumers:
            self._welcome(handle, more)
        elif kind != batch_blocks.WANT or not self.state.want(handle, number):
            self._part(handle)

    def _welcome(self, handle: int, more: bytes) -> None:
        nonce, proof, digest, name = more[:16], more[16:48], more[48:64], more[64:]
        if not hmac.compare_digest(proof, prove(self.place.key, "member", nonce)):
            self._part(handle)
            return
        kind, descriptor = batch_blocks.CLOSED, -1
        if self.state.let_in(handle, name.decode(errors="replace"), digest):
            kind, descriptor = batch_blocks.WELCOME, self.order.descriptor
            number, size = self.state.total, self.order.head
        else:
            number, size = self.state.compute_left_ms(time.monotonic())
        try:
            batch_blocks.send(
                self._channels[handle], kind, number, size,
                more=prove(self.place.key, "producer", nonce), descriptor=descriptor,
            )  # fmt: skip
        except OSError:
            kind = batch_blocks.CLOSED
        if kind == batch_blocks.CLOSED:
            self._part(handle)

    def _answer(self, act: int, handle: int) -> None:
        channel = self._channels[handle]
        if act == REFUSE:
            with contextlib.suppress(OSError):
                batch_blocks.send(channel, batch_blocks.FAILED, more=self.state.failure.encode())
            self._part(handle)
            return
        number = self.state.consumers[handle].cursor
        block = self._blocks[number]
        try:
            batch_blocks.send(
                channel, batch_blocks.BATCH, number, block.head, descriptor=block.descriptor
            )
        except OSError:
            # It has gone, or so many descriptors are under way that it must do without.
            self._part(handle)

    def _change(self, act: int, number: int) -> None:
        if act == CLOSE:
            for name, _ in self._list_missing():
                self.place.note_in_vain(name)
        elif act == DROP:
            with contextlib.suppress(OSError):
                batch_blocks.send(self._channels[number], batch_blocks.DROPPED)
            self._part(number)
        else:
            self._blocks.pop(number).close()
            self._changed.notify_all()

    def _list_missing(self) -> list[tuple[str, MemberPosition]]:
        here = {self.place.name, *(each.name for each in self.state.consumers.values())}
        return [(name, at) for name, at, _ in self.place.list_others() if name not in here]

    def _compute_patience_s(self, opened_s: float) -> float:
        """How much longer to wait for those who are worth waiting for."""
        now_ns, opened_ns = time.monotonic_ns(), int(opened_s * 1e9)
        found = (compute_patience_s(at, now_ns, opened_ns) for _, at in self._list_missing())
        return max(self.place.compute_start_patience_s(), *found, 0.0)


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
        batches, failure = iter(()), _name_failure(error, None)
    # torch's handler raises anywhere; without it a worker that ended is seen in 5 s.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    thread = threading.Thread(target=server.serve, name="slurm_colloc answers", daemon=True)
    thread.start()
    try:
        _make(batches, server)
    except CannotBeShared as reason:
        failure = f"!{reason}"
    except Exception as error:
        failure = _name_failure(error, batches)
    # Its workers end first, so that what they have in /dev/shm is there for the members' own.
    del batches
    if failure or server.state.made < server.state.total:
        server.fail(failure or "it gave fewer batches than it has")
    thread.join()


def begin_worker(init: Callable[[int], object] | None, number: int) -> None:
    """Let a worker end that cannot hand a batch over, where it would be waited for for ever.

    Args:
        init: The loader's own `worker_init_fn`.
        number: The worker's.
    """
    queue: Any = multiprocessing.queues.Queue
    queue._on_queue_feeder_error = staticmethod(_end_worker)
    if init is not None:
        init(number)


def _end_worker(error: Exception, _batch: object) -> None:
    is_full = "No space left on device" in str(error)
    os._exit(errno.ENOSPC if is_full else 1)


def _name_failure(error: Exception, batches: Any) -> str:
    """What went wrong, for members' logs; what torch raises in a worker tells by text."""
    workers = getattr(batches, "_workers", ())
    # What a worker has sent may be lost with it before it has quite ended.
    if workers:
        multiprocessing.connection.wait([each.sentinel for each in workers], ENDING_S)
    ends = {each.exitcode for each in workers}
    if ends & {errno.ENOSPC, -signal.SIGBUS} or "shared memory" in str(error):
        return "/dev/shm has no room for its workers"
    return type(error).__name__


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
