"""Processes that wait, for tests that find and end them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Start = Callable[..., "subprocess.Popen[bytes]"]


@contextmanager
def waiting_children() -> Iterator[Start]:
    """Starts processes that wait, each in a session of its own; they are gone at the end."""
    children = []

    def start_one(
        code: str = "", *, environment: dict[str, str] | None = None, uid: int | None = None
    ) -> subprocess.Popen[bytes]:
        program = f"import signal, os, time\n{code}\nprint('up', flush=True)\ntime.sleep(600)\n"
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            cwd="/",
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        children.append(child)
        return child

    yield start_one
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
