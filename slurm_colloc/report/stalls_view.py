"""What `csub probe --stalls` has found, for people: a sentence, a bar, and advice with its gain."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.input_stalls import (
    SHARE_LEAST,
    SPARSER,
    InputStalls,
    advise_cores,
    compute_stalls,
)
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.store.atomic_files import read_json

_MARKS = {"gpu": "#", "exchange": "x", "copies": ">", "decoding": "=", "disk": "."}
BAR_WIDTH = 50
_COPY_FILES = "disk: a copy of the files on the node's own disk, or in memory, makes"
_PIN_MEMORY = "copies: pin_memory=True and .to(device, non_blocking=True) make"


def read_stalls(pack: Path) -> tuple[InputStalls | None, str]:
    """What a pack's probe has told, and why it told nothing.

    Args:
        pack: The pack's directory.
    """
    result: dict[str, Any] = {}
    for path in sorted((pack / "members").glob("*/run.*.stalls")):
        with contextlib.suppress(StateError):
            result = read_json(path) or result
    if result.get("problem"):
        return None, escape_controls(str(result["problem"]))
    stalls = compute_stalls(result)
    if stalls is None:
        return None, (
            "no DataLoader of torch gave batches to counted steps for long enough: it needs a "
            "training that runs for some minutes"
        )
    return stalls, ""


def render_stalls(stalls: InputStalls) -> str:
    """The sentence, the bar and the advice, a line each."""
    shares = {name: share for name in _MARKS if (share := getattr(stalls, name)) is not None}
    parts = [f"{_name(name)} {100 * share:.0f} %" for name, share in shares.items()]
    lines = [describe_stalls(stalls), f"[{draw_bar(shares)}]  {', '.join(parts)}"]
    return "\n".join([*lines, *list_advice(stalls), *list_limits(stalls)])


def describe_stalls(stalls: InputStalls) -> str:
    """Which part holds it up most, and for how much of its time."""
    held = {name: getattr(stalls, name) or 0.0 for name in _MARKS if name != "gpu"}
    worst = max(held, key=lambda name: held[name])
    if held[worst] < SHARE_LEAST:
        return f"nothing holds it up: {100 * stalls.gpu:.0f} % of its time is its GPU's and its own"
    if worst == "copies":
        return f"copies to the GPU hold it up for {100 * held[worst]:.0f} % of its time"
    words = {"disk": "the disk", "exchange": "exchange between GPUs"}
    word = words.get(worst, worst)
    return f"{word} holds it up for {100 * held[worst]:.0f} % of its time"


def draw_bar(shares: dict[str, float], width: int = BAR_WIDTH) -> str:
    """One character for each part of the time."""
    text, begin = "", 0.0
    for name, share in shares.items():
        begin += share
        text += _MARKS[name] * (round(begin * width) - len(text))
    return text


def list_advice(stalls: InputStalls) -> list[str]:
    """What would help, and how much."""
    lines = []
    cores = advise_cores(stalls)
    if cores is not None:
        of_each = " for each process" if stalls.processes > 1 else ""
        faster = f"up to {cores.speedup:.1f} times as fast; or share one loader"
        if cores.cores == cores.now:
            lines.append(
                f"decoding: a worker of its own{of_each} (num_workers=1) makes it {faster}"
            )
        else:
            lines.append(
                f"decoding: {cores.cores} cores instead of {cores.now}{of_each} "
                f"(--cpus-per-task={cores.cores * stalls.processes}, "
                f"num_workers={cores.cores}) make it {faster}"
            )
    lines += [
        f"{advice} it up to {1 / (1 - share):.1f} times as fast"
        for share, advice in ((stalls.disk, _COPY_FILES), (stalls.copies, _PIN_MEMORY))
        if share >= SHARE_LEAST
    ]
    exchange = stalls.exchange or 0.0
    sparser = 1 / (1 - exchange * (1 - 1 / SPARSER))
    if sparser >= 1 + SHARE_LEAST:
        lines.append(
            f"exchange: batches {SPARSER} times as large, or no_sync() for {SPARSER - 1} of "
            f"{SPARSER}, make it up to {sparser:.1f} times as fast; trainings on one GPU each do "
            f"up to {1 / (1 - exchange):.1f} times as much together"
        )
    return lines


def list_limits(stalls: InputStalls) -> list[str]:
    """What the figures do not say."""
    lines = []
    if stalls.exchange_untold:
        lines.append(f"exchange is not told: {escape_controls(stalls.exchange_untold)}")
    if not stalls.is_cold and stalls.reads_files:
        why = "hardly anything came from disk (cached files, or none)"
        lines.append(f"cold read not achieved: {why}; what the disk costs is not known")
    return lines


def _name(share: str) -> str:
    return "GPU" if share == "gpu" else share
