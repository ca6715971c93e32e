"""Members that were taken over and are on their way here, decided in this attempt or earlier.

See store.pack.take_over for the steps, of which each may be the last one of a killed runner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.runtime.journal import Journal
from slurm_colloc.runtime.queue.fill_places import MemberIntake
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import is_there
from slurm_colloc.store.file_locks import hold_lock
from slurm_colloc.store.pack import inbox, take_over
from slurm_colloc.store.pack.emptied_pack import is_being_cancelled
from slurm_colloc.store.pack.member_home import read_home
from slurm_colloc.store.pack.member_states import read_attempt
from slurm_colloc.store.pack.pack_directory import read_ended
from slurm_colloc.store.pack.pack_records import PackRecord
from slurm_colloc.store.pack.runner_requests import hand_on_requests


class ArrivingMembers:
    """Fetches what was decided.

    Args:
        pack: The pack's directory.
        record: Its pack.json.
        state: The state directory.
        intake: Takes in what has come.
        journal: The pack's log.
    """

    def __init__(
        self, pack: Path, record: PackRecord, state: State, intake: MemberIntake, journal: Journal
    ) -> None:
        self._pack = pack
        self._record = record
        self._state = state
        self._intake = intake
        self._journal = journal
        self._decided: dict[tuple[Path, int], int] = {}
        self._has_looked_back = False

    @property
    def has_any(self) -> bool:
        """Some are on their way."""
        return bool(self._decided)

    def expect(self, source: Path, number: int, there: int) -> None:
        """Note a member that this runner has just taken over.

        Args:
            source: The pack where it waited.
            number: Its number in that pack.
            there: Its number in this one.
        """
        self._decided[source, number] = there

    def list_sisters(self) -> list[Path]:
        """The other packs of the submission that are there."""
        ids = self._state.list_sisters(self._record)
        paths = (self._state.pack_path(each) for each in ids if each != self._record.pack_id)
        return [path for path in paths if path.is_dir()]

    def _list_sources(self) -> list[Path]:
        """The packs that members may be on their way from to this one."""
        ids = self._state.list_sources(self._record.pack_id)
        return [*self.list_sisters(), *map(self._state.pack_path, ids)]

    def look_back(self) -> None:
        """Once: what an earlier attempt has decided, wherever it was interrupted."""
        if self._has_looked_back:
            return
        for source in self._list_sources():
            for number, taking in take_over.list_leaving(str(source)).items():
                if taking.taker == self._pack.name:
                    self._decided[source, number] = taking.number
        for there in take_over.list_arrived(str(self._pack)):
            self._decided[self._find_home(there)] = there
        self._intake.adopt_taken()
        self._has_looked_back = True

    def _find_home(self, there: int) -> tuple[Path, int]:
        """The pack that a member here was planned for, and its number there."""
        home = read_home(self._pack, there)
        if home is not None:
            return self._state.pack_path(home.pack_id), home.number
        for source in self.list_sisters():
            record = self._state.read_pack(source.name)
            if record is not None and there in record.members:
                return source, there
        return self._pack, there

    def fetch(self) -> None:
        """Let those come that can.

        Raises:
            OSError: The file system fails; the others are fetched at the next call.
            StateError: Likewise.
        """
        for (source, number), there in list(self._decided.items()):
            if not take_over.move(str(source), str(self._pack), number, there):
                # It was cancelled, or given back.
                if not is_there(source / "members" / inbox.format_number(number)):
                    del self._decided[source, number]
                continue
            if source != self._pack and source.is_dir():
                hand_on_requests(source, number, self._pack, there)
            if take_over.accept(str(self._pack), there):
                self._intake.adopt(there)
                self._journal.write("took_over", member=there, source=source.name)
            del self._decided[source, number]


@contextlib.contextmanager
def keep_both_open(state: State, pack: Path, other: Path, attempt: int) -> Iterator[bool]:
    """Keep csub from settling either of two packs; False where it does so, or has done it.

    A pack of which it is told that no csub looks at it any more neither gives nor takes.

    Args:
        state: The state directory.
        pack: The one that takes.
        other: The one that gives.
        attempt: The newest attempt of the other when it was looked at.
    """
    with hold_lock(pack / "lock", 0) as own, hold_lock(other / "lock", 0) as its:
        yield bool(own and its) and (
            all(is_there(state.open / path.name) for path in (pack, other))
            and read_ended(pack) is None
            and read_ended(other) is None
            and read_attempt(other) == attempt
            and not is_being_cancelled(other)
            and not is_being_cancelled(pack)
        )
