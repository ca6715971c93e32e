"""The simulated `nvidia-cuda-mps-control`: its options, and the control program (front end).

With -d or -f it is the daemon (mps_daemon.py). Without, it sends the lines of its standard input
to the daemon and prints what comes back. Its exit status says next to nothing: 0 for unknown
commands, bad values and refusals, 0 even where the daemon turned it away because another front end
was open, and only mostly the daemon's after `quit` (550). It is started for each command, so little
is imported.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
from collections.abc import Sequence

from slurm_colloc_lab.simgpu.mps import wire_format
from slurm_colloc_lab.simgpu.mps.driver_versions import MpsProfile, read_profile

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"
NO_DRIVER = 244
NO_DEVICE = 100

_HELP_550 = """\
CUDA MPS Control for Linux/Unix.
Copyright (C) 2003 - 2023 NVIDIA Corporation.

  This program allows multiple CUDA processes to share a single GPU context. For information on \
how to use the CUDA MPS, see the nvidia-cuda-mps-control manual page.

"""
_HELP_580 = """\
CUDA MPS Control for Linux/Unix/QNX.
Copyright (C) 2003 - 2025 NVIDIA Corporation.

  This program allows multiple CUDA processes to share a single GPU context. For information on \
how to use the CUDA MPS, see the nvidia-cuda-mps-control manual page.

nvidia-cuda-mps-control [options] [command]
OPTIONS:
  -h,--help                Print this message
  -d,--daemon              Setup the daemon in the background
  -f,--forground           Setup the daemon in the foreground
  -M,--multiuser-server    Enable multi-user mode
  -q,--ready-devices      Prepare the daemon to query devices on startup

"""
# The longest line that it takes (fgets).
_LINE_BYTES = 4095


def main(argv: Sequence[str]) -> int:
    """Run the program; its exit status."""
    profile = read_profile(os.environ)
    if profile is None:
        # As the real one from 580 on without libcuda.so.1: no word, and this status.
        return NO_DRIVER
    if "-h" in argv or "--help" in argv:
        sys.stdout.write(_HELP_580 if profile.has_device_query else _HELP_550)
        sys.stdout.flush()
        return 0
    for word in argv:
        if word in ("-d", "-f", *profile.daemon_words):
            return _run_daemon(profile, foreground=word.lstrip("-").startswith("f"))
    # Any other word, also -v, makes it a front end (550).
    return _run_front_end(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE_DIRECTORY)


def _run_daemon(profile: MpsProfile, *, foreground: bool) -> int:
    from slurm_colloc_lab.simgpu.mps.command_answer import read_gpus
    from slurm_colloc_lab.simgpu.mps.daemon_start import start

    if profile.needs_driver and not read_gpus():
        # No word either: it is CUDA's error, seen with -f and an unknown UUID (580 on an H200).
        return NO_DEVICE
    return start(profile, foreground=foreground)


def _run_front_end(pipe_directory: str) -> int:
    connection = None
    for name in ("control_privileged", "control"):
        try:
            connection = wire_format.connect(f"{pipe_directory}/{name}", wire_format.UI)
            break
        except OSError:
            continue
        except wire_format.Closed:
            return _complain("Cannot authenticate or connect to MPS control daemon process")
    if connection is None:
        return _complain("Cannot find MPS control daemon process")
    with connection:
        return _talk(connection)


def _talk(connection: socket.socket) -> int:
    """Send what stdin gives as it comes, and print what the daemon says as it comes."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(0, select.POLLIN)
    rest = b""
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if 0 in ready:
            data = os.read(0, 65536)
            lines = (rest + data).splitlines(keepends=True)
            rest = lines.pop() if data and lines and not lines[-1].endswith(b"\n") else b""
            try:
                for line in lines:
                    _send_line(connection, line)
            except wire_format.Closed:
                return _complain("Cannot send command to MPS control daemon process")
            if not data:
                poll.unregister(0)
                # After `quit` the daemon may have gone by now.
                with contextlib.suppress(wire_format.Closed):
                    wire_format.send_value(connection, "q", 0)
        if connection.fileno() in ready:
            status = _hear(connection)
            if status is not None:
                return status


def _send_line(connection: socket.socket, line: bytes) -> None:
    for start in range(0, len(line), _LINE_BYTES):
        piece = line[start : start + _LINE_BYTES]
        wire_format.send_value(connection, "q", len(piece) + 1)
        wire_format.send(connection, piece + b"\0")


def _hear(connection: socket.socket) -> int | None:
    """Print one answer; the exit status where it was the last one."""
    try:
        data = wire_format.receive(connection).data
    except wire_format.Closed:
        # The daemon has gone, perhaps with answers that it had sent: they are lost (550).
        return 0
    kind = struct.unpack_from("i", data)[0]
    if kind == wire_format.END:
        return int(struct.unpack_from("i", data, 4)[0]) & 0xFF
    # Not flushed: into a pipe or file nothing is written before its end (550).
    sys.stdout.write(data[4:].decode(errors="replace") + "\n")
    return None


def _complain(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
