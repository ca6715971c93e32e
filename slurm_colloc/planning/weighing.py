"""Why a pack is not made: every limit and bound that it would break, with both numbers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from slurm_colloc.model.calibration import Calibration
from slurm_colloc.model.plan import Goal, SharingMode
from slurm_colloc.planning.families import PLAIN, Family, predict_in
from slurm_colloc.planning.limits import Broken
from slurm_colloc.planning.pricing import SLACK, Pricing
from slurm_colloc.planning.subject import Limits, Priced, Setting, Subject

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
            dataclasses.replace(subject, max_slowdown=math.inf, margin=_UNBOUNDED)
            for subject in self.subjects
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
        broken = [b for b in self.pricing.find_broken(members) if b.constraint != "time"]
        free = self.price_freely(members)
        if free is None:
            return (*broken, Broken("mig", None, None, "no sharing mode takes them together"))
        slow = find_too_slow([names[i] for i in members], chosen, free.slowdowns)
        broken += [slow] if slow else []
        key = tuple(sorted(self.pricing.kind_of[i] for i in members))
        finish_s, margin = self.limits.finish_s, self.pricing.find_margin(key)
        latest_s = free.gpu_s * (1.0 + margin)
        if finish_s is not None and latest_s > finish_s * (1.0 + SLACK):
            text = f"they would last {free.gpu_s:.0f} s"
            if margin > 0:
                text += f" (and up to {margin:.0%} more)"
            text += f", a pack may last {finish_s:.0f} s"
            broken.append(Broken("time", latest_s, finish_s, text))
        most = self.pricing.compute_cost_limit(key)
        if free.cost >= most:
            what, unit = describe_goal(self.goal, free)
            apart = self.pricing.compute_cost_alone(key)
            text = f"together they take {free.cost:.0f} {unit} of {what}, apart {apart:.0f} {unit}"
            if free.cost < apart:
                text += ", which is less than the model may be wrong by"
            broken.append(Broken("cost", free.cost, most, text))
        return tuple(broken) or (
            Broken("mig", None, None, "they do not fit onto the instances of one GPU"),
        )


def find_too_slow(
    names: Sequence[str], subjects: Sequence[Subject], slowdowns: Sequence[float]
) -> Broken | None:
    """The bound on slowdowns, where members pass it: how far the slowest is beyond its own.

    Args:
        names: Of the members.
        subjects: The members.
        slowdowns: What is predicted for them.
    """
    passed = [
        (slowdown * (1.0 + subject.margin) / subject.max_slowdown, place)
        for place, (subject, slowdown) in enumerate(zip(subjects, slowdowns, strict=True))
        if slowdown * (1.0 + subject.margin) > subject.max_slowdown * (1.0 + SLACK)
    ]
    if not passed:
        return None
    # Of equally slow ones the one that came last is named: it is what was to come on top.
    ratio, place = max(passed)
    subject = subjects[place]
    text = f"{names[place]} would be slowed down {slowdowns[place]:.2f} times"
    if subject.margin > 0:
        text += f" (and up to {subject.margin:.0%} more)"
    text += f", --max-slowdown is {subject.max_slowdown:g}"
    if len(passed) > 1:
        text += f" ({len(passed)} of {len(subjects)} members would pass it)"
    return Broken("slowdown", ratio * subject.max_slowdown, subject.max_slowdown, text)


def describe_goal(goal: Goal, priced: Priced) -> tuple[str, str]:
    """What a goal counts, in words, and its unit."""
    if goal is Goal.ENERGY and priced.energy_j is not None:
        return "energy", "J"
    return ("GPU time and delay" if goal is Goal.LATENCY else "GPU time"), "s"


def build_unknown(name: str) -> Broken:
    """A job of unknown load."""
    text = f"what {name} takes of a GPU is not known yet, so it shares with no job that is known"
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
    power_room_w = None
    if calibration.idle_power_w is not None and calibration.power_limit_w is not None:
        power_room_w = max(0.0, calibration.power_limit_w - calibration.idle_power_w)
    return tuple(
        predict_in(
            Family(setting.mode, model),
            loads,
            [percentage or 100 for percentage in setting.percentages],
            PLAIN,
            cores=float(sum(subject.cpus for subject in subjects)),
            power_room_w=power_room_w,
        )
    )
