"""What a member's wrapper has written about its end; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from signal import SIGTERM
from typing import Any

from slurm_colloc.model.member import ExitCode, MemberState


@dataclass(frozen=True)
class ExitRecord:
    """How the script of a member has ended.

    Attributes:
        code: Its exit status.
        oom_kills: How many of its processes the kernel has killed because of host memory.
        was_terminated: Its runner had told it to end, with a TERM.
        was_signalled: Something else had sent it a TERM: Slurm, where the job is to end.
        problem: Why the script could not be started; empty where it was.
        started_at: When it began, in seconds since the epoch; None where that is not told.
        ended_at: When it ended, likewise.
    """

    code: ExitCode
    oom_kills: int = 0
    was_terminated: bool = False
    was_signalled: bool = False
    problem: str = ""
    started_at: float | None = None
    ended_at: float | None = None

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> ExitRecord:
        """Read the wrapper's record.

        Raises:
            KeyError: It is none.
            TypeError: Likewise.
            ValueError: Likewise.
        """
        return cls(
            code=ExitCode.from_wait_status(int(value["wait_status"])),
            oom_kills=int(value.get("oom_kills") or 0),
            was_terminated=bool(value.get("terminated")),
            was_signalled=any(number == SIGTERM for number, _ in value.get("foreign_signals", ())),
            problem=str(value.get("problem") or ""),
            started_at=_read_moment(value.get("started_at")),
            ended_at=_read_moment(value.get("at")),
        )

    @property
    def is_its_own(self) -> bool:
        """It has ended without being told to: whatever becomes of its pack, it has ended.

        One that a TERM has ended may have saved what it had, and be meant to go on.
        """
        return not (self.was_terminated or self.was_signalled or self.code.signal == SIGTERM)

    @property
    def state(self) -> MemberState:
        """What it is where it has ended by itself."""
        if self.oom_kills:
            return MemberState.OUT_OF_MEMORY
        return MemberState.COMPLETED if self.code == ExitCode() else MemberState.FAILED

    @property
    def reason(self) -> str:
        """The same in words; empty for success."""
        if self.oom_kills:
            return "it used more host memory than its limit"
        return self.problem or describe_code(self.code)


def describe_code(code: ExitCode) -> str:
    """Say how a script ended, nothing for success."""
    if code.signal:
        return f"ended by signal {code.signal}"
    return f"exit code {code.code}" if code.code else ""


def _read_moment(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
