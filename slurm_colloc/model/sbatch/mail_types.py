"""`--mail-type` and `--mail-user`: which mails a job wants, and what they say.

The words are slurmctld's (src/slurmctld/agent.c: mail_job_info; src/common/proc_args.c:
parse_mail_type), the same in 22.05 and 26.05.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from slurm_colloc.model.member import ExitCode, MemberState


class MailEvent(enum.StrEnum):
    """What a mail can tell; the values are what slurmctld writes into its subject."""

    BEGIN = "Began"
    END = "Ended"
    FAIL = "Failed"
    REQUEUE = "Requeued"
    TIME_LIMIT = "Reached time limit"
    TIME_LIMIT_90 = "Reached 90% of time limit"
    TIME_LIMIT_80 = "Reached 80% of time limit"
    TIME_LIMIT_50 = "Reached 50% of time limit"


TIME_SHARES = {
    MailEvent.TIME_LIMIT_50: 0.5,
    MailEvent.TIME_LIMIT_80: 0.8,
    MailEvent.TIME_LIMIT_90: 0.9,
    MailEvent.TIME_LIMIT: 1.0,
}
"""The part of its time limit that a job has then used."""

_ALL = ("BEGIN", "END", "FAIL", "REQUEUE")
# About burst buffers, which no member has, and about Slurm's own dependencies.
_NOT_OF_A_MEMBER = frozenset({"INVALID_DEPEND", "STAGE_OUT"})


@dataclass(frozen=True)
class MailRequest:
    """What a job asks for.

    Attributes:
        events: Names of MailEvent, sorted.
        each_task: ARRAY_TASKS: tasks of an array send mails of their own.
        user: `--mail-user`; empty for the user who submits.
    """

    events: tuple[str, ...]
    each_task: bool = False
    user: str = ""

    def wants(self, event: MailEvent) -> bool:
        """It asks for mails of this kind."""
        return event.name in self.events


def parse_mail_types(text: str) -> tuple[tuple[str, ...], bool]:
    """Read `--mail-type` as sbatch does: words in any case, unknown ones are passed over.

    Returns:
        The events' names, sorted, and whether each task of an array sends its own.

    Raises:
        ValueError: None of the words is known.
    """
    words = [word for word in text.upper().split(",") if word]
    if "NONE" in words:
        return (), False
    events: set[str] = set()
    for word in words:
        if word == "ALL":
            events.update(_ALL)
        elif word in MailEvent.__members__:
            events.add(word)
    known = events or "ARRAY_TASKS" in words or _NOT_OF_A_MEMBER & set(words)
    if not known:
        raise ValueError(
            f"valid ones are NONE, ALL, ARRAY_TASKS, {', '.join(MailEvent.__members__)}"
        )
    return tuple(sorted(events)), "ARRAY_TASKS" in words


def choose_end_event(state: MemberState, request: MailRequest) -> MailEvent | None:
    """Which mail tells of an end, as slurmctld chooses; None for none."""
    failed = state not in (MemberState.COMPLETED, MemberState.CANCELLED)
    if failed and request.wants(MailEvent.FAIL):
        return MailEvent.FAIL
    # As from 24.11 on; 22.05 counts a failure as no end, and says nothing.
    return MailEvent.END if request.wants(MailEvent.END) else None


def format_mail_time(seconds: float) -> str:
    """A time as slurmctld's mails write it: `[days-]hours:minutes:seconds`."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{days}-{clock}" if days else clock


def build_subject(shown: str, name: str, event: MailEvent, time_text: str, end_text: str) -> str:
    """The subject of a mail.

    Args:
        shown: What it is about: `Job_id=4711/3`, `Array Task Job_id=4711_3 (4712)`.
        name: The job's name.
        event: What happened.
        time_text: `Queued time 00:00:05` or `Run time 00:10:00`; empty for none.
        end_text: From `describe_end`; empty for none.
    """
    parts = [f"Slurm {shown} Name={name} {event.value}", time_text, end_text]
    # A line break would end the subject.
    return " ".join(", ".join(part for part in parts if part).split())


def describe_end(state: MemberState, code: ExitCode | None) -> str:
    """`COMPLETED, ExitCode 0`; the state alone where a signal ended it."""
    if code is None or code.signal:
        return state.value
    return f"{state.value}, ExitCode {code.code}"


def describe_ends(state: MemberState, codes: list[ExitCode]) -> str:
    """How the tasks of an array have ended, in one line: `Mixed, ExitCode [0-3]`.

    Args:
        state: How the last of them ended.
        codes: The exit codes of all.
    """
    signals = [code.signal for code in codes if code.signal]
    if signals:
        return f"Mixed, MaxSignal [{max(signals)}]"
    numbers = [code.code for code in codes] or [0]
    low, high = min(numbers), max(numbers)
    shown = "Mixed" if low == 0 and high > 0 else state.value
    return f"{shown}, ExitCode [{low}-{high}]"
