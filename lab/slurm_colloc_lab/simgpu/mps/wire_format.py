"""How the MPS programs talk to each other: the sockets' messages, as 550.163.01 sends them.

Client, server and control program connect to the control daemon by a socket of type SEQPACKET. The
daemon says hello, the other sends its credentials and a number that says what it is. Because these
are the real daemon's own messages, the simulated server also works under NVIDIA's daemon, and the
contract suite holds one against the other. What goes on between client and server is not known, so
it is this simulation's own.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Sequence

HELLO = b"OUTBHELL\0"
CREDENTIALS = b"OUTBCRED\0"
DESCRIPTOR = b"OUTBCUFD\0"

# Who connects.
SERVER = 1
CLIENT = 2
UI = 4

# What the daemon asks of a server.
TAKE_CLIENT = 2
SHUT_DOWN = 5
LIST_CLIENTS = 6
LIST_DEVICES = 7
GET_PERCENTAGE = 8
SET_PERCENTAGE = 9
GET_LIMIT = 11
SET_LIMIT = 12
TERMINATE = 13
SNAPSHOT = 14
SET_PRIORITY = 15
GET_STATUS = 17

DEVICES = 32
"""A server is told a pinned limit for so many ordinals; 0 is none."""

# What a server sends once it is ready; the daemon keeps it and passes it on to none (550).
READY_BYTES = 0x204
# One row of `ps`: pid, MIG or not, ordinal, UUID, number, priority.
SNAPSHOT_ROW = "<i4xB3xi16sii"

# What the daemon tells its control program: a line, or the end with an exit status.
TEXT = 0
END = 1

_MESSAGE_BYTES = 8192
_CREDENTIALS = "3i"


class Closed(Exception):
    """The other side has gone."""


class Message:
    """What has come in.

    Args:
        data: The bytes.
        descriptors: Open files that came with it; the function that takes them closes them.
        pid: Who sent it, as the kernel says, where the socket asks for it.
        uid: Likewise.
    """

    def __init__(self, data: bytes, descriptors: list[int], pid: int | None, uid: int | None):
        self.data = data
        self.descriptors = descriptors
        self.pid = pid
        self.uid = uid


def receive(connection: socket.socket) -> Message:
    """Take one message.

    Raises:
        Closed: There will be none.
        BlockingIOError: There is none yet, on a socket that does not wait.
    """
    room = socket.CMSG_SPACE(16 * 4) + socket.CMSG_SPACE(struct.calcsize(_CREDENTIALS))
    try:
        data, controls, _, _ = connection.recvmsg(_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        raise
    except OSError as error:
        raise Closed from error
    descriptors = array.array("i")
    pid = uid = None
    for level, kind, content in controls:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(content) - len(content) % descriptors.itemsize
            descriptors.frombytes(content[:whole])
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid, uid, _ = struct.unpack(_CREDENTIALS, content)
    if not data:
        for descriptor in descriptors:
            os.close(descriptor)
        raise Closed
    return Message(data, list(descriptors), pid, uid)


def send(connection: socket.socket, data: bytes) -> None:
    """Send one message.

    Raises:
        Closed: The other side has gone, or takes nothing.
    """
    try:
        connection.send(data, socket.MSG_NOSIGNAL)
    except OSError as error:
        raise Closed from error


def send_value(connection: socket.socket, form: str, value: float) -> None:
    """Send one number in the form of `struct`."""
    send(connection, struct.pack(form, value))


def receive_value(connection: socket.socket, form: str) -> float:
    """Take one number.

    Raises:
        Closed: There will be none, or it is something else.
    """
    message = receive(connection)
    drop(message.descriptors)
    if len(message.data) != struct.calcsize(form):
        raise Closed
    value: float = struct.unpack(form, message.data)[0]
    return value


def send_number(connection: socket.socket, value: int) -> None:
    """Send a 32-bit number."""
    send_value(connection, "i", value)


def receive_number(connection: socket.socket) -> int:
    """Take a 32-bit number."""
    return int(receive_value(connection, "i"))


def send_descriptor(connection: socket.socket, descriptor: int) -> None:
    """Hand over an open file.

    Raises:
        Closed: The other side has gone.
    """
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
    try:
        connection.sendmsg([DESCRIPTOR], [rights], socket.MSG_NOSIGNAL)
    except OSError as error:
        raise Closed from error


def receive_descriptor(connection: socket.socket) -> socket.socket:
    """Take a socket that was handed over.

    Raises:
        Closed: Nothing was.
    """
    message = receive(connection)
    if len(message.descriptors) != 1 or message.data != DESCRIPTOR:
        drop(message.descriptors)
        raise Closed
    return socket.socket(fileno=message.descriptors[0])


def drop(descriptors: Sequence[int]) -> None:
    """Close what came unasked."""
    for descriptor in descriptors:
        os.close(descriptor)


def connect(path: str, kind: int) -> socket.socket:
    """Connect to the daemon as a client, server or control program.

    Raises:
        OSError: No process listens there, or it may not be reached.
        Closed: The daemon does not want this connection.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        if receive(connection).data != HELLO:
            raise Closed
        own = struct.pack(_CREDENTIALS, os.getpid(), os.geteuid(), os.getegid())
        try:
            connection.sendmsg(
                [CREDENTIALS],
                [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, own)],
                socket.MSG_NOSIGNAL,
            )
        except OSError as error:
            raise Closed from error
        send_number(connection, kind)
    except BaseException:
        connection.close()
        raise
    return connection


def send_object(connection: socket.socket, value: dict[str, object]) -> None:
    """Send what client and server have to say to each other."""
    send(connection, json.dumps(value).encode())


def parse_object(data: bytes) -> dict[str, object]:
    """Read what `send_object` sent; anything else is empty."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
