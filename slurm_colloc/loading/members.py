"""Where the members of a pack meet that load the same: a directory for each loader, on the node.

It lies in the pack's own directory, next to those of the counter files. In it are the key that
proves a process to be of the pack, the address of the newest producer, and for each member a file
that says how far it is. A member lives as long as it holds the lock on its file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import struct
import time
from typing import TYPE_CHECKING

from slurm_colloc.instrument.layout import LOADERS, VARIABLE
from slurm_colloc.loading.batch_blocks import close_private, keep_private
from slurm_colloc.loading.same_loader import find_difference

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEEN = "seen."
_PARTS = "parts"
_STATE = struct.Struct("<5qBB")
_CPUS = 128
_SIZE = 256

STARTED_S = 20.0
"""How long a member that has just started is waited for, until it has named its loader."""
FIRST_S = 30.0
"""How long one is waited for that has named its loader, and not yet used it."""
IDLE_S = 5.0
"""How long one is waited for between two epochs: it validates, or has ended its training."""
LATE_S = 1.0
"""How much later than its pace says one may come."""
LONGEST_S = 120.0
NEWCOMER, APART, SHARING = range(3)
_SHARES = (0.5, 0.1, 1.0)
"""During how much of an epoch it is waited for: of a newcomer once; of one that has gone its own
way each time, if it is slower for good. One that shares is at most a window behind."""


def find_pack_directory() -> str:
    """The pack's directory on this node; empty outside a pack, or where others could write it."""
    own = os.environ.get(VARIABLE, "")
    directory = os.path.dirname(own.rstrip("/"))
    try:
        found = os.lstat(directory)
    except OSError:
        return ""
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return directory if private and found.st_uid == os.geteuid() else ""


class MemberPosition:
    """What a member says about itself.

    Attributes:
        registered_ns: When it named its loader, CLOCK_MONOTONIC as all times.
        begun_ns: When its epoch began.
        changed_ns: When it last took a batch, or began to wait for others.
        taken: Batches that it has of its epoch.
        total: Batches of an epoch; 0 before the first.
        part: NEWCOMER, SHARING, or APART once it has shared and goes its own way.
        in_vain: Whether it was waited for in vain, and has not shared since.
    """

    __slots__ = (
        "begun_ns", "changed_ns", "in_vain", "part", "registered_ns", "taken", "total",
    )  # fmt: skip

    def __init__(self, content: bytes) -> None:
        values: tuple[int, ...] = _STATE.unpack_from(content)
        self.registered_ns, self.begun_ns, self.changed_ns, self.taken, self.total = values[:5]
        self.part, self.in_vain = values[5], bool(values[6])

    def pack(self) -> bytes:
        """As it stands in the file."""
        numbers = (self.registered_ns, self.begun_ns, self.changed_ns, self.taken, self.total)
        return _STATE.pack(*numbers, self.part, self.in_vain)


def compute_patience_s(state: MemberPosition, now_ns: int, opened_ns: int) -> float:
    """How many seconds more a member is worth waiting for; pure.

    Args:
        state: What it says.
        now_ns: Now.
        opened_ns: Since when an epoch waits to begin.
    """
    if state.in_vain:
        return 0.0
    if state.total == 0:
        return FIRST_S - (now_ns - state.registered_ns) / 1e9
    if state.taken >= state.total:
        return IDLE_S - (now_ns - opened_ns) / 1e9
    if state.taken == 0:
        return 0.0
    a_batch_s = (state.changed_ns - state.begun_ns) / 1e9 / state.taken
    left_s = a_batch_s * (state.total - state.taken) - (now_ns - state.changed_ns) / 1e9
    if left_s <= 0:
        return max(0.0, left_s + a_batch_s + LATE_S) if state.part == SHARING else 0.0
    return left_s if is_worth_waiting(left_s, a_batch_s * state.total, state.part) else 0.0


def is_worth_waiting(left_s: float, epoch_s: float, part: int) -> bool:
    """Whether to wait for the end of a member's epoch, to share the next one; pure.

    Args:
        left_s: Until then.
        epoch_s: What an epoch takes in all.
        part: Its part up to now, or that of the member that waits.
    """
    return 0 < left_s <= min(LONGEST_S, _SHARES[part] * epoch_s)


class MeetingPlace:
    """What a member sees of the others that load the same.

    Args:
        pack: The pack's directory.
        identity: What the loader is, as a short text of hexadecimal digits.
        parts: Sums of what makes it up, by name.

    Raises:
        OSError: The directory cannot be used.
    """

    def __init__(self, pack: str, identity: str, parts: dict[str, str]) -> None:
        self.pack = pack
        self.identity = identity
        self.parts = parts
        self.member = os.path.basename(os.environ.get(VARIABLE, "").rstrip("/"))
        room = os.path.join(pack, LOADERS)
        self.path = os.path.join(room, identity)
        for directory in (room, self.path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o700)
            if os.lstat(directory).st_uid != os.geteuid():
                raise PermissionError(f"{directory} is another user's")
        self.key = self._read_key()
        self._write_parts()
        self._sockets = 0
        self.name = f"{self.member}.{os.getpid()}.{os.urandom(4).hex()}"
        making = os.path.join(self.path, f".{self.name}")
        self._lock = keep_private(open(making, "w+b", buffering=0))  # noqa: SIM115 - held
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.state = MemberPosition(bytes(_SIZE))
        self.state.registered_ns = time.monotonic_ns()
        content = self.state.pack() + _pack_cpus()
        os.pwrite(self._lock.fileno(), content.ljust(_SIZE, b"\0"), 0)
        # It is not to be taken for a dead one's before it is locked.
        os.rename(making, os.path.join(self.path, f"m.{self.name}"))
        with open(os.path.join(room, _SEEN + self.member), "wb"):
            pass

    def leave(self) -> None:
        """Be no member any more."""
        close_private(self._lock)

    def _read_key(self) -> bytes:
        path = os.path.join(self.path, "key")
        making = f"{path}.{os.getpid()}"
        with open(os.open(making, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(32))
        with contextlib.suppress(FileExistsError):
            os.link(making, path)
        os.unlink(making)
        with open(path, "rb") as file:
            return file.read()

    def _write_parts(self) -> None:
        making = os.path.join(self.path, f".parts.{os.getpid()}")
        with open(making, "w") as file:
            json.dump(self.parts, file)
        os.replace(making, os.path.join(self.path, _PARTS))

    # -- what a member says -------------------------------------------------------------------

    def tell(self) -> None:
        """Write the state where the others read it, but for what they themselves write."""
        os.pwrite(self._lock.fileno(), self.state.pack()[: _STATE.size - 1], 0)

    def begin_epoch(self, total: int, *, shared: bool) -> None:
        """Say that an epoch of so many batches begins."""
        self.state.begun_ns = self.state.changed_ns = time.monotonic_ns()
        self.state.taken, self.state.total = 0, total
        if not shared:
            self.go_apart()
        else:
            self.state.part = SHARING
            os.pwrite(self._lock.fileno(), b"\0", _STATE.size - 1)
        self.tell()

    def go_apart(self) -> None:
        """Say that the epoch, or the rest, comes of the member's own loader."""
        if self.state.part == SHARING:
            self.state.part = APART
            self.tell()

    def take_batch(self, taken: int) -> None:
        """Say how many batches of its epoch the member has."""
        self.state.taken, self.state.changed_ns = taken, time.monotonic_ns()
        self.tell()

    def stand_idle(self) -> None:
        """Say that the epoch is over, or that a new one is waited for."""
        if self.state.total:
            self.take_batch(self.state.total)

    # -- what it sees -------------------------------------------------------------------------

    def list_others(self) -> Iterator[tuple[str, MemberPosition, set[int]]]:
        """Names, states and CPUs of the others that are alive."""
        for name in sorted(os.listdir(self.path)):
            if name[:2] != "m." or name[2:] == self.name:
                continue
            path = os.path.join(self.path, name)
            with contextlib.suppress(OSError), open(path, "rb") as file:
                content = file.read()
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    if len(content) == _SIZE:
                        yield name[2:], MemberPosition(content), _read_cpus(content)
                else:
                    os.unlink(path)

    def find_sharing(self) -> list[str]:
        """Who else has a part in the epoch."""
        return sorted({_name(n) for n, at, _ in self.list_others() if at.part == SHARING})

    def find_apart(self) -> dict[str, list[str]]:
        """In what the loaders differ of members that have none like this; by member.

        Of several loaders of a member the most similar counts, without those that this one has too.
        """
        same = {_name(name) for name, *_ in self.list_others()} | {_name(self.member)}
        found: dict[str, list[str]] = {}
        room = os.path.dirname(self.path)
        for identity in sorted(os.listdir(room)):
            directory = os.path.join(room, identity)
            if identity == self.identity or not os.path.isdir(directory):
                continue
            here = {_name(n) for n in os.listdir(directory) if _is_held(directory, n)}
            if _name(self.member) in here:
                continue
            differing = find_difference(self.parts, _read_parts(directory))
            for member in here - same:
                if member not in found or len(differing) < len(found[member]):
                    found[member] = differing
        return found

    def compute_start_patience_s(self) -> float:
        """How many seconds more to wait for members that have not yet said what they load."""
        patience_s = 0.0
        for name in os.listdir(self.pack):
            # As the runner names them: NUMBER.START.
            if name == self.member or not name.replace(".", "").isdigit():
                continue
            if not os.path.exists(os.path.join(self.pack, LOADERS, _SEEN + name)):
                with contextlib.suppress(OSError):
                    begun = os.stat(os.path.join(self.pack, name)).st_mtime
                    patience_s = max(patience_s, begun + STARTED_S - time.time())
        return patience_s

    def note_in_vain(self, name: str) -> None:
        """Write that a member was waited for in vain."""
        path = os.path.join(self.path, f"m.{name}")
        with contextlib.suppress(OSError), open(path, "r+b") as file:
            file.seek(_STATE.size - 1)
            file.write(b"\1")

    # -- the newest producer ------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self, patience_s: float) -> Iterator[bool]:
        """Nobody else looks for a producer meanwhile; False where it takes too long to be alone."""
        lock = keep_private(open(os.path.join(self.path, "lock"), "wb"))  # noqa: SIM115 - held
        try:
            deadline = time.monotonic() + patience_s
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    if time.monotonic() > deadline:
                        yield False
                        return
                    time.sleep(0.005)
                else:
                    yield True
                    return
        finally:
            close_private(lock)

    def listen(self) -> socket.socket:
        """A socket at which the next producer is found."""
        self._sockets += 1
        name = f"s.{os.getpid()}.{self._sockets}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with self._short_path() as path:
                listener.bind(f"{path}/{name}")
            listener.listen(128)
            listener.setblocking(False)
            making = os.path.join(self.path, f".newest.{os.getpid()}")
            with open(making, "w") as file:
                file.write(name)
            os.replace(making, os.path.join(self.path, "newest"))
        except OSError:
            listener.close()
            raise
        return listener

    def connect(self) -> socket.socket | None:
        """A socket to the newest producer; None where there is none any more."""
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with open(os.path.join(self.path, "newest")) as file:
                name = os.path.basename(file.read())
            channel.settimeout(1.0)
            with self._short_path() as path:
                channel.connect(f"{path}/{name}")
        except OSError:
            channel.close()
            return None
        return channel

    @contextlib.contextmanager
    def _short_path(self) -> Iterator[str]:
        """The directory under a name that fits: a path of a socket has at most 107 bytes."""
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{directory}"
        finally:
            os.close(directory)


def _name(file: str) -> str:
    """`3` of `m.0003.1.PID.RANDOM`, as people call a member."""
    number = file[2:].partition(".")[0] if file[:2] == "m." else file.partition(".")[0]
    return number.lstrip("0") or number


def _is_held(directory: str, name: str) -> bool:
    """Whether a file is one of a member that is alive."""
    if name[:2] != "m.":
        return False
    try:
        with open(os.path.join(directory, name), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read_parts(directory: str) -> dict[str, str]:
    try:
        with open(os.path.join(directory, _PARTS)) as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _pack_cpus() -> bytes:
    mask = sum(1 << cpu for cpu in os.sched_getaffinity(0) if cpu < _CPUS * 8)
    return mask.to_bytes(_CPUS, "little")


def _read_cpus(content: bytes) -> set[int]:
    mask = int.from_bytes(content[_STATE.size : _STATE.size + _CPUS], "little")
    return {cpu for cpu in range(_CPUS * 8) if mask >> cpu & 1}
