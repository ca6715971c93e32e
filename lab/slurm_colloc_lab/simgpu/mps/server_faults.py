"""Which GPUs a client's fault reaches, and what the simulated MPS server logs about it; pure.

Wording and order: 580.159.04 on an H200.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def compute_linked(culprit: Iterable[str], clients: Iterable[Sequence[str]]) -> frozenset[str]:
    """The GPUs that a fault reaches: those of the culprit, and all that clients link to them.

    A fatal fault ends every client of the GPUs that shared clients link (MPS manual, error
    containment on Volta and later).

    Args:
        culprit: UUIDs of the GPUs that the faulty client uses.
        clients: The same for each client.
    """
    linked = set(culprit)
    waiting = [set(gpus) for gpus in clients]
    while reached := [gpus for gpus in waiting if gpus & linked]:
        waiting = [gpus for gpus in waiting if not gpus & linked]
        linked.update(*reached)
    return frozenset(linked)


def render_fault(
    ended: Sequence[tuple[int, Sequence[str]]], linked: Iterable[str], gpus: Sequence[str]
) -> Iterator[str]:
    """The log's lines about a fatal fault.

    Args:
        ended: Pid and GPUs, by UUID, of each client that it ends, in the order of the log.
        linked: UUIDs of the GPUs that it reaches.
        gpus: UUIDs of the server's GPUs, by cuda_index.
    """
    yield f"Client {{PID: {ended[0][0]}, Context: 1}} encountered a fatal GPU error."
    yield "Server is handling a fatal GPU error."
    for pid, uuids in ended:
        for uuid in uuids:
            name = f"{{PID: {pid}, Context ID: 1}}"
            yield f"Client {name} on device {gpus.index(uuid)} to be torn down"
    for pid, _ in ended:
        yield f"All clients belonging to error trigging process {pid} will be torn down"
        name = f"{{PID: {pid}, Context ID: 1}}"
        yield f"Client {name} on the error-trigging process {pid} to be torn down"
    yield "The following devices will be reset:"
    for ordinal in sorted(gpus.index(uuid) for uuid in linked):
        yield str(ordinal)
    yield "The following client process have a sticky error set:"
    for pid, _ in ended:
        yield str(pid)
