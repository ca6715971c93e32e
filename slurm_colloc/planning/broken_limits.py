"""Why a pack is not made: every limit and bound that it would break, with both numbers.

Also: why a job of known load runs alone, with both numbers of what is in the way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.plan import Goal, SharingMode
from slurm_colloc.model.usage_profile import Calibration
from slurm_colloc.planning.hard_limits import (
    Broken,
    Limits,
    Priced,
    Setting,
    Subject,
    find_broken_instances,
)
from slurm_colloc.planning.pack_pricing import (
    PLAIN,
    SLACK,
    Family,
    Pricing,
    compute_power_room_w,
    predict_in,
)

_UNBOUNDED = -1e12
"""A margin with which no slowdown is too large and no pack too dear."""


class Weighing:
    """Jobs that may share with each other, and what their packs would come to.

    Args:
        subjects: The jobs; packs are named by positions in them.
        limits: What one GPU has.
        calibration: How jobs slow each other down there.
        goal: What the choice makes small.
        modes: Sharing modes that may be used.
    """

    def __init__(
        self,
        subjects: Sequence[Subject],
        limits: Limits,
        calibration: Calibration | None,
        *,
        goal: Goal = Goal.THROUGHPUT,
        modes: Sequence[SharingMode] = (SharingMode.MPS,),
    ) -> None:
        self.subjects = tuple(subjects)
        self.limits = limits
        self.calibration = calibration
        self.goal = goal
        self.modes = tuple(modes)
        self.pricing = Pricing(self.subjects, limits, calibration, goal=goal, modes=self.modes)

    @functools.cached_property
    def _free_pricing(self) -> Pricing:
        """The same jobs with no limit and no bound."""
        free = [
            replace(subject, max_slowdown=math.inf, margin=_UNBOUNDED) for subject in self.subjects
        ]
        return Pricing(free, Limits(), self.calibration, goal=self.goal, modes=self.modes)

    def price_freely(self, members: Sequence[int]) -> Priced | None:
        """The cheapest setting of a pack, whatever it breaks; None where a load is unknown."""
        return self._free_pricing.price(members)

    def find_broken(
        self, members: Sequence[int], names: Sequence[str] | Mapping[int, str]
    ) -> tuple[Broken, ...]:
        """Every limit and bound that a pack would break under its cheapest setting.

        Where exactly one is named, it is all that is in the way: with that limit raised to what
        the pack would come to, the pack may be made.

        Args:
            members: The pack.
            names: What the jobs are called, by position.

        Returns:
            What is broken; nothing where the pack may be made.
        """
        chosen = [self.subjects[i] for i in members]
        for member, subject in zip(members, chosen, strict=True):
            if subject.load is None:
                return (build_unknown(names[member]),)
        if self.pricing.price(members) is not None:
            return ()
        hard = [b for b in self.pricing.find_broken(members) if b.constraint != "time"]
        member_names = [names[i] for i in members]
        broken = [name_needy(b, member_names, chosen) for b in hard]
        free = self.price_freely(members)
        if free is None:
            none = Broken("mig", None, None, "no sharing mode takes them together")
            return tuple(broken) or (none,)
        broken += list_too_slow(member_names, chosen, free.slowdowns)
        if free.setting.mode is SharingMode.MIG and not self.limits.has_instances:
            small = find_broken_instances(chosen, self.limits)
            broken += [name_needy(b, member_names, chosen) for b in small]
        key = tuple(sorted(self.pricing.kind_of[i] for i in members))
        finish_s, margin = self.limits.finish_s, self.pricing.find_margin(key)
        latest_s = free.gpu_s * (1.0 + margin)
        if finish_s is not None and latest_s > finish_s * (1.0 + SLACK):
            text = f"they would last {free.gpu_s:.0f} s"
            if margin > 0:
                text += f" ({format_above(latest_s, finish_s, 0)} s with {_tell_margin(margin)})"
            text += f", a pack may last {finish_s:.0f} s"
            broken.append(Broken("time", latest_s, finish_s, text))
        # Where energy counts, it is still time that a pack has to save.
        took_s = free.gpu_s if self.goal is Goal.ENERGY else free.cost
        most_s = self.pricing.compute_time_limit_s(key)
        if took_s >= most_s:
            alone_s = sum(subject.run_s for subject in chosen)
            what, _ = describe_goal(
                Goal.THROUGHPUT if self.goal is Goal.ENERGY else self.goal, free
            )
            together, apart = format_apart(took_s, alone_s)
            text = f"together they take {together} s of {what}, apart {apart} s"
            if took_s < alone_s:
                text += f"; with {_tell_margin(margin)} it has to be less than {most_s:.0f} s"
            broken.append(Broken("cost", took_s, most_s, text))
        # Under its cheapest setting nothing is in the way, and yet it was not made: none is known.
        return tuple(broken) or (
            Broken("mig", None, None, "they do not fit onto the instances of one GPU"),
        )


def name_needy(broken: Broken, names: Sequence[str], subjects: Sequence[Subject]) -> Broken:
    """Of MIG instances that are too small: whose need it is; anything else as it is.

    Args:
        broken: What is broken.
        names: Of the members.
        subjects: The members.
    """
    count = len(subjects)
    if broken.constraint != "mig" or broken.limit is None or broken.have == count:
        return broken
    # Of equal needs that of the one that came last is named, as of slowdowns.
    need_mb, place = max((s.gpu_memory_mb or 0, place) for place, s in enumerate(subjects))
    text = (
        f"{names[place]} needs {need_mb} MB of GPU memory, "
        f"each of {count} MIG instances has {broken.limit:.0f} MB"
    )
    return replace(broken, text=text)


def find_too_large(
    members: Sequence[Subject], names: Sequence[str], limits: Limits
) -> list[Broken]:
    """Who by itself needs more than one GPU's share: it does not share, not even in turn.

    Args:
        members: Some jobs.
        names: What they are called.
        limits: What one GPU has.
    """
    broken = []
    for constraint, need_of, most, text in (
        ("cpus", [s.cpus for s in members], limits.cpus, "{} CPUs, the GPU's share is {}"),
        (
            "host_memory",
            [s.host_memory_mb or 0 for s in members],
            limits.host_memory_mb,
            "{} MB of host memory, the GPU's share is {} MB",
        ),
        (
            "gpu_memory",
            [s.gpu_memory_mb or 0 for s in members],
            limits.gpu_memory_mb,
            "{} MB of GPU memory, {} MB are usable",
        ),
    ):
        need, place = max((need, place) for place, need in enumerate(need_of))
        if most is not None and need > most:
            told = f"{names[place]} needs {text.format(need, most)}"
            broken.append(Broken(constraint, need, most, told))
    return broken


def find_too_slow(
    names: Sequence[str], subjects: Sequence[Subject], slowdowns: Sequence[float]
) -> Broken | None:
    """The bound on slowdowns that is passed most; see `list_too_slow`."""
    return next(iter(list_too_slow(names, subjects, slowdowns)), None)


def list_too_slow(
    names: Sequence[str], subjects: Sequence[Subject], slowdowns: Sequence[float]
) -> list[Broken]:
    """The bounds on slowdowns that members pass, and how far the slowest is beyond each.

    Args:
        names: Of the members.
        subjects: The members.
        slowdowns: What is predicted for them.

    Returns:
        The one that is passed most first; members with the same bound once.
    """
    passed: dict[float, list[tuple[float, int]]] = {}
    for place, (subject, slowdown) in enumerate(zip(subjects, slowdowns, strict=True)):
        latest = slowdown * (1.0 + subject.bound_margin)
        if latest > subject.max_slowdown * (1.0 + SLACK):
            passed.setdefault(subject.max_slowdown, []).append((latest, place))
    return [
        _build_too_slow(names, subjects, slowdowns, passed[bound])
        for bound in sorted(passed, key=lambda bound: -max(passed[bound])[0] / bound)
    ]


def _build_too_slow(
    names: Sequence[str],
    subjects: Sequence[Subject],
    slowdowns: Sequence[float],
    passed: Sequence[tuple[float, int]],
) -> Broken:
    # Of equally slow ones the one that came last is named: it is what was to come on top.
    latest, place = max(passed)
    subject = subjects[place]
    told = format_above(latest, subject.max_slowdown, 2)
    if subject.bound_margin:
        margin = _tell_margin(abs(subject.bound_margin))
        word = "with" if subject.bound_margin > 0 else "less"
        told = f"{slowdowns[place]:.2f} times ({told} {word} {margin})"
    else:
        told = f"{told} times"
    text = f"{names[place]} would be slowed down {told}"
    text += f", --max-slowdown is {subject.max_slowdown:g}"
    if len(passed) > 1:
        text += f" ({len(passed)} of {len(subjects)} members would pass it)"
    return Broken("slowdown", latest, subject.max_slowdown, text)


def _tell_margin(margin: float) -> str:
    return f"the model's margin of {100 * margin:.0f} %"


def format_above(value: float, limit: float, digits: int) -> str:
    """A number that passes a limit, with as many more digits as show it, at most three more."""
    for count in range(digits, digits + 4):
        text = f"{value:.{count}f}"
        if float(text) > limit:
            break
    return text


def format_apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers with as many digits as show that they differ, at most three behind the point."""
    for digits in range(4):
        texts = f"{one:.{digits}f}", f"{other:.{digits}f}"
        if texts[0] != texts[1]:
            break
    return texts


def describe_goal(goal: Goal, priced: Priced) -> tuple[str, str]:
    """What a goal counts, in words, and its unit."""
    if goal is Goal.ENERGY and priced.energy_j is not None:
        return "energy", "J"
    return ("GPU time and delay" if goal is Goal.LATENCY else "GPU time"), "s"


def build_unknown(name: str) -> Broken:
    """A job of unknown load."""
    text = f"what {name} uses of a GPU is not known yet, so it shares with no job that is known"
    return Broken("unknown", None, None, text)


def predict_setting(
    subjects: Sequence[Subject], setting: Setting, calibration: Calibration | None
) -> tuple[float, ...] | None:
    """Each member's slowdown in a given setting; None where a load or the mode's model is unknown.

    Args:
        subjects: The members.
        setting: Their mode and thread limits, in their order.
        calibration: How jobs slow each other down.
    """
    if calibration is None:
        return None
    loads = [subject.load for subject in subjects if subject.load is not None]
    model = calibration.modes.get(setting.mode.value)
    if model is None or len(loads) < len(subjects):
        return None
    return tuple(
        predict_in(
            Family(setting.mode, model),
            loads,
            [percentage or 100 for percentage in setting.percentages],
            PLAIN,
            cores=float(sum(subject.cpus for subject in subjects)),
            power_room_w=compute_power_room_w(calibration),
        )
    )


# ---- Why a job of known load runs alone, with both numbers of what is in the way -----------------

_KINDS_MOST = 100
"""Kinds of lone jobs for which partners are looked through; each takes some prices of pairs."""
_PARTNERS_MOST = 6

_MANY = "no pack that was looked at keeps every limit and bound and saves GPU time"
_NOBODY = "no known job was submitted with it"


class Declining:
    """Says of jobs why they run alone.

    Args:
        weighing: The jobs of known load that may share with each other.
        names: Their names.
        labels: What they are called where several have the same name.
        parts: The packs that were made of them.
    """

    def __init__(
        self,
        weighing: Weighing,
        names: Sequence[str],
        labels: Sequence[str],
        parts: Sequence[Sequence[int]],
    ) -> None:
        self._weighing = weighing
        self._names = names
        self._labels = labels
        self._parts = parts
        kinds: dict[int, int] = {}
        self._twins: dict[int, int] = {}
        for position, kind in enumerate(weighing.pricing.kind_of):
            if kind in kinds:
                self._twins.setdefault(kind, position)
            else:
                kinds[kind] = position
        # The lightest disturb least.
        self._partners = sorted(kinds.values(), key=self._weigh_load)[:_PARTNERS_MOST]
        self._part_of = {
            position: number for number, members in enumerate(parts) for position in members
        }
        self._explained: dict[int, str] = {}

    def _weigh_load(self, position: int) -> float:
        load = self._weighing.subjects[position].load
        return load.engine + load.sm + load.dram if load else float("inf")

    def explain(self, position: int) -> str:
        """Why a job runs alone, in words."""
        kind = self._weighing.pricing.kind_of[position]
        if kind not in self._explained:
            known = len(self._explained) < _KINDS_MOST
            self._explained[kind] = self._compute(position) if known else _MANY
        return self._explained[kind]

    def _compute(self, position: int) -> str:
        weighing = self._weighing
        if len(weighing.subjects) < 2:
            return _NOBODY
        kind = weighing.pricing.kind_of[position]
        partners = [p for p in self._partners if weighing.pricing.kind_of[p] != kind]
        if kind in self._twins:
            first = weighing.pricing.kind_of.index(kind)
            partners.append(first if first != position else self._twins[kind])
        best: tuple[tuple[int, float], int, tuple[Broken, ...]] | None = None
        for partner in partners:
            names = {position: "it", partner: "that one"}
            broken = weighing.find_broken((partner, position), names)
            if not broken:
                return self._explain_left_over(position, partner)
            badness = _compute_badness(broken)
            if best is None or badness < best[0]:
                best = (badness, partner, broken)
        assert best is not None
        return self._describe(position, best[1], best[2])

    def _call(self, position: int, partner: int) -> str:
        """What a partner is called; one like the job itself is said of all that are alike."""
        kind_of = self._weighing.pricing.kind_of
        alike = kind_of[position] == kind_of[partner]
        return (self._names if alike else self._labels)[partner]

    def _describe(self, position: int, partner: int, broken: Sequence[Broken]) -> str:
        texts = [b.text for b in broken if b.constraint == "slowdown"]
        texts += [b.text for b in broken if b.constraint != "slowdown"]
        return f"with its best partner {self._call(position, partner)} " + "; ".join(texts)

    def _explain_left_over(self, position: int, partner: int) -> str:
        """It could share with one, but who could share with it saves more with others."""
        weighing, name = self._weighing, self._call(position, partner)
        members = self._parts[self._part_of[partner]]
        together = (*members, position)
        if len(members) == 1 or position in members:
            # Local search does not always find it.
            return f"it could share with {name}; with so many jobs not every division is tried"
        names = {i: self._labels[i] for i in members} | {position: "it"}
        broken = weighing.find_broken(together, names)
        if broken:
            texts = "; ".join(b.text for b in broken)
            return f"{name} saves more with others, and together with them {texts}"
        priced, joined = weighing.pricing.price(members), weighing.pricing.price(together)
        alone = weighing.pricing.price((position,))
        assert priced is not None
        assert joined is not None
        assert alone is not None
        what, unit = describe_goal(weighing.goal, alone)
        return (
            f"in the pack of {name} it would add {joined.cost - priced.cost:.0f} {unit} of {what}, "
            f"alone it takes {alone.cost:.0f} {unit}"
        )


def _compute_badness(broken: Sequence[Broken]) -> tuple[int, float]:
    """How much is in the way: how many limits, and how far the worst is passed, relatively."""
    ratios = [b.have / b.limit for b in broken if b.have is not None and b.limit]
    return len(broken), max(ratios, default=float("inf"))
