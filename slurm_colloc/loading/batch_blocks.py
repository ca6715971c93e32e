"""Batches as blocks of shared memory, and the messages with which they are handed over.

A block is a memfd: a pickled description, then the tensors. It belongs to no name in /dev/shm, so
it is gone with the last process that has it. Who receives one maps it privately: what a program
changes in its batch, its neighbours do not see.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
from collections import UserDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ALIGNED = 64
_PLAIN = (int, float, complex, bool, str, bytes, type(None))

MESSAGE = struct.Struct("<Bqq")
HELLO, WELCOME, CLOSED, WANT, BATCH, DROPPED, FAILED = range(1, 8)
LONGEST = 1024


class CannotBeShared(Exception):
    """A part of a batch that other processes cannot be given; the text says which."""


class Block:
    """A batch in shared memory.

    Attributes:
        descriptor: Of the memfd; `close` gives it back.
        head: Bytes of its description.
        size: Bytes in all.
    """

    __slots__ = ("descriptor", "head", "size")

    def __init__(self, descriptor: int, head: int, size: int) -> None:
        self.descriptor = descriptor
        self.head = head
        self.size = size

    def close(self) -> None:
        """Give the descriptor back; who has mapped the block keeps it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def pack_batch(batch: Any) -> Block:
    """Copy a batch into a new block.

    Raises:
        CannotBeShared: It is not made of CPU tensors, dicts, lists, tuples, numbers and strings.
        OSError: There is no memory for it.
    """
    import torch

    tensors: list[Any] = []
    described = _describe(batch, tensors, torch)
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-tensor.numel() * tensor.element_size() // ALIGNED) * ALIGNED
    table = [
        (str(tensor.dtype).rpartition(".")[2], tuple(tensor.shape), offset)
        for tensor, offset in zip(tensors, offsets)
    ]
    head = pickle.dumps((described, table), protocol=4)
    begin = -(-len(head) // ALIGNED) * ALIGNED
    size = begin + end
    descriptor = os.memfd_create("slurm_colloc batch", os.MFD_CLOEXEC)
    try:
        # A write into memory that is not there would end the process.
        os.posix_fallocate(descriptor, 0, size)
        os.pwrite(descriptor, head, 0)
        if end:
            _copy(tensors, offsets, _map(descriptor, size, torch, shared=True)[begin:])
    except BaseException:
        os.close(descriptor)
        raise
    return Block(descriptor, len(head), size)


def _map(descriptor: int, size: int, torch: Any, *, shared: bool) -> Any:
    """Map a block; unlike Python's own mappings, torch's keep no descriptor open."""
    return torch.from_file(f"/proc/self/fd/{descriptor}", shared, size, dtype=torch.uint8)


def _copy(tensors: Iterable[Any], offsets: Iterable[int], room: Any) -> None:
    for tensor, offset in zip(tensors, offsets):
        size = tensor.numel() * tensor.element_size()
        if size:
            room[offset : offset + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _describe(value: Any, tensors: list[Any], torch: Any) -> tuple[Any, ...]:
    kind = type(value)
    if kind is torch.Tensor:
        if value.device.type != "cpu":
            raise CannotBeShared("its batches are on a GPU")
        if value.layout is not torch.strided or value.is_quantized or value.requires_grad:
            raise CannotBeShared("its batches have sparse or quantized tensors, or gradients")
        tensors.append(value)
        return ("tensor", len(tensors) - 1)
    if kind in _PLAIN:
        return ("plain", value)
    if kind is list or kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return ("parts", kind, [_describe(part, tensors, torch) for part in value])
    # Tokenizers of transformers give a UserDict.
    if kind is dict or UserDict in kind.__mro__:
        for name in value:
            if type(name) not in _PLAIN:
                raise CannotBeShared(f"its batches have a {type(name).__name__} as a key")
        parts = [(name, _describe(part, tensors, torch)) for name, part in value.items()]
        return ("named", kind, parts)
    raise CannotBeShared(
        f"its batches have a {kind.__name__}, not only tensors, dicts, lists, numbers and strings"
    )


def unpack_batch(descriptor: int, head: int) -> Any:
    """The batch of a block; changes to it stay in this process.

    Args:
        descriptor: Of the memfd, which is closed.
        head: Bytes of its description.
    """
    import torch

    try:
        size = os.fstat(descriptor).st_size
        described, table = pickle.loads(os.pread(descriptor, head, 0))
        room = _map(descriptor, size, torch, shared=False)[-(-head // ALIGNED) * ALIGNED :]
    finally:
        os.close(descriptor)
    tensors = []
    for name, shape, offset in table:
        dtype = getattr(torch, name)
        count = 1
        for length in shape:
            count *= length
        size = count * torch.empty(0, dtype=dtype).element_size()
        part = room[offset : offset + size].view(dtype) if size else torch.empty(0, dtype=dtype)
        tensors.append(part.view(shape))
    return _rebuild(described, tensors)


def _rebuild(described: tuple[Any, ...], tensors: list[Any]) -> Any:
    form = described[0]
    if form == "tensor":
        return tensors[described[1]]
    if form == "plain":
        return described[1]
    kind = described[1]
    if form == "named":
        named: Mapping[Any, Any] = {name: _rebuild(part, tensors) for name, part in described[2]}
        return named if kind is dict else kind(named)
    parts = [_rebuild(part, tensors) for part in described[2]]
    return parts if kind is list else tuple(parts) if kind is tuple else kind(*parts)


def send(
    channel: socket.socket,
    kind: int,
    number: int = 0,
    size: int = 0,
    *,
    more: bytes = b"",
    descriptor: int = -1,
) -> None:
    """Send one message, with a descriptor if one is given."""
    extra = []
    if descriptor >= 0:
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))]
    channel.sendmsg([MESSAGE.pack(kind, number, size) + more[: LONGEST - MESSAGE.size]], extra)


def receive(channel: socket.socket) -> tuple[int, int, int, bytes, int]:
    """Receive one message: kind, number, size, what else it says, descriptor or -1.

    Raises:
        EOFError: The other process has closed its end, or has died.
        OSError: As of the socket; a timeout is one.
    """
    try:
        text, extra, _, _ = channel.recvmsg(
            LONGEST, socket.CMSG_SPACE(4), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
    except ConnectionError as error:
        raise EOFError from error
    descriptor = -1
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            (descriptor,) = struct.unpack("i", data[:4])
    if len(text) < MESSAGE.size:
        if descriptor >= 0:
            os.close(descriptor)
        raise EOFError
    return (*MESSAGE.unpack_from(text), text[MESSAGE.size :], descriptor)


def read_peer(channel: socket.socket) -> tuple[int, int]:
    """Process id and user of who is at the other end, as the kernel says (SO_PEERCRED)."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, user, _ = struct.unpack("3i", credentials)
    return pid, user


_private: set[Any] = set()


def keep_private(handle: Any) -> Any:
    """Close a socket or file in every child that is forked: its end is to be this process's."""
    _private.add(handle)
    return handle


def close_private(handle: Any) -> None:
    """Close what `keep_private` was given."""
    _private.discard(handle)
    with contextlib.suppress(OSError):
        handle.close()


def _close_inherited() -> None:
    for handle in list(_private):
        close_private(handle)


os.register_at_fork(after_in_child=_close_inherited)
