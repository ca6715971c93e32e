"""Where a daemon that outlives the hook which started it has control groups of its own; who: root.

Also: which NVIDIA devices a control group of version 2 may open: a small eBPF program; who: root.

Restarting slurmd may end all that is in its service's group, so nothing of ours stays there. The
groups also carry the daemon's limits (daemon_limits) and say what has to be ended (process_groups).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
from collections.abc import Collection, Iterable

from slurm_colloc.host.system.node_processes import read_process
from slurm_colloc.model.late_definitions import dataclass

NAME = "slurm_colloc"
WANTED = ("devices", "memory", "pids", "freezer", "cpu")
"""Controllers of version 1 that limit the daemon, or help to end it."""

_ATTEMPTS = 100
_REMOVAL_S = 0.5
_POLL_S = 0.005
_STEP_DAEMON = "slurmstepd"
_DAEMONS = ("slurmd", _STEP_DAEMON)


@dataclass(frozen=True)
class Hierarchy:
    """One mounted tree of control groups.

    Args:
        mount: Where.
        version: 1 or 2.
        controllers: Of version 1 those it has; empty for version 2, whose group says itself.
    """

    mount: str
    version: int
    controllers: tuple[str, ...] = ()


def find_hierarchies(mountinfo: str) -> tuple[Hierarchy, ...]:
    """Where groups of our own can be made; pure.

    Args:
        mountinfo: The text of /proc/self/mountinfo.

    Returns:
        Version 2, systemd's own hierarchy of version 1, and those with a controller of WANTED.
    """
    found = {}
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        # A mount of a part of the tree, as in a container, is none where groups can be made.
        if not separator or len(fields) < 6 or len(kinds) < 3 or fields[3] != "/":
            continue
        options = kinds[2].split(",")
        if kinds[0] == "cgroup2":
            found[fields[4]] = Hierarchy(fields[4], 2)
        elif kinds[0] == "cgroup":
            names = tuple(name for name in options if name in WANTED)
            if names or "name=systemd" in options:
                found[fields[4]] = Hierarchy(fields[4], 1, names)
    return tuple(found.values())


def read_hierarchies() -> tuple[Hierarchy, ...]:
    """The same of this machine."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return find_hierarchies(file.read())
    except OSError:
        return ()


def find_slurm_daemon(pid: int) -> str:
    """The name of the nearest of Slurm's daemons above a process; empty where there is none.

    A hook's own parent is the shell of its script.

    Args:
        pid: The first process to look at.
    """
    while pid > 1:
        process = read_process(pid)
        if process is None:
            break
        if process.name.startswith(_DAEMONS):
            return process.name
        pid = process.parent_pid
    return ""


def runs_inside_job(daemon_name: str) -> bool:
    """Whether Slurm runs its hooks inside the job (PrologFlags=RunInJob): there all is the job's.

    Args:
        daemon_name: The name of Slurm's daemon that runs the hook.
    """
    return daemon_name.startswith(_STEP_DAEMON)


def build_group_path(hierarchy: Hierarchy, label: str) -> str:
    """Where a job's group is in a hierarchy; pure.

    Args:
        hierarchy: The hierarchy.
        label: The group's name, unique on this node.
    """
    return os.path.join(hierarchy.mount, NAME, label)


def make_group(hierarchy: Hierarchy, label: str) -> str:
    """Make a job's group in a hierarchy; its path.

    Raises:
        OSError: It cannot be made.
    """
    path = build_group_path(hierarchy, label)
    for left in reversed(range(_ATTEMPTS)):
        _make_parent(hierarchy, os.path.dirname(path))
        try:
            os.mkdir(path, 0o755)
            break
        except FileExistsError:
            break
        except FileNotFoundError:
            # Another hook has taken the common parent along, as remove_groups does.
            if not left:
                raise
    return path


def _make_parent(hierarchy: Hierarchy, parent: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(parent, 0o755)
    if hierarchy.version == 2:
        # A controller is in a group only where all groups above pass it on.
        for above in (hierarchy.mount, parent):
            for controller in ("memory", "pids", "cpu"):
                with contextlib.suppress(OSError):
                    write_setting(f"{above}/cgroup.subtree_control", f"+{controller}")


def write_setting(path: str, text: str) -> None:
    """Write into a file of the kernel's.

    Raises:
        OSError: It is not there, or the kernel does not take it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def enter_groups(groups: Iterable[str]) -> None:
    """Move this process into groups.

    Args:
        groups: Their paths.

    Raises:
        OSError: One does not take it.
    """
    for group in groups:
        write_setting(f"{group}/cgroup.procs", "0")


def set_ordinary_oom_score() -> None:
    """Give up the protection from the out-of-memory killer that slurmd hands down."""
    with contextlib.suppress(OSError):
        write_setting("/proc/self/oom_score_adj", "0")


def remove_groups(groups: Iterable[str]) -> tuple[str, ...]:
    """Remove groups whose processes have ended; which of them are left, with reasons."""
    left = []
    deadline = time.monotonic() + _REMOVAL_S
    for group in groups:
        while True:
            try:
                os.rmdir(group)
            except FileNotFoundError:
                break
            except OSError as error:
                # The kernel takes a moment to forget a process that has just ended.
                if time.monotonic() > deadline:
                    left.append(f"{group}: {error.strerror}")
                    break
                time.sleep(_POLL_S)
                continue
            break
        # The last one of this node takes the common parent along.
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(group))
    return tuple(left)


# ----
# Which NVIDIA devices a control group of version 2 may open: a small eBPF program; who: root.
#
# Version 2 has no devices controller: a program of type BPF_PROG_TYPE_CGROUP_DEVICE is asked at
# each open and mknod (Linux 4.15; Documentation/admin-guide/cgroup-v2.rst, "Device controller").
# This one denies the other GPUs' device files and allows all else, as Slurm's ConstrainDevices
# does.

NVIDIA_MAJOR = 195
"""Major number of /dev/nvidiaN (Documentation/admin-guide/devices.txt)."""

LAST_GPU_MINOR = 199
"""GPUs are numbered from 0; 254 is nvidia-modeset, 255 nvidiactl. A sandbox's stand-ins have
numbers from 200 on, which no driver gives out, and no node has so many GPUs."""

_SYS_BPF = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE = 15, 6
_ALLOW_MULTI = 2
_CHARACTER_DEVICE = 2

# Operation codes of Documentation/bpf/standardization/instruction-set.rst.
_LOAD_WORD, _AND, _MOVE, _EXIT = 0x61, 0x57, 0xB7, 0x95
_JUMP_EQUAL, _JUMP_GREATER, _JUMP_NOT_EQUAL = 0x15, 0x25, 0x55
_RESULT, _CONTEXT, _VALUE = 0, 1, 2


def build_device_program(minors: Collection[int]) -> bytes:
    """The program as the kernel takes it; pure.

    Args:
        minors: N of each /dev/nvidiaN that may be opened.
    """
    allowed = sorted(minors)
    deny_at = 8 + len(allowed)
    allow_at = deny_at + 2
    code: list[bytes] = []

    def add(
        operation: int, register: int, source: int = 0, offset: int = 0, value: int = 0
    ) -> None:
        code.append(struct.pack("=BBhi", operation, register | source << 4, offset, value))

    def jump(operation: int, value: int) -> None:
        add(operation, _VALUE, offset=allow_at - len(code) - 1, value=value)

    # struct bpf_cgroup_dev_ctx: access_type (type in the low half), major, minor.
    add(_LOAD_WORD, _VALUE, _CONTEXT, offset=0)
    add(_AND, _VALUE, value=0xFFFF)
    jump(_JUMP_NOT_EQUAL, _CHARACTER_DEVICE)
    add(_LOAD_WORD, _VALUE, _CONTEXT, offset=4)
    jump(_JUMP_NOT_EQUAL, NVIDIA_MAJOR)
    add(_LOAD_WORD, _VALUE, _CONTEXT, offset=8)
    jump(_JUMP_GREATER, LAST_GPU_MINOR)
    # Keeps the count even where no GPU is allowed.
    add(_MOVE, _RESULT, value=0)
    for minor in allowed:
        jump(_JUMP_EQUAL, minor)
    add(_MOVE, _RESULT, value=0)
    add(_EXIT, 0)
    add(_MOVE, _RESULT, value=1)
    add(_EXIT, 0)
    return b"".join(code)


def attach_device_program(group: str, minors: Collection[int]) -> None:
    """Limit what a group of version 2 may open; it holds until the group is removed.

    Args:
        group: Its directory.
        minors: N of each /dev/nvidiaN that it may open.

    Raises:
        OSError: The kernel does not take it.
    """
    program = _load(build_device_program(minors))
    try:
        target = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _bpf(
                _PROG_ATTACH,
                struct.pack("=IIII", target, program, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI),
            )
        finally:
            os.close(target)
    finally:
        # The group holds it from now on.
        os.close(program)


def _load(program: bytes) -> int:
    code = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack(
        "=IIQQIIQI",
        _TYPE_CGROUP_DEVICE,
        len(program) // 8,
        ctypes.addressof(code),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
    )
    return _bpf(_PROG_LOAD, attributes)


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYS_BPF.get(os.uname().machine)
    if number is None:
        raise OSError(0, f"no device program for {os.uname().machine}")
    # The kernel takes zeros for what a newer version has behind these.
    buffer = ctypes.create_string_buffer(attributes, 128)
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, command, buffer, 128))
    if result < 0:
        cause = ctypes.get_errno()
        raise OSError(cause, os.strerror(cause))
    return result
