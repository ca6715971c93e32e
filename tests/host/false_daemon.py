"""Somebody else than NVIDIA's daemon in its place, for tests and measurements of root's hooks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from .hook_node import NOBODY, HookNode

ROOT = Path(__file__).parents[2]
HOSTILE = Path(__file__).with_name("hostile_daemon.py")
_RUN_HOSTILE = (
    f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); "
    f"runpy.run_path({str(HOSTILE)!r}, run_name='__main__')"
)


@contextlib.contextmanager
def false_daemon(
    bed: HookNode, behaviour: Mapping[str, object], uid: int = NOBODY
) -> Iterator[int]:
    """Somebody else than the daemon listens in its pipe directory while this lasts; its pid."""
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _RUN_HOSTILE,
            str(bed.run / "11" / "0" / "p"),
            json.dumps(behaviour),
        ],
        stdout=subprocess.PIPE,
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    try:
        yield child.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
