"""What the packs of a submission hold for each other, looked at once for a whole sweep.

Of an array in a thousand packs each would otherwise look at the thousand others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.pack import take_over
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.store.pack.runner_requests import Action, list_requests
from slurm_colloc.store.pack_reading import StateReader


@dataclass(frozen=True)
class Sisters:
    """The packs of one submission.

    Attributes:
        sources: By the id of a pack: those out of which members are on their way to it.
        cancelled: The numbers of members that a runner of theirs was asked to cancel.
    """

    sources: Mapping[str, tuple[Path, ...]]
    cancelled: frozenset[int]


class SisterLook:
    """Looks at the packs of each submission once.

    It is for packs whose Slurm job is over: their runners take nothing over any more, so that what
    is on its way to one of them was so at the look.

    Args:
        state: The state directory.
    """

    def __init__(self, state: StateReader) -> None:
        self._state = state
        self._found: dict[str, Sisters] = {}

    def find(self, record: PackRecord) -> Sisters:
        """The packs of a pack's submission, itself among them."""
        key = record.shown_id or record.submission
        found = self._found.get(key)
        if found is None:
            paths = map(self._state.pack_path, self._state.list_sisters(record))
            found = self._found[key] = _look_at([path for path in paths if is_there(path)])
        return found


def _look_at(paths: list[Path]) -> Sisters:
    sources: dict[str, list[Path]] = {}
    cancelled: set[int] = set()
    for path in paths:
        with contextlib.suppress(OSError):
            for taker in {taking.taker for taking in take_over.list_leaving(str(path)).values()}:
                sources.setdefault(taker, []).append(path)
        cancelled |= {
            request.number for request in list_requests(path) if request.action is Action.CANCEL
        }
    return Sisters({taker: tuple(own) for taker, own in sources.items()}, frozenset(cancelled))
