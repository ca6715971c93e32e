"""What the members of a planned pack take together, as bars."""

from __future__ import annotations

from slurm_colloc.planning.explain.explanation import PackExplanation
from slurm_colloc.report.terminal import format_mb_figure

_BAR_MOST = 40
_BAR_LEAST = 10
_BESIDE_BAR = 43
"""Columns of a line beside its bar."""
_PCIE_SHOWN = 0.05
"""Most trainings use next to nothing of it."""


def render_budget(pack: PackExplanation, width: int) -> list[str]:
    """What the members take together, a bar for each resource of which it is known."""
    memory, usable = pack.gpu_memory_mb, pack.gpu_memory_usable_mb
    bars: list[tuple[str, float | None, str]] = [
        (
            "GPU memory",
            memory / usable if memory is not None and usable else None,
            f"{format_mb_figure(memory)} of {format_mb_figure(usable)}",
        ),
        ("SM", pack.sm_activity, ""),
        ("DRAM", pack.dram_activity, ""),
    ]
    if pack.pcie_share is not None and pack.pcie_share >= _PCIE_SHOWN:
        bars.append(("PCIe", pack.pcie_share, ""))
    length = max(_BAR_LEAST, min(_BAR_MOST, width - _BESIDE_BAR))
    return [
        f"{name:<10}  {draw_bar(share, length)} {100 * share:>4.0f} %  {more}".rstrip()
        for name, share, more in bars
        if share is not None
    ]


def draw_bar(share: float, length: int) -> str:
    """A bar of plain characters, full from 1 on."""
    filled = round(min(1.0, max(0.0, share)) * length)
    return "#" * filled + "-" * (length - filled)
