"""Numbers that csub gives to jobs which Slurm does not number: members of packs.

Scripts take SLURM_JOB_ID for the name of files, a seed, a port; programs take what a submission
prints for the name of a job. All members of a pack are one Slurm job, so each but the first of a
submission gets a number of its own: consecutive ones from a base that is hashed from cluster and
user, above all that Slurm gives by itself (model.job_ids.OWN_NUMBERS).

    <state>/numbers/CLUSTER/origin.json     where counting begins, and in which folder
    <state>/numbers/CLUSTER/FIRST/          the numbers of one Slurm job, or of one that joined
    <state>/numbers/CLUSTER/FIRST/claim.json    how many these are, and whose

A finished directory becomes FIRST by one rename, which fails where FIRST is there: so none comes
twice, and a kill leaves a claim whole or not at all. Where the folder is a copy, counting begins
elsewhere, because the state that it was copied from goes on with the same numbers.
"""

from __future__ import annotations

import contextlib
import errno
import os
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.model.job_ids import OWN_NUMBERS, format_task_runs, parse_array
from slurm_colloc.model.late_definitions import asdict, dataclass, hash_sha256
from slurm_colloc.ownership import find_caller
from slurm_colloc.store.atomic_files import (
    explain_os_errors,
    is_there,
    list_names,
    make_directory,
    read_file_clock,
    read_record,
    remove_tree,
    suppress_damage,
    write_json,
)

FOLDER = "numbers"
WINDOW = 1 << 24
"""How many numbers a user has from a base on."""

_LISTED_MOST = 1000

ABANDONED_S = 86400.0
"""What was not claimed a day after it was written is of a csub that was killed."""


@dataclass(frozen=True)
class NumberOrigin:
    """Where counting begins (origin.json).

    Attributes:
        base: The first number.
        folder: The inode of the folder in which it was written; that of a copy is another.
    """

    base: int = 0
    folder: int = 0


@dataclass(frozen=True)
class NumberClaim:
    """Consecutive numbers and their members (FIRST/claim.json).

    Attributes:
        count: How many they are.
        packs: The packs in order, each with its members' numbers, as `2-4,7`.
    """

    count: int = 0
    packs: tuple[tuple[str, str], ...] = ()


def compute_base(cluster: str, uid: int, salt: int = 0) -> int:
    """Where the numbers of a user begin; pure.

    Args:
        cluster: The cluster's name.
        uid: The user.
        salt: The folder's inode where it is a copy, else 0.
    """
    text = f"{cluster.lower()}\0{uid}\0{salt or ''}".encode()
    hashed = int(hash_sha256(text)[:16], 16)
    return OWN_NUMBERS.start + hashed % (len(OWN_NUMBERS) - WINDOW)


def claim_numbers(root: Path, cluster: str, packs: Sequence[tuple[str, Sequence[int]]]) -> int:
    """Claim a number for each of some members; the first of them, which the others follow.

    Args:
        root: The state directory, the caller's own.
        cluster: The cluster's name.
        packs: The packs' ids in order, each with its members' numbers, ascending.

    Raises:
        StateError: They cannot be claimed.
    """
    folder = _build_folder(root, cluster)
    count = sum(len(numbers) for _, numbers in packs)
    claim = NumberClaim(count, tuple((pack_id, format_task_runs(own)) for pack_id, own in packs))
    finished = folder / f".{os.urandom(8).hex()}"
    make_directory(finished)
    base = _read_base(folder, cluster)
    write_json(finished / "claim.json", asdict(claim))
    while True:
        first = _find_next(folder, base)
        if first + count > base + WINDOW:
            remove_tree(finished)
            raise StateError(
                f"no number is left for jobs in packs: {folder} has given {first - base}",
                hint='job_id = "pack" in the settings does without them',
            )
        with explain_os_errors("write", folder):
            try:
                os.rename(finished, folder / str(first))
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                    continue
                # Over NFS the answer may have been lost after it was done.
                if is_there(finished) or _read_claim(folder, first) != claim:
                    raise
        return first


def find_member(root: Path, cluster: str, number: int) -> tuple[str, int] | None:
    """The pack for which a number was claimed, and the member's number there.

    Args:
        root: The state directory.
        cluster: The cluster's name; empty where it is not known, and any of them may have given it.
        number: The number.

    Returns:
        None where the number was not given, or what it was given to is gone.

    Raises:
        StateError: It cannot be told.
    """
    for folder in _list_folders(root, cluster):
        firsts = sorted(_list_claims(folder))
        place = bisect_right(firsts, number) - 1
        claim = _read_claim(folder, firsts[place]) if place >= 0 else None
        offset = number - firsts[place] if place >= 0 else 0
        for pack_id, own in claim.packs if claim is not None else ():
            members = parse_array(own).task_ids
            if offset < len(members):
                return pack_id, members[offset]
            offset -= len(members)
    return None


def has_given(root: Path, cluster: str) -> bool:
    """Whether any number was given."""
    return any(any(True for _ in _list_claims(f)) for f in _list_folders(root, cluster))


def list_numbers(root: Path, cluster: str) -> list[int]:
    """The numbers that were given last and are still known, ascending."""
    found: list[int] = []
    for folder in _list_folders(root, cluster):
        for first in sorted(_list_claims(folder))[-_LISTED_MOST:]:
            with suppress_damage():
                claim = _read_claim(folder, first)
                found += range(first, first + (0 if claim is None else claim.count))
    return found


def list_joined(root: Path, most: int) -> list[int]:
    """The newest numbers that were given one by one, as those of jobs that joined packs are."""
    found: list[int] = []
    for folder in _list_folders(root, ""):
        for first in sorted(_list_claims(folder), reverse=True)[:most]:
            with suppress_damage():
                claim = _read_claim(folder, first)
                found += [first] if claim is not None and claim.count == 1 else []
    return found


def find_nearest(typed: str, known: Iterable[str]) -> str:
    """The number that a typing error has made another one of; empty for none that is near; pure."""
    import difflib

    return next(iter(difflib.get_close_matches(typed, known, n=1, cutoff=0.85)), "")


def forget_claims(root: Path, packs: Collection[str]) -> None:
    """Remove claims of packs that are all gone, but for the newest: counting goes on from there.

    Args:
        root: The state directory.
        packs: The packs that are there.
    """
    for folder in _list_folders(root, ""):
        for first in sorted(_list_claims(folder))[:-1]:
            with suppress_damage():
                claim = _read_claim(folder, first)
                if claim is not None and not any(pack_id in packs for pack_id, _ in claim.packs):
                    remove_tree(folder / str(first))
        for name in list_names(folder):
            if name.startswith(".") and name[1:].isalnum():
                with contextlib.suppress(OSError):
                    age_s = read_file_clock(folder) - (folder / name).stat().st_mtime
                    if age_s > ABANDONED_S:
                        remove_tree(folder / name)


def _build_folder(root: Path, cluster: str) -> Path:
    return root / FOLDER / (cluster.lower() or "unknown")


def _list_folders(root: Path, cluster: str) -> list[Path]:
    if cluster:
        return [_build_folder(root, cluster)]
    return [root / FOLDER / name for name in list_names(root / FOLDER)]


def _list_claims(folder: Path) -> Iterator[int]:
    return (int(name) for name in list_names(folder) if name.isascii() and name.isdecimal())


def _read_claim(folder: Path, first: int) -> NumberClaim | None:
    return read_record(folder / str(first) / "claim.json", NumberClaim)


def _read_base(folder: Path, cluster: str) -> int:
    """Where counting begins in this folder; decided once, by the csub that is first."""
    path = folder / "origin.json"
    with explain_os_errors("look at", folder):
        inode = folder.stat().st_ino
    known = read_record(path, NumberOrigin)
    if known is not None and known.folder == inode:
        return known.base
    # Two that come at once write the same.
    base = compute_base(cluster, find_caller(), 0 if known is None else inode)
    write_json(path, asdict(NumberOrigin(base, inode)))
    return base


def _find_next(folder: Path, base: int) -> int:
    last = max((n for n in _list_claims(folder) if base <= n < base + WINDOW), default=None)
    claim = None if last is None else _read_claim(folder, last)
    return base if last is None else last + (1 if claim is None else claim.count)
