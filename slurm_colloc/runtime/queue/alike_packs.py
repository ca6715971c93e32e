"""Open packs of other submissions whose members may start in this one: they are of its kind."""

from __future__ import annotations

import contextlib
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.planning.join.same_kind import compute_reason_to_stay
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.sister_packs import explain_difference
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.pack.pack_directory import read_common_script, read_slurm_job_id
from slurm_colloc.store.pack.pack_records import PackRecord


class AlikePacks:
    """Finds them, and says once of each that runs the same script why it is not one.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        state: The state directory.
        journal: The pack's log.
    """

    def __init__(self, pack: Path, record: PackRecord, state: State, journal: Journal) -> None:
        self._pack = pack
        self._record = record
        self._state = state
        self._journal = journal
        self._apart: set[str] = set()

    def find(self) -> list[tuple[Path, str]]:
        """Open packs of other submissions whose members may start here, each with its id."""
        if compute_reason_to_stay(self._record.policy, self._record.group):
            return []
        apart = self._apart | {self._pack.name, *self._state.list_sisters(self._record)}
        script: bytes | None = None
        found = []
        for name in self._state.list_open():
            path = self._state.pack_path(name)
            with contextlib.suppress(StateError, OSError):
                record = None if name in apart else self._state.read_pack(name)
                if record is None or not (job_id := read_slurm_job_id(path) or ""):
                    continue
                script = script or read_common_script(self._pack, self._record)
                if script is None:
                    return []
                # None of that changes any more.
                if read_common_script(path, record) != script:
                    self._apart.add(name)
                elif reason := explain_difference(self._record, record):
                    self._apart.add(name)
                    self._journal.write("not_alike", pack=name, job=job_id, reason=reason)
                else:
                    found.append((path, record.shown_id or job_id.partition("_")[0]))
        return found
