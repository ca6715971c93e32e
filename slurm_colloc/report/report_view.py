"""`csub report`: a summary as tables for people.

Also: results of members, as their summary has them, and which member is best.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job_ids import name_members
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import format_count, format_elapsed
from slurm_colloc.model.result_metrics import is_less_better
from slurm_colloc.report.advice import list_advice
from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.member_views import name_pack
from slurm_colloc.report.report_sentences import (
    build_sentences,
    format_energy,
    say_attribution,
)
from slurm_colloc.report.show_view import build_gpu_rows, has_several, name_gpu, tell_balance
from slurm_colloc.report.summary_file import (
    Summary,
    SummaryGpuMemory,
    SummaryLayout,
    SummaryMember,
    SummaryPart,
    choose_members,
    read_path,
)
from slurm_colloc.report.terminal_tables import (
    UNKNOWN,
    Column,
    build_lines,
    build_table,
    format_figure,
    format_mb_figure,
    format_share,
    format_slowdown,
    render,
    tell_members_apart,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


# ---- Results of members, as their summary has them, and which member is best; pure ---------------

_DIRECTIONS = {"min": True, "max": False}
_NAMES_TOLD = 8
_Row = TypeVar("_Row")


def list_metric_names(members: Sequence[SummaryMember]) -> list[str]:
    """The metrics of some members, in the order in which they were asked for or reported."""
    return list(dict.fromkeys(name for m in members for name in m["metrics"]))


def read_metric(member: SummaryMember, name: str) -> float | None:
    """The last value of a metric; None where it is unknown or was not finite."""
    entry = member["metrics"].get(name)
    return None if entry is None else entry["last"]


@dataclass(frozen=True)
class Ranking:
    """What is best.

    Attributes:
        metric: By which metric.
        less_is_better: Whether its smaller values are better.
    """

    metric: str
    less_is_better: bool

    def sort(self, rows: Sequence[_Row], find: Callable[[_Row], SummaryMember]) -> list[_Row]:
        """Rows, the best first; those whose value is unknown or not finite are last, in order.

        Args:
            rows: They.
            find: The member of a row.
        """

        def weigh(row: _Row) -> tuple[bool, float]:
            value = read_metric(find(row), self.metric)
            if value is None:
                return True, 0.0
            return False, value if self.less_is_better else -value

        return sorted(rows, key=weigh)


def choose_columns(members: Sequence[SummaryMember], ranking: Ranking | None) -> list[str]:
    """The metrics as a table shows them: the one by which members are ordered first."""
    first = [] if ranking is None else [ranking.metric]
    return list(dict.fromkeys([*first, *list_metric_names(members)]))


def choose_ranking(members: Sequence[SummaryMember], wanted: str = "") -> Ranking | None:
    """By what members are ordered; None where they stay as they are.

    Args:
        members: Their parts of a summary.
        wanted: The value of `--best`: `loss`, `min:loss`, `max:score`; empty for the first metric
            whose name says whether less is better.

    Raises:
        UsageProblem: There is no such metric, or nothing says which of its values are better.
    """
    names = list_metric_names(members)
    if not wanted:
        for name in names:
            less = is_less_better(name)
            if less is not None:
                return Ranking(name, less)
        return None
    direction, _, rest = wanted.partition(":")
    is_told = direction in _DIRECTIONS and bool(rest)
    name = rest if is_told else wanted
    if name not in names:
        known = ", ".join(escape_controls(one) for one in names[:_NAMES_TOLD])
        raise UsageProblem(
            f"--best: no member has the metric {cut(name)!r}",
            hint=f"there are {known}" if known else "csub --metric=NAME reads one from the output",
        )
    less = _DIRECTIONS[direction] if is_told else is_less_better(name)
    if less is None:
        raise UsageProblem(
            f"--best: it is not known whether small or large values of {cut(name)!r} are better",
            hint=f"write --best=min:{cut(name)} or --best=max:{cut(name)}",
        )
    return Ranking(name, less)


# ---- `csub report`: a summary as tables for people -----------------------------------------------

WIDE = 110
"""From this width on there are more columns."""
_NOTES_MOST = 12
_WORDS_SHOWN = "SLOWDOWN"
_METRICS_WIDE = 3
_METRIC_MOST = 14

Found = tuple[Summary, Collection[int] | None]
"""A summary, and the numbers of the members to show; None for all of its pack."""


def render_reports(
    found: Sequence[Found],
    width: int,
    *,
    detail: bool = False,
    styled: bool = False,
    best: str = "",
) -> str:
    """The reports on some packs: those of one submission are one.

    Args:
        found: The packs' summaries.
        width: Columns of the terminal.
        detail: Tell all figures of each pack, too.
        styled: Heads may be bold.
        best: By which result members are ordered.

    Raises:
        UsageProblem: No member has that result.
    """
    return "\n".join(
        _render_submission(own, width, detail=detail, styled=styled, best=best)
        for own in group_submissions(found)
    )


def group_submissions(found: Sequence[Found]) -> list[list[Found]]:
    """The packs of each submission together, in the order in which they came."""
    groups: dict[str, list[Found]] = {}
    for summary, numbers in found:
        groups.setdefault(name_submission(summary, numbers), []).append((summary, numbers))
    return list(groups.values())


def name_submission(summary: Summary, numbers: Collection[int] | None) -> str:
    """The id of the submission that is told of: some members may have run in another's pack."""
    jobs = {member["id"].partition("/")[0] for member in choose_members(summary, numbers)}
    if len(jobs) == 1:
        return jobs.pop()
    return summary["submission"] or summary["job"] or summary["pack_id"]


def choose_ids(found: Sequence[Found]) -> list[str] | None:
    """The ids of the members that are shown; None for all of their packs."""
    if all(numbers is None for _, numbers in found):
        return None
    return [
        member["id"] for summary, numbers in found for member in choose_members(summary, numbers)
    ]


def list_members(found: Sequence[Found], best: str = "") -> list[SummaryMember]:
    """The members that are shown: by a result of theirs, else pack by pack.

    Those of GPU sets of one job are in the order of their numbers.

    Args:
        found: Their packs.
        best: By which result.

    Raises:
        UsageProblem: No member has that result.
    """
    members = [member for summary, numbers in found for member in choose_members(summary, numbers)]
    if any(summary["gpu_sets"] for summary, _ in found):
        members.sort(key=lambda member: (len(member["id"]), member["id"]))
    ranking = choose_ranking(members, best)
    return members if ranking is None else ranking.sort(members, lambda member: member)


def _render_submission(
    found: Sequence[Found], width: int, *, detail: bool, styled: bool, best: str
) -> str:
    summaries, chosen = [summary for summary, _ in found], choose_ids(found)
    members = list_members(found, best)
    columns, rows = _build_rows(members, width, best)
    parts: list[RenderableType] = [_build_text(tell_headline(summaries, chosen)), ""]
    if rows:
        parts += [build_table(columns, rows, width), ""]
    if chosen is None and has_several(summaries):
        parts += [build_table(*build_gpu_rows(summaries), width), ""]
    notes = [("Note", advice.say()) for advice in list_advice(summaries, chosen)]
    if detail:
        balance = tell_balance(summaries) if chosen is None and has_several(summaries) else ""
        parts.append(build_lines([*notes, *([("Balance", balance)] if balance else [])]))
        for summary, numbers in found:
            parts += [
                "",
                build_lines([*list_setup(summary, numbers), *list_details(summary, numbers)]),
            ]
        return render(parts, width, styled=styled)
    job = name_submission(*found[0])
    hint = f"csub report {job} --detail, --html; csub explain WORD, such as {_WORDS_SHOWN}"
    opened = [line for each in found if _has_own_members(*each) for line in list_open(each[0])]
    opened += [line for summary in summaries for line in list_links(summary, len(summaries) > 1)]
    parts.append(build_lines([*opened, *notes, ("More", hint)]))
    return render(parts, width, styled=styled)


def _has_own_members(summary: Summary, chosen: Collection[int] | None) -> bool:
    """Whether those are shown for whom Slurm was asked, and not only jobs that joined later."""
    return any(member["joined_at"] is None for member in choose_members(summary, chosen))


def _build_text(text: str) -> RenderableType:
    from rich.text import Text

    return Text(escape_controls(text), style="bold")


def list_details(summary: Summary, chosen: Collection[int] | None) -> list[tuple[str, str]]:
    """All that is told of a pack apart from its table, as labelled sentences."""
    members = choose_members(summary, chosen)
    return [
        *build_sentences(summary, None if chosen is None else members),
        *_build_unknown(summary, members, of_pack=chosen is None),
    ]


def list_setup(summary: Summary, chosen: Collection[int] | None) -> list[tuple[str, str]]:
    """Where a pack ran, who in it, and how its GPU was shared, as labelled sentences."""
    setup = summary["setup"]
    in_slurm = f", job {summary['job']} in Slurm" if summary["number_of"] else ""
    state = "" if summary["final"] else ", still running: figures so far"
    lines = [
        (name_summary(summary), f"{summary['name']}{_tell_gpu_set(summary)}{in_slurm}{state}"),
        *(
            ("GPU", " on ".join(filter(None, (one, summary["node"]))))
            for one in _list_gpus(summary)
        ),
    ]
    # Those that it has taken over, and not those that another has taken from it.
    ran = [m["id"] for m in choose_members(summary, chosen) if m["started_at"] is not None]
    if ran:
        lines.append(("Ran here", name_members(ran)))
    if setup is None:
        is_alone = len(summary["members"]) == 1
        word = (
            "exclusive (alone on its GPU)" if is_alone else "how it was prepared was not recorded"
        )
        lines.append(("Sharing", word))
        return lines
    by = {"runner": "by a daemon of the pack's own", "": ""}.get(
        setup["by"], f"by the node ({setup['by']})"
    )
    asked = f"asked for {setup['asked']}" if setup["asked"] != setup["mode"] else ""
    words = ", ".join(filter(None, (by, asked, setup["reason"])))
    lines.append(("Sharing", f"{setup['mode'] or 'none'}{f' ({words})' if words else ''}"))
    lines += [*list_open(summary), *list_links(summary)]
    if summary["layout"] is not None:
        lines.append(("MIG", tell_layout(summary["layout"])))
    lines += [("", f"note: {note}") for note in setup["notes"]]
    return lines


def list_open(summary: Summary) -> list[tuple[str, str]]:
    """What a pack that was open for others asked Slurm for, as a labelled sentence; else none."""
    found = summary["open"]
    if found is None:
        return []
    texts = [f"for {found['for']} more, {found['joined']} joined"]
    for hours, what in (
        (found["cpu_hours"], "CPU hours"),
        (found["host_memory_gb_hours"], "GB hours of host memory"),
    ):
        asked, used = (format_figure(amount, 2) for amount in (hours["asked"], hours["used"]))
        texts.append(f"{asked} {what} asked for, {used} by its members")
    return [("Open", "; ".join(texts))]


def list_links(summary: Summary, is_of_several: bool = False) -> list[tuple[str, str]]:
    """What going from one link of a chain to the next has cost, as labelled sentences."""
    found = summary["chain"]
    if found is None:
        return []
    links = found["links"]
    lines = []
    for number, (job_id, handover) in enumerate(
        zip(links[1:], found["handovers"], strict=False), 2
    ):
        told = [
            f"{words} {'for an unknown time' if seconds is None else format_elapsed(int(seconds))}"
            for words, seconds in (
                ("waited", handover["waited_s"]),
                ("interrupted", handover["interruption_s"]),
                ("overlap", handover["overlap_s"]),
            )
        ]
        lines.append((f"Link {number}", f"job {job_id}: {', '.join(told)}"))
    sums = (
        "unknown" if seconds is None else format_elapsed(int(seconds))
        for seconds in (found["interruption_s"], found["overlap_s"])
    )
    words = "{} of at most {}; interrupted in all {}, overlap in all {}".format(
        format_count(len(links), "link"), found["links_most"], *sums
    )
    if is_of_several:
        words = f"of {summary['members'][0]['id']}: {words}"
    problem = [("", found["problem"])] if found["problem"] else []
    return [("Chain", words), *lines, *problem]


def name_summary(summary: Summary) -> str:
    """What its pack is called."""
    return name_pack(summary["number_of"], summary["job"] or summary["pack_id"])


def _tell_gpu_set(summary: Summary) -> str:
    count = len(summary["gpu_sets"])
    return f", GPU set {summary['gpu_set'] + 1} of {count}" if count > 1 else ""


def _list_gpus(summary: Summary) -> list[str]:
    gpus = summary["gpus"]
    if len(gpus) < 2:
        gpu = summary["gpu"]
        return [" ".join(filter(None, (gpu["model"] or "a GPU that is not known", gpu["uuid"])))]
    return [
        f"{name_gpu(one['uuid'], one['index'])}, {one['model'] or 'a model that is not known'}"
        for one in gpus
    ]


def tell_layout(layout: SummaryLayout) -> str:
    """A planned MIG layout, and what came, the largest first."""
    planned = "+".join(layout["planned"]) or "nothing"
    came = [
        one["profile"] + (f" (for {one['places']} by MPS)" if (one["places"] or 1) > 1 else "")
        for one in sorted(layout["came"], key=lambda one: -(one["memory_mb"] or 0))
    ]
    return f"planned {planned}, came {'+'.join(came) or 'no instances'}"


def _build_rows(
    members: Sequence[SummaryMember], width: int, best: str
) -> tuple[list[Column], list[tuple[str, ...]]]:
    wide = width >= WIDE
    metrics = choose_columns(members, choose_ranking(members, best))
    calls = tell_members_apart(members)
    arguments = {id(member): text for member, text in zip(members, calls, strict=True)}
    # Arguments tell members apart that have one name.
    named = not any(calls) or len({member["name"] for member in members}) > 1
    table: list[tuple[Column, Callable[[SummaryMember], str], bool]] = [
        (Column("MEMBER", is_number=False), lambda m: m["id"], True),
        (Column("NAME", is_number=False, gives_way=True), lambda m: m["name"], named),
        (
            Column("ARGUMENTS", is_number=False, gives_way=True),
            lambda m: arguments[id(m)],
            any(calls),
        ),
        *(
            (
                Column(escape_controls(cut(name, _METRIC_MOST))),
                functools.partial(format_metric, name=name),
                True,
            )
            for name in metrics[: _METRICS_WIDE if wide else 1]
        ),
        (Column("STATE", is_number=False), lambda m: m["state"], True),
        (
            Column("INSTANCE", is_number=False),
            find_instance_word,
            any(map(find_instance_word, members)),
        ),
        (Column("STEPS/S" if wide else "STEPS\n/S"), _show("rate", "steps_per_s"), True),
        (Column("ALONE"), _show("solo", "steps_per_s"), wide),
        (
            Column("SAMPLES/S"),
            _show("rate", "samples_per_s"),
            wide and any(m["rate"]["samples_per_s"] is not None for m in members),
        ),
        (Column("SLOW-\nDOWN"), lambda m: format_slowdown(m["slowdown"]), True),
        (
            Column("PRE-\nDICTED"),
            lambda m: _format_prediction(m["predicted_slowdown"]),
            any(m["predicted_slowdown"] is not None for m in members),
        ),
        (*_show_part("GPU_MEM", lambda m: m["gpu_memory_mb"], format_mb_figure, members), True),
        (*_show_part("GPU SM", lambda m: m["sm_share"], format_share, members), True),
        (*_show_part("ENERGY", lambda m: m["energy_j"], format_energy, members), wide),
        (Column("CPUS" if wide else "CPU"), lambda m: format_figure(m["cpu_cores"], 2), True),
        (Column("DATA\nWAIT"), lambda m: format_share(m["stall"]["data"]), True),
    ]
    kept = [(column, write) for column, write, is_shown in table if is_shown]
    rows = [tuple(write(member) for _, write in kept) for member in members]
    return [column for column, _ in kept], rows


def format_metric(member: SummaryMember, name: str) -> str:
    """The last value of a result; `not finite` where that was no number, as in a diverged loss."""
    entry = member["metrics"].get(name)
    if entry is None:
        return UNKNOWN
    return "not finite" if entry["last"] is None else f"{entry['last']:.5g}"


def find_instance_word(member: SummaryMember) -> str:
    """The profile of a member's MIG instance, and what was planned where that has other slices.

    Empty where it had none.
    """
    mig = member["mig"]
    profile, planned = (mig["profile"] or "", mig["planned"]) if mig else ("", None)
    if not planned or _name_slices(planned) == _name_slices(profile):
        return profile
    return f"{profile} (planned {planned})"


def _name_slices(word: str) -> str:
    """What is left of `3g.40gb` or `1c.3g.40gb` without its size, which drivers round."""
    return re.sub(r"\.\d+gb", "", word)


def choose_word(parts: Iterable[SummaryPart | SummaryGpuMemory | None]) -> str:
    """The word for a whole column; empty where its cells differ."""
    words = {part["attribution"] for part in parts if part is not None}
    return say_attribution(words.pop()) if len(words) == 1 else ""


def _show(*path: str) -> Callable[[SummaryMember], str]:
    """A figure of a member, by where it stands in its part of a summary."""
    return lambda member: format_figure(cast("float | None", read_path(member, path)))


def _show_part(
    title: str,
    find: Callable[[SummaryMember], SummaryPart | SummaryGpuMemory | None],
    write: Callable[[float | None], str],
    members: Sequence[SummaryMember],
) -> tuple[Column, Callable[[SummaryMember], str]]:
    """A column of parts of something; its head says how they were obtained, if in one way."""
    word = choose_word(map(find, members))

    def show(member: SummaryMember) -> str:
        part = find(member)
        if part is None:
            return UNKNOWN
        text = write(part["peak"] if "peak" in part else part["value"])
        return text if word else f"{text} {say_attribution(part['attribution'])}"

    return Column(f"{title}\n{word}".rstrip()), show


def _format_prediction(value: float | None) -> str:
    return "" if value is None else format_slowdown(value)


def _build_unknown(
    summary: Summary, members: Sequence[SummaryMember], *, of_pack: bool
) -> list[tuple[str, str]]:
    """What is unknown and why; the same sentence for many members is said once."""
    unknown = summary["pack"]["unknown"] if of_pack else []
    lines = [("Unknown", text) for text in unknown]
    told = summary["pack"]["slowdown_unknown"] if of_pack else []
    by_note: dict[str, list[str]] = {}
    for member in members:
        own = [f"{of} unknown: {w}" for of, w in member["unknown"].items() if w not in told]
        for note in own + member["notes"]:
            by_note.setdefault(note, []).append(member["id"])
    notes = [("Note", f"{name_members(who)}: {note}") for note, who in by_note.items()]
    if len(notes) > _NOTES_MOST:
        rest = len(notes) - _NOTES_MOST
        notes = [*notes[:_NOTES_MOST], ("", f"and {rest} more notes; --json has all")]
    return [*lines, *notes, *(("Note", note) for note in summary["notes"])]
