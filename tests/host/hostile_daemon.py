"""A false MPS daemon in a real one's place: answers whatever it likes, as the job's user.

    hostile_daemon.py DIRECTORY JSON

JSON: `text` is the answer to every command; `delay_s` comes before each; `repeat` makes it long;
`ends` closes the connection in the middle; `greets` false says not even hello.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path

from slurm_colloc_lab.simgpu.mps import wire_format

_PROOF = b"get_default_active_thread_percentage"


def main(directory: str, text: str) -> None:
    wanted = json.loads(text)
    for name in ("control", "control_privileged"):
        Path(directory, name).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{directory}/control")
    listener.listen(64)
    print("up", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            with contextlib.suppress(wire_format.Closed, OSError):
                serve(connection, wanted)
            os._exit(0)
        connection.close()


def serve(connection: socket.socket, wanted: dict[str, object]) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    if not wanted.get("greets", True):
        time.sleep(600)
    wire_format.send(connection, wire_format.HELLO)
    wire_format.receive(connection)
    wire_format.receive_number(connection)
    while True:
        length = int(wire_format.receive_value(connection, "q"))
        line = wire_format.receive(connection).data if length else b""
        time.sleep(float(str(wanted.get("delay_s", 0))))
        if wanted.get("ends"):
            return
        if not length:
            wire_format.send(connection, struct.pack("ii", wire_format.END, 0))
            return
        answer = "100.0" if line.startswith(_PROOF) else str(wanted.get("text", ""))
        for piece in answer.splitlines() * int(str(wanted.get("repeat", 1))):
            wire_format.send(connection, struct.pack("i", wire_format.TEXT) + piece.encode()[:4000])


if __name__ == "__main__":
    main(*sys.argv[1:])
