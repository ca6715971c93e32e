"""What the page of a submission is made from, and its parts; how they are filled: page_values."""

from __future__ import annotations

from collections.abc import Collection
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
    """

    summary: Summary
    path: Path
    chosen: Collection[int] | None = None

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
class PackPart:
    """What the page says of one pack; texts are harmless already."""

    job: str
    title: str
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
    when: str
    advice: list[tuple[str, str]]
    attributions: dict[str, str]
    rows: list[MemberRow]
    rows_left_out: int
    gpus: GpuTable | None
    packs: list[PackPart]
    packs_not_drawn: int
    drawing: dict[str, Any] = field(default_factory=dict)
