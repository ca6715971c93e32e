"""killed.N.json: a runner that died of a signal or with its node, and what its guard made of it.

N is Slurm's restart count of the job, so every start of the batch script has a file of its own,
also one whose runner was killed before it could begin an attempt. The guard alone writes it, for a
node that has left the job that of the first node. A runner that finds it has been taken for dead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from slurm_colloc.store.atomic_files import is_there, write_json
from slurm_colloc.store.record_files import read_record

_PREFIX, _SUFFIX = "killed.", ".json"


@dataclasses.dataclass(frozen=True)
class RunnerKill:
    """A runner that was killed.

    Attributes:
        restarts: Slurm's restart count of the job at that time.
        attempt: The newest attempt at that time: that of the runner, if it had begun one.
        signal: What it died of; 0 where its node has left the job.
        at: When, in seconds since the epoch.
        refusal: Why its pack does not start again; empty where Slurm was asked to requeue it.
        node: The node that has left the job; empty where it died of a signal.
    """

    restarts: int
    attempt: int
    signal: int
    at: float
    refusal: str = ""
    node: str = ""

    def __str__(self) -> str:
        return f"its runner was {self.how}"

    @property
    def how(self) -> str:
        """What became of it."""
        if self.node:
            return f"on {self.node}, which left the job"
        return f"killed by signal {self.signal}"

    @property
    def outcome(self) -> str:
        """What follows."""
        return self.refusal or "its pack was requeued"


def write_kill(pack: Path | str, kill: RunnerKill) -> None:
    """Write down what became of a pack's runner.

    Raises:
        StateError: It cannot be written.
    """
    write_json(f"{pack}/{_PREFIX}{kill.restarts}{_SUFFIX}", dataclasses.asdict(kill))


def forget_kill(pack: Path | str, restarts: int) -> None:
    """Take it back: Slurm was ending the job anyway."""
    with contextlib.suppress(OSError):
        os.unlink(f"{pack}/{_PREFIX}{restarts}{_SUFFIX}")


def read_kill(pack: Path | str, restarts: int) -> RunnerKill | None:
    """What is known of the runner that ran at a restart count; None where it was not killed.

    Raises:
        StateError: The file is damaged.
    """
    return read_record(f"{pack}/{_PREFIX}{restarts}{_SUFFIX}", RunnerKill)


def was_killed(pack: Path | str, restarts: int) -> bool:
    """Whether the runner of a restart count is known to be gone; nothing is read."""
    return is_there(f"{pack}/{_PREFIX}{restarts}{_SUFFIX}")


def list_kills(pack: Path | str) -> list[RunnerKill]:
    """All runners of a pack that were killed, oldest first.

    Raises:
        StateError: A file is damaged.
    """
    try:
        names = os.listdir(pack)
    except OSError:
        return []
    counts = [name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in names
              if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]  # fmt: skip
    kills = [read_kill(pack, int(count)) for count in counts if count.isdigit()]
    return sorted((kill for kill in kills if kill is not None), key=lambda kill: kill.restarts)


def find_kill(pack: Path | str, attempt: int) -> RunnerKill | None:
    """The killed runner of an attempt; None where it was not killed, or that was not seen.

    Raises:
        StateError: A file is damaged.
    """
    return next((kill for kill in reversed(list_kills(pack)) if kill.attempt == attempt), None)
