"""Members of another submission in a pack: which they are, and where they were submitted.

A pack is a place. The number of a member's directory is its number in that place: the user's own
number for members of the pack's submission, and for one of another submission a number that its
runner has given it, far above all others. Which member that is stands in `home.json` in the
member's directory, which moves with it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from slurm_colloc.model.member import GUESTS_FROM, MemberId, is_guest
from slurm_colloc.store.atomic_files import explain_os_errors, write_json
from slurm_colloc.store.pack.inbox import format_number
from slurm_colloc.store.record_files import read_record

_OF_AN_ATTEMPT = 10_000
_LARGEST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class HomeRecord:
    """Where a member of another submission was submitted (home.json).

    Attributes:
        job: The id of its submission.
        number: Its number there.
        pack_id: The pack for which it was planned.
        created_at: When that was submitted, in seconds since the epoch.
        submit_directory: Where csub was called for it.
        submit_host: The host on which csub was called for it.
    """

    job: str = ""
    number: int = 0
    pack_id: str = ""
    created_at: float = 0.0
    submit_directory: str = ""
    submit_host: str = ""


def choose_guest_number(attempt: int, count: int) -> int | None:
    """The number of the next member of another submission; None where there is none left.

    An attempt has numbers of its own: what an earlier one decided late is in its way nowhere.

    Args:
        attempt: The attempt that takes it.
        count: How many it has numbered before.
    """
    number = GUESTS_FROM + attempt * _OF_AN_ATTEMPT + count
    return number if count < _OF_AN_ATTEMPT and number <= _LARGEST else None


def write_home(pack: Path, number: int, home: HomeRecord) -> None:
    """Write down which member it is, before another pack takes it over; it counts only there.

    Raises:
        StateError: It cannot be written.
    """
    path = pack / "members" / format_number(number) / "home.json"
    write_json(path, dataclasses.asdict(home))


def read_home(pack: Path | str, number: int) -> HomeRecord | None:
    """Where a member was submitted; None for one of the pack's own submission.

    Raises:
        StateError: It is damaged.
    """
    if not is_guest(number):
        return None
    return read_record(f"{pack}/members/{format_number(number)}/home.json", HomeRecord)


def name_member(pack: Path | str, shown_id: str, number: int) -> MemberId:
    """The name of a member of a pack.

    Args:
        pack: The pack's directory.
        shown_id: The id that its own members are named after.
        number: The member's number in the pack.

    Raises:
        StateError: What says it is damaged.
    """
    home = read_home(pack, number)
    return MemberId(shown_id, number) if home is None else MemberId(home.job, home.number)


def find_guest(pack: Path | str, member: MemberId) -> int | None:
    """The number in a pack of a member of another submission; None where it is not there.

    Raises:
        StateError: What says it is damaged, or the file system fails.
    """
    with explain_os_errors("look at", f"{pack}/members"):
        try:
            names = os.listdir(f"{pack}/members")
        except FileNotFoundError:
            return None
    for number in sorted(int(name) for name in names if name.isdigit()):
        home = read_home(pack, number)
        if home is not None and (home.job, home.number) == (member.job, member.number):
            return number
    return None


def group_by_home(pack: Path | str, numbers: Iterable[int]) -> list[tuple[str, list[int]]]:
    """The numbers of members by the id of their submission, empty for the pack's own.

    Raises:
        StateError: What says it is damaged.
    """
    groups: dict[str, list[int]] = {}
    for number in numbers:
        home = read_home(pack, number)
        groups.setdefault("" if home is None else home.job, []).append(number)
    return sorted(groups.items())


def find_next_number(numbers: Iterable[int]) -> int:
    """The number of one more member of a pack's own submission."""
    return max((number for number in numbers if not is_guest(number)), default=0) + 1
