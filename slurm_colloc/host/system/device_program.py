"""Which NVIDIA devices a control group of version 2 may open: a small eBPF program; who: root.

Version 2 has no devices controller: a program of type BPF_PROG_TYPE_CGROUP_DEVICE is asked at each
open and mknod (Linux 4.15; Documentation/admin-guide/cgroup-v2.rst, "Device controller"). This one
denies the other GPUs' device files and allows all else, as Slurm's ConstrainDevices does.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection

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
