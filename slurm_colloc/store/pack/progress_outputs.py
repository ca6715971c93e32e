"""Which output files of a member tell its progress: written by the runner, read by the monitor.

`follow.json` lies in the directory in which one start of a member publishes its progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.errors import StateError
from slurm_colloc.store.atomic_files import read_json, write_json

_NAME = "follow.json"


@dataclass(frozen=True)
class FollowRequest:
    """What is to be looked for, and where.

    Attributes:
        regex: See submission.jobs.call_jobs.
        files: Paths, each with its size when the member started: what is behind that is its own.
    """

    regex: str
    files: tuple[tuple[str, int], ...]


def write_follow_request(directory: str, regex: str, files: Sequence[tuple[str, int]]) -> None:
    """Ask the monitor to follow a member's output.

    Raises:
        StateError: It cannot be written.
    """
    write_json(f"{directory}/{_NAME}", {"regex": regex, "files": [list(one) for one in files]})


def read_follow_request(directory: str) -> FollowRequest | None:
    """What the runner asks for; None where it asks for nothing, or for nothing that makes sense."""
    try:
        value = read_json(f"{directory}/{_NAME}")
        if value is None:
            return None
        files = tuple((str(path), int(size)) for path, size in value["files"])
        return FollowRequest(str(value["regex"]), files)
    except (StateError, KeyError, TypeError, ValueError):
        return None
