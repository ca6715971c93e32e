"""Doing something to each of a job's GPUs at the same time: a driver takes a second for some calls.

Each GPU has a session of its own. All are started before the first thread. One that begins anew
starts its child from its thread, without a function of ours between fork and exec; it dies with
that thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from slurm_colloc.host.mig.mig_session import MigSession

_Result = TypeVar("_Result")


@contextmanager
def open_sessions(
    lock: str, minors: Mapping[str, int], *, driver: str, node: str, ends_at: float
) -> Iterator[dict[str, MigSession]]:
    """A session for each GPU, by UUID; arguments as MigSession's.

    Raises:
        MigProblem: One cannot be started.
    """
    with contextlib.ExitStack() as stack:
        yield {
            uuid: stack.enter_context(
                MigSession(lock, {uuid: minor}, driver=driver, node=node, ends_at=ends_at)
            )
            for uuid, minor in minors.items()
        }


def run_for_each(
    sessions: Mapping[str, MigSession], act: Callable[[str, MigSession], _Result]
) -> dict[str, _Result]:
    """Do something to each GPU and wait for all.

    Args:
        sessions: By UUID.
        act: Called with a UUID and its session; for several GPUs in a thread of its own.

    Raises:
        Exception: What the first of them has raised, once all have ended.
    """
    if len(sessions) == 1:
        return {uuid: act(uuid, session) for uuid, session in sessions.items()}
    results: dict[str, _Result] = {}
    failures: dict[str, BaseException] = {}

    def run(uuid: str, session: MigSession) -> None:
        try:
            results[uuid] = act(uuid, session)
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            failures[uuid] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in sessions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for uuid in sessions:
        if uuid in failures:
            raise failures[uuid]
    return {uuid: results[uuid] for uuid in sessions}
