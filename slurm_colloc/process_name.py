"""The name of a process of csub's on a node, as ps, pkill and killall show and compare it."""

from __future__ import annotations

import contextlib


def name_process(name: str) -> None:
    """Give this process a name; until then it has that of its interpreter.

    `pkill python` in a script of the same user would end the runner, and with it all members. It is
    called as early as can be, and what the process forks has the name until it becomes a program.

    Args:
        name: At most 15 letters; the kernel cuts off what comes after (proc(5), comm).
    """
    path = "/proc/self/comm"
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:  # noqa: PTH123 - light
        file.write(name.encode("ascii"))
