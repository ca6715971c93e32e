"""Run a command as long as somebody holds the other end of standard input.

    unshare --pid --fork --kill-child ... python lifeline.py COMMAND...

It is the first process of a pid namespace: it collects orphans, and its end is the end of every
process below it. Where standard input closes, because the program that started it has ended in
whatever way, the command is interrupted, and killed with all it started where it does not end.
It runs with the machine's own interpreter, before any root is entered, and needs nothing else.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

GRACE_S = 40.0
POLL_S = 0.1


def collect(child: int) -> int | None:
    """Collect what has ended; the exit status of `child` once it is among them."""
    status = None
    while True:
        try:
            pid, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            code = os.waitstatus_to_exitcode(how)
            status = code if code >= 0 else 128 - code


def main(command: list[str]) -> int:
    """Run the command to its end, or to the end of standard input."""
    # The terminal's interrupt reaches the process that holds the other end, which closes it. A
    # handler, unlike ignoring, is not inherited by the command.
    signal.signal(signal.SIGINT, lambda *_: None)
    # Kept, for a Popen that is forgotten may collect its process itself.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # The command gets the interrupt, not the shells above and below it.
        start_new_session=True,
    )
    child = process.pid
    deadline = None
    while True:
        status = collect(child)
        if status is not None:
            return status
        if deadline is None:
            ready, _, _ = select.select([0], [], [], POLL_S)
            if ready and not os.read(0, 4096):
                deadline = time.monotonic() + GRACE_S
                os.kill(child, signal.SIGINT)
        elif time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            deadline = time.monotonic() + GRACE_S
        else:
            time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
