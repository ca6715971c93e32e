"""What the page of a submission is made from, and its parts; how they are filled: page_values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Summary = dict[str, Any]
Member = dict[str, Any]


@dataclass(frozen=True)
class PageSource:
    """A pack that is to be on the page.

    Attributes:
        summary: Its summary.
        path: Its directory.
        chosen: The numbers of the members to show; None for all.
        last_lines: The last line of output of members that did not end well, by number.
    """

    summary: Summary
    path: Path
    chosen: Collection[int] | None = None
    last_lines: Mapping[int, str] = field(default_factory=dict)

    @property
    def members(self) -> list[Member]:
        """The members to show."""
        return [
            member
            for member in self.summary["members"]
            if self.chosen is None or member["member"] in self.chosen
        ]


@dataclass(frozen=True)
class MemberRow:
    """A member in the table; texts are harmless already."""

    id: str
    name: str
    arguments: str
    state: str
    metrics: tuple[str, ...]
    elapsed: str
    steps: str
    rate: str
    alone: str
    slowdown: str
    predicted: str
    over: bool
    gpu_memory: str
    sm: str
    cpus: str
    wait: str
    exit: str
    instance: str


@dataclass(frozen=True)
class StallRow:
    """What the time of a member went into, in whole per cent; the rest is kernels."""

    id: str
    data: int | None
    host: int | None
    device: int | None
    sharing: int | None
    text: str


@dataclass(frozen=True)
class GpuTable:
    """The GPUs of a job that has several; texts are harmless already."""

    heads: list[tuple[str, bool]]
    rows: list[tuple[str, ...]]
    balance: str


@dataclass(frozen=True)
class Fact:
    """A figure that is told first; texts are harmless already.

    Attributes:
        label: What it is.
        value: The figure.
        note: What it is of.
        is_bad: It is worse than was accepted.
    """

    label: str
    value: str
    note: str = ""
    is_bad: bool = False


@dataclass(frozen=True)
class FailureRow:
    """Members that ended in the same way, and not well; texts are harmless already."""

    who: str
    call: str
    how: str
    line: str
    note: str


@dataclass(frozen=True)
class GpuStay:
    """A pack on a GPU, in the time line of all; places are per cent of the line.

    Attributes:
        pack: The pack's place on the page, from 1.
        left: Where it begins.
        width: How long it is.
        label: What stands in it.
        title: All that is said of it.
        outline: How many members were there: corners of an area, each a share of the stay's time
            and of the most members on any GPU.
        ends: Where members did not end well.
    """

    pack: int
    left: float
    width: float
    label: str
    title: str
    outline: list[tuple[float, float]]
    ends: list[float]


@dataclass(frozen=True)
class GpuLine:
    """A GPU in the time line of all."""

    name: str
    stays: list[GpuStay]


@dataclass(frozen=True)
class TimeLine:
    """When packs had which GPUs.

    Attributes:
        marks: Moments and where they stand, in per cent.
        most: The most members that a GPU had at once.
        lines: The GPUs.
        left_out: GPUs that are not drawn.
    """

    marks: list[tuple[float, str]]
    most: int
    lines: list[GpuLine]
    left_out: int


@dataclass(frozen=True)
class PackPart:
    """What the page says of one pack; texts are harmless already."""

    job: str
    title: str
    about: str
    drawn: bool
    resolution: str
    setup: list[tuple[str, str]]
    planned: list[tuple[str, str, str, str, str]]
    curve: list[tuple[str, str, str, str]]
    moments: list[tuple[str, str]]
    stalls: list[StallRow]
    details: list[tuple[str, str]]


@dataclass(frozen=True)
class Page:
    """The page; texts are harmless already."""

    job: str
    title: str
    headline: str
    who: str
    when: str
    facts: list[Fact]
    failures: list[FailureRow]
    metrics: list[str]
    best: str
    metrics_left_out: int
    time_line: TimeLine | None
    advice: list[tuple[str, str]]
    attributions: dict[str, str]
    rows: list[MemberRow]
    rows_left_out: int
    gpus: GpuTable | None
    packs: list[PackPart]
    packs_not_drawn: int
    drawing: dict[str, Any] = field(default_factory=dict)
