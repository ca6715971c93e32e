"""`csub plan`: a plan that is not submitted, as text and as JSON; docs/json.md has the fields.

Also: what a plan comes to, and two plans side by side; the members of planned packs as a table:
those that are alike on one line; a MIG layout as a small picture: instances by their memory slices,
and who sits on each.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slurm_colloc.metrics.rates import sum_known
from slurm_colloc.model.job_ids import format_task_ids, parse_array
from slurm_colloc.model.late_definitions import asdict, dataclass, late_pattern, replace
from slurm_colloc.model.plan import KnownBy, SharingMode, WaitEstimate
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.quantities import format_count, format_time_limit
from slurm_colloc.planning.explanation import (
    MemberExplanation,
    PackExplanation,
    PairExplanation,
    PlanExplanation,
    SeatExplanation,
)
from slurm_colloc.planning.gpu_set_packs import group_by_slurm_job
from slurm_colloc.planning.job_needs import label_jobs
from slurm_colloc.report.report_sentences import PEAK_SOURCE_WORDS
from slurm_colloc.report.terminal_tables import (
    Column,
    build_table,
    format_figure,
    format_mb_figure,
    format_span,
    render,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


# ---- What a plan comes to, and two plans side by side --------------------------------------------


@dataclass(frozen=True)
class PlanFigures:
    """What a plan comes to; None where it is unknown of a job.

    Attributes:
        packs: Packs.
        gpus: Their GPUs.
        gpu_hours: For how long GPUs are held.
        serial_gpu_hours: The same if every job had a GPU of its own.
        energy_wh: Energy of the GPUs while they are held, in watt hours.
        mean_slowdown: Mean over the jobs.
        worst_slowdown: The largest.
        finish_s: When the last job ends if all packs start at once, or as many as `%limit` of an
            array lets run, in seconds.
    """

    packs: int
    gpus: int
    gpu_hours: float | None
    serial_gpu_hours: float | None
    energy_wh: float | None
    mean_slowdown: float | None
    worst_slowdown: float | None
    finish_s: float | None


def compute_plan_figures(explanation: PlanExplanation) -> PlanFigures:
    """What a plan comes to."""
    jobs = group_by_slurm_job(explanation.packs)
    held = [_find_last_s(packs) for packs in jobs]
    gpus = [sum(pack.gpus for pack in packs) for packs in jobs]
    slowdowns = [
        1.0 if len(pack.members) == 1 else member.slowdown
        for pack in explanation.packs
        for member in pack.members
    ]
    known = [slowdown for slowdown in slowdowns if slowdown is not None]
    # A Slurm job holds all its GPUs until the last of its members ends.
    held_s = sum_known(
        None if s is None else s * count for s, count in zip(held, gpus, strict=True)
    )
    serial_s = sum_known(run_s for pack in explanation.packs for run_s in _find_run_s(pack))
    is_known = bool(known) and len(known) == len(slowdowns)
    return PlanFigures(
        packs=len(jobs),
        gpus=sum(gpus),
        gpu_hours=None if held_s is None else held_s / 3600,
        serial_gpu_hours=None if serial_s is None else serial_s / 3600,
        energy_wh=sum_known(pack.energy_wh for pack in explanation.packs),
        # Rounding puts no mean above all that it is of.
        mean_slowdown=min(math.fsum(known) / len(known), max(known)) if is_known else None,
        worst_slowdown=max(known) if is_known else None,
        finish_s=None if held_s is None else _find_end_s(held, _count_at_once(explanation, gpus)),
    )


def _find_last_s(packs: Sequence[PackExplanation]) -> float | None:
    """For how long a Slurm job holds its GPUs; None where no earlier runs tell."""
    ends = [_find_finish_s(pack) for pack in packs]
    return None if None in ends else max(end for end in ends if end is not None)


def _count_at_once(explanation: PlanExplanation, gpus: Sequence[int]) -> int | None:
    """Packs that can run at the same time: as many as may, and as there are GPUs."""
    there = explanation.gpus
    by_gpus = None if not there else max(1, there // max(gpus, default=1))
    known = [limit for limit in (explanation.packs_at_once, by_gpus) if limit]
    return min(known, default=None)


def _find_end_s(held: Sequence[float | None], packs_at_once: int | None) -> float:
    """When the last pack ends: they start in their order, as soon as they may."""
    ends = [0.0] * min(len(held), packs_at_once or len(held))
    for pack_s in held:
        heapq.heapreplace(ends, ends[0] + (pack_s or 0.0))
    return max(ends)


def _find_finish_s(pack: PackExplanation) -> float | None:
    """For how long a pack holds its GPU; None where no earlier runs tell."""
    if pack.predicted_finish_s is None and len(pack.members) == 1:
        return pack.members[0].run_s
    return pack.predicted_finish_s


def _find_run_s(pack: PackExplanation) -> list[float | None]:
    """How long each member runs alone; None where unknown."""
    if len(pack.members) == 1:
        return [_find_finish_s(pack)]
    return [member.run_s for member in pack.members]


def render_comparison(plan: PlanExplanation, other: PlanExplanation, words: str, width: int) -> str:
    """Two plans side by side.

    Args:
        plan: The plan.
        other: The one with something changed.
        words: What was changed.
        width: Columns of the terminal.
    """
    both = compute_plan_figures(plan), compute_plan_figures(other)
    columns = [
        Column("", is_number=False),
        Column("THIS PLAN"),
        Column(f"WITH {words}", gives_way=True),
    ]
    rows = [
        (title, *(write(getattr(figures, name)) for figures in both))
        for title, name, write in _COMPARED
    ]
    return render([build_table(columns, rows, width)], width)


_COMPARED: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("packs", "packs", str),
    ("GPUs", "gpus", str),
    ("GPU hours", "gpu_hours", format_figure),
    ("GPU energy (Wh)", "energy_wh", format_figure),
    ("mean slowdown", "mean_slowdown", format_figure),
    ("worst slowdown", "worst_slowdown", format_figure),
    ("last job ends after", "finish_s", format_span),
)

_BAR_MOST = 40
_BAR_LEAST = 10
_BESIDE_BAR = 43
"""Columns of a line next to its bar."""
_SHOWN_LEAST = 0.05
"""Most trainings use next to none."""


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
    for name, share in (("PCIe", pack.pcie_share), ("disk", pack.disk_share)):
        if share is not None and share >= _SHOWN_LEAST:
            bars.append((name, share, ""))
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


_SENTENCES_MOST = 50
"""Sentences that a screen shows; JSON has more."""
_NAMED_MOST = 8
"""Jobs that are named in one of them; the others are counted."""


def tell_pairs(explanation: PlanExplanation) -> list[str]:
    """Why jobs are in different packs, a sentence each, and how many more pairs there are."""
    members = [member for pack in explanation.packs for member in pack.members]
    named = {member.job_index: (member.name, member.number) for member in members}
    labels = dict(zip(named, label_jobs(named.values()), strict=True))
    told = _group(explanation.pairs)
    left = explanation.pairs_left_out
    left += sum(pair.pairs for pairs in told[_SENTENCES_MOST:] for pair in pairs)
    texts = [_tell(pairs, named, labels) for pairs in told[:_SENTENCES_MOST]]
    if left:
        texts.append(f"and {left} more {'pair' if left == 1 else 'pairs'} of jobs")
    return texts


def _group(pairs: Sequence[PairExplanation]) -> list[list[PairExplanation]]:
    """Pairs with one job in common and the same reason together; others by themselves."""
    found: list[tuple[set[int], list[PairExplanation]]] = []
    by_text: dict[str, list[tuple[set[int], list[PairExplanation]]]] = {}
    for pair in pairs:
        both = {pair.first_index, pair.second_index}
        # A reason that tells of one pack holds for no other.
        alike = [] if pair.pack_indices else by_text.setdefault(pair.text, [])
        for common, group in alike:
            if common & both:
                common.intersection_update(both)
                group.append(pair)
                break
        else:
            entry = (both, [pair])
            found.append(entry)
            alike.append(entry)
    return [group for _, group in found]


def _tell(
    pairs: Sequence[PairExplanation],
    named: Mapping[int, tuple[str, int]],
    labels: Mapping[int, str],
) -> str:
    """Why jobs are in different packs.

    Args:
        pairs: Pairs with the same reason; where they are several, they have a job in common.
        named: Name and number of each job of the call, by its index.
        labels: What each is called in sentences: several may have one name.
    """
    first = pairs[0]
    who = f"{labels[first.first_index]} and {labels[first.second_index]}"
    if len(pairs) > 1:
        one = min(set.intersection(*({pair.first_index, pair.second_index} for pair in pairs)))
        others = [
            pair.second_index if pair.first_index == one else pair.first_index for pair in pairs
        ]
        texts = [labels[index] for index in others[:_NAMED_MOST]]
        left = len(others) - len(texts)
        who = f"{labels[one]} and each of {', '.join(texts)}{f' and {left} more' if left else ''}"
    by_script: dict[str, list[int]] = {}
    for index in first.pack_indices:
        if index not in (first.first_index, first.second_index):
            name, number = named[index]
            by_script.setdefault(name, []).extend([number] if labels[index] != name else [])
    if by_script:
        told = [
            f"{name} {format_task_ids(numbers)}".rstrip() for name, numbers in by_script.items()
        ]
        who += f" (with {', '.join(told)})"
    count = sum(pair.pairs for pair in pairs)
    if count > len(pairs):
        who += f", {count} such pairs"
    return f"{who}: {first.text}"


# ---- The members of planned packs as a table: those that are alike on one line -------------------

_NUMBERS_WIDE = 16
_NUMBERS_LINES = 4
"""Columns and lines of the numbers of members that are alike; the blanks between them go away."""


def drop_names(member: MemberExplanation) -> MemberExplanation:
    """A member without what names it."""
    return replace(member, job_index=0, number=0)


def render_members(packs: Sequence[PackExplanation], width: int) -> str:
    """The members of packs that are alike, those that are alike on one line."""
    is_cut = any(member.instance for pack in packs for member in pack.members)
    columns = [
        Column("MEMBER", is_number=False),
        Column("NAME", is_number=False, gives_way=True),
        Column("KNOWN\nBY", is_number=False),
        Column("STEPS/S\nALONE"),
        Column("STEPS/S\nHERE"),
        Column("SLOW-\nDOWN"),
        Column("AT\nMOST"),
        Column("INSTANCE" if is_cut else "THREADS", is_number=not is_cut),
        Column("GPU_MEM"),
    ]
    groups: dict[MemberExplanation, list[int]] = {}
    for pack in packs:
        for member in pack.members:
            shown = member
            if len(pack.members) == 1:
                rate = member.solo_steps_per_s
                shown = replace(member, slowdown=1.0, predicted_steps_per_s=rate)
            groups.setdefault(drop_names(shown), []).append(member.number)
    rows: list[tuple[str, ...]] = []
    for member, numbers in groups.items():
        first, *more = _wrap_numbers(numbers)
        cells = (
            member.name,
            member.known_by.value,
            format_figure(member.solo_steps_per_s),
            format_figure(member.predicted_steps_per_s),
            format_figure(member.slowdown),
            "" if member.max_slowdown is None else f"{member.max_slowdown:g}",
            _tell_threads(member),
            format_mb_figure(member.gpu_memory_mb),
        )
        rows.append((first, *cells))
        rows += [(line, *[""] * len(cells)) for line in more]
    return render([build_table(columns, rows, width)], width)


def _tell_threads(member: MemberExplanation) -> str:
    """What limits its part of the GPU: an instance, or threads."""
    if member.instance:
        return member.instance
    return "all" if member.thread_percentage is None else f"{member.thread_percentage} %"


def _wrap_numbers(numbers: Sequence[int]) -> list[str]:
    """The numbers of members on a few lines, and how many more there are."""
    import textwrap

    spaced = format_task_ids(numbers).replace(",", ", ")
    wrapped = textwrap.wrap(spaced, _NUMBERS_WIDE, break_on_hyphens=False, break_long_words=False)
    lines = [line.replace(" ", "") for line in wrapped]
    if len(lines) <= _NUMBERS_LINES:
        return lines
    shown = "".join(lines[: _NUMBERS_LINES - 1]).rstrip(",")
    left = len(set(numbers)) - len(parse_array(shown).task_ids)
    return [*lines[: _NUMBERS_LINES - 1], f"and {left} more"]


# ---- A MIG layout as a small picture: instances by their memory slices, and who sits on each -----

_SLICE_WIDTH = 8
_FREE = "free"


def draw_layout(seats: Sequence[SeatExplanation], *, tells_who: bool = True) -> list[str]:
    """The lines of a picture; none without a layout.

    A box is as wide as the memory that its instance takes of the GPU; compute instances that share
    a GPU instance share a box.

    Args:
        seats: The seats of one GPU.
        tells_who: With the members; it stands for several packs where not.
    """
    if not seats:
        return []
    boxes: dict[int, list[SeatExplanation]] = {}
    for seat in sorted(seats, key=lambda seat: seat.start):
        boxes.setdefault(seat.start, []).append(seat)
    slices = seats[0].gpu_slices
    columns: list[tuple[int, list[str]]] = []
    at = 0
    for start, group in sorted(boxes.items()):
        if start > at:
            columns.append((start - at, [_FREE]))
        columns.append((group[0].size, _tell_box(group, tells_who=tells_who)))
        at = start + group[0].size
    if at < slices:
        columns.append((slices - at, [_FREE]))
    height = max(len(texts) for _, texts in columns)
    border = "+" + "+".join("-" * _width(size) for size, _ in columns) + "+"
    lines = [border]
    for row in range(height):
        cells = (
            (texts[row] if row < len(texts) else "")[: _width(size)].center(_width(size))
            for size, texts in columns
        )
        lines.append("|" + "|".join(cells) + "|")
    return [*lines, border]


def _width(size: int) -> int:
    """Columns of a box: its slices, and the borders between them."""
    return size * (_SLICE_WIDTH + 1) - 1


def _tell_box(group: Sequence[SeatExplanation], *, tells_who: bool) -> list[str]:
    words = " ".join(seat.word for seat in group)
    first = group[0]
    size = [] if first.memory_mb is None else [f"{first.memory_mb / 1024:.0f}G"]
    who = ", ".join(_tell_members(seat) for seat in group)
    lines = [words, *size, f"{sum(seat.sms for seat in group)} SMs"]
    return [*lines, who] if tells_who else lines


def _tell_members(seat: SeatExplanation) -> str:
    """Who has an instance; of many the first two, and how many more."""
    if seat.number is None:
        return "-"
    told = [f"/{number}" for number in (seat.number, *seat.others)]
    more = f" +{len(told) - 2}" if len(told) > 3 else ""
    return " ".join(told[:2] if more else told) + more


# ----
# `csub plan`: a plan that is not submitted, as text and as JSON; docs/json.md has the fields.

PLAN_SCHEMA = 1
_REASONS_MOST = 20
_TOLD_MOST = 12
"""Packs that are alike whose members are told."""
_UNIT = late_pattern(r"(?<=\d) (%|s\b|min\b|MB\b|GB\b)")
_GLUE = "\x1f"
"""Stands for the blank between them: no text has it whose control characters are escaped."""


def render_plan(
    explanation: PlanExplanation,
    width: int,
    *,
    explain: bool = False,
    sources: Sequence[str] = (),
    waits: Sequence[WaitEstimate | None] = (),
) -> str:
    """A plan as text.

    Args:
        explanation: The plan and its reasons.
        width: Columns of the terminal.
        explain: With all reasons.
        sources: What the prediction rests on, a sentence each; for `explain`.
        waits: How long each pack waits in the queue; none where nothing tells.
    """
    parts: list[RenderableType] = [_fold(_tell_head(explanation), width)]
    places = {id(pack): place for place, pack in enumerate(explanation.packs)}
    for numbers, packs in group_packs(explanation.packs):
        render_alike = _render_packs if packs[0].slurm_job is None else _render_gpu_sets
        parts += ["", *render_alike(numbers, packs, width, explain=explain)]
        wait = waits[places[id(packs[0])]] if waits else None
        if wait is not None:
            parts.append(_fold(_tell_wait(wait), width, "  "))
    if explain:
        parts += _render_reasons(explanation, sources, width)
    return render(parts, width)


def _tell_head(explanation: PlanExplanation) -> str:
    figures = compute_plan_figures(explanation)
    jobs = sum(len(pack.members) for pack in explanation.packs)
    text = f"{format_count(jobs, 'job')} in {format_count(figures.packs, 'pack')}"
    if figures.gpus > figures.packs:
        text += f" with {figures.gpus} GPUs"
    if figures.gpu_hours is None:
        return f"{text}; how long they hold a GPU is not known yet"
    text += f": {_tell_hours(figures.gpu_hours)} of GPU time"
    if figures.serial_gpu_hours is not None and jobs > 1:
        text += f", {_tell_hours(figures.serial_gpu_hours)} one after the other"
    at_once = explanation.packs_at_once
    if at_once is not None and at_once < figures.packs:
        text += f"; {format_count(at_once, 'pack')} at a time, the last ends "
        text += f"{format_span(figures.finish_s)} after the first has started"
    return text


def _tell_wait(wait: WaitEstimate) -> str:
    return (
        f"waits {format_span(wait.median_s)} in the median, nine of ten at most "
        f"{format_span(wait.p90_s)} ({wait.jobs} jobs with {wait.of})"
    )


def _tell_hours(hours: float) -> str:
    return format_span(hours * 3600)


def group_packs(
    packs: Sequence[PackExplanation],
) -> list[tuple[tuple[int, ...], tuple[PackExplanation, ...]]]:
    """Packs that look alike together, with their numbers from 1 on.

    The GPU sets of a Slurm job are one pack, and stand together whatever they look like.
    """
    found: dict[object, list[int]] = {}
    jobs = group_by_slurm_job(packs)
    for number, (pack, *others) in enumerate(jobs, start=1):
        if others:
            found[number] = [number]
            continue
        members = tuple(drop_names(member) for member in pack.members)
        layout = tuple(replace(seat, number=None) for seat in pack.layout)
        key = (replace(pack, members=(), reasons=(), layout=layout), members)
        found.setdefault(key, []).append(number)
    return [
        (tuple(numbers), tuple(pack for number in numbers for pack in jobs[number - 1]))
        for numbers in found.values()
    ]


def _render_packs(
    numbers: Sequence[int], packs: Sequence[PackExplanation], width: int, *, explain: bool
) -> list[RenderableType]:
    pack = packs[0]
    name, each = f"Pack {numbers[0]}", ""
    if len(numbers) > 1:
        name, each = f"Packs {format_task_ids(tuple(numbers))}, alike", " each"
    at_once = f"{pack.degree} at once"
    if pack.degree > len(pack.members):
        at_once = f"room for {pack.degree}"
    words = [f"{len(pack.members)} members{each}, {at_once}, {pack.mode.value}"]
    if len(pack.members) == 1 and pack.open_for:
        others = format_count(pack.open_for, "more job")
        words = [f"one job, open for {others}", pack.mode.value]
    elif len(pack.members) == 1:
        words = [f"one job{each}, alone" if each else "alone"]
    if pack.is_measured:
        words.append("measured as it starts")
    if pack.predicted_finish_s is not None:
        words.append(f"ends after {format_span(pack.predicted_finish_s)}")
    elif pack.known:
        words.append("how long is not known yet")
    if pack.time_limit_s is not None:
        words.append(f"time limit {format_time_limit(pack.time_limit_s)}")
    parts: list[RenderableType] = [_fold(f"{name}: {', '.join(words)}", width, hanging=2)]
    if len(pack.members) > 1:
        parts += [f"  {line}" for line in render_budget(pack, width - 2)]
    parts += [f"  {line}" for line in draw_layout(pack.layout, tells_who=len(packs) == 1)]
    parts += _indent(render_members(packs, width - 2))
    if len(packs) > 1 and len(pack.members) > 1:
        parts += _tell_who(numbers, packs, width)
    return [*parts, *(_explain(pack.reasons, packs, width) if explain else ())]


def _explain(
    reasons: Iterable[str], packs: Sequence[PackExplanation], width: int
) -> list[RenderableType]:
    """Why packs are as they are, and what is known of their members' GPU memory."""
    return [
        *(_fold(text, width, "  because ") for text in dict.fromkeys(reasons)),
        *(_fold(text, width, "  ", hanging=2) for text in _tell_gpu_memory(packs)),
    ]


def _render_gpu_sets(
    numbers: Sequence[int], packs: Sequence[PackExplanation], width: int, *, explain: bool
) -> list[RenderableType]:
    """A pack of several GPUs: who begins on which of them."""
    members = [member for pack in packs for member in pack.members]
    words = [f"{len(members)} members", packs[0].mode.value]
    if any(pack.is_measured for pack in packs):
        words.append("measured as it starts")
    limits = [pack.time_limit_s for pack in packs if pack.time_limit_s is not None]
    if len(limits) == len(packs):
        words.append(f"time limit {format_time_limit(max(limits))}")
    gpus = sum(pack.gpus for pack in packs)
    head = f"Pack {numbers[0]}, {gpus} GPUs of one node: {', '.join(words)}"
    parts: list[RenderableType] = [_fold(head, width, hanging=2)]
    columns = [
        Column("GPU", is_number=False),
        Column("BEGINS WITH", is_number=False, gives_way=True),
        *map(Column, ("WAIT", "PLACES", "CPUS", "HOST_MEM", "ENDS AFTER")),
    ]
    rows = []
    last = 0
    for pack in packs:
        first = last + 1
        last += pack.gpus
        own = format_task_ids(sorted(member.number for member in pack.members))
        end_s = pack.predicted_finish_s
        rows.append(
            (
                f"{first}" if first == last else f"{first}-{last}",
                own,
                str(max(0, len(pack.members) - pack.degree)),
                str(pack.degree),
                "unknown" if pack.cpus is None else str(pack.cpus),
                format_mb_figure(pack.host_memory_mb),
                "unknown" if end_s is None else format_span(end_s),
            )
        )
    parts += _indent(render([build_table(columns, rows, width - 2)], width - 2))
    parts += _indent(render_members(packs, width - 2))
    reasons = (text for pack in packs for text in pack.reasons)
    return [*parts, *(_explain(reasons, packs, width) if explain else ())]


def _tell_gpu_memory(packs: Sequence[PackExplanation]) -> list[str]:
    """What is known of the members' GPU memory, and who says so."""
    words = {KnownBy.STATED.value: "--gpu-mem"} | {
        source.value: f"the peak of earlier runs by {who}"
        for source, who in PEAK_SOURCE_WORDS.items()
    }
    named: dict[str, dict[str, None]] = {}
    for member in (member for pack in packs for member in pack.members):
        if member.gpu_memory_by is not None:
            named.setdefault(words[member.gpu_memory_by], {})[member.name] = None
    told = [f"{word} ({', '.join(names)})" for word, names in named.items()]
    return [f"GPU memory: {'; '.join(told)}"] if told else []


def _tell_who(numbers: Sequence[int], packs: Sequence[PackExplanation], width: int) -> list[str]:
    """Which members are in which of packs that are alike."""
    told = [
        f"{number} has {format_task_ids(sorted(member.number for member in pack.members))}"
        for number, pack in zip(numbers, packs, strict=True)
    ]
    left = len(told) - _TOLD_MOST
    more = f"; and {left} more, which --json lists" if left > 0 else ""
    return [_fold(f"pack {'; '.join(told[:_TOLD_MOST])}{more}", width, "  ", hanging=2)]


def _render_reasons(
    explanation: PlanExplanation, sources: Sequence[str], width: int
) -> list[RenderableType]:
    parts: list[RenderableType] = [""]
    told = list(dict.fromkeys(explanation.reasons))[:_REASONS_MOST]
    parts += [_fold(text, width, "Plan: ") for text in told]
    parts += [_fold(text, width, hanging=2) for text in sources]
    pairs = tell_pairs(explanation)
    if pairs:
        parts.append("Not together:")
        parts += [_fold(text, width, "  ", hanging=2) for text in pairs]
    return parts


def build_plan_json(
    explanation: PlanExplanation, waits: Sequence[WaitEstimate | None] = ()
) -> dict[str, Any]:
    """A plan with the fields that docs/json.md describes."""
    estimates = waits or [None] * len(explanation.packs)
    return {
        "figures": asdict(compute_plan_figures(explanation)),
        "packs": [
            {**_build_pack(pack), "queue": None if wait is None else asdict(wait)}
            for pack, wait in zip(explanation.packs, estimates, strict=True)
        ],
        "not_together": [asdict(pair) for pair in explanation.pairs],
        "not_together_left_out": explanation.pairs_left_out,
        "reasons": list(dict.fromkeys(explanation.reasons)),
    }


def _build_pack(pack: PackExplanation) -> dict[str, Any]:
    value = asdict(pack)
    value["mode"] = SharingMode(pack.mode).value
    for member in value["members"]:
        member["known_by"] = member["known_by"].value
    return value


def _fold(text: str, width: int, lead: str = "", *, hanging: int = 0) -> str:
    """A sentence on lines of this width, without control characters; units stay with numbers."""
    import textwrap

    lines = textwrap.wrap(
        _UNIT.sub(f"{_GLUE}\\1", escape_controls(text)),
        max(20, width),
        initial_indent=lead,
        subsequent_indent=" " * (len(lead) + hanging),
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_GLUE, " ")


def _indent(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]
