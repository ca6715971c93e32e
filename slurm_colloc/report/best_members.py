"""Results of members, as their summary has them, and which member is best; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.result_metrics import is_less_better

_DIRECTIONS = {"min": True, "max": False}
_NAMES_TOLD = 8
_Row = TypeVar("_Row")


def list_metric_names(members: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics of some members, in the order in which they were asked for or reported."""
    return list(dict.fromkeys(name for m in members for name in m["metrics"]))


def read_metric(member: Mapping[str, Any], name: str) -> float | None:
    """The last value of a metric; None where it is unknown or was not finite."""
    entry = member["metrics"].get(name)
    value: float | None = None if entry is None else entry["last"]
    return value


@dataclass(frozen=True)
class Ranking:
    """What is best.

    Attributes:
        metric: By which metric.
        less_is_better: Whether its smaller values are better.
    """

    metric: str
    less_is_better: bool

    def sort(self, rows: Sequence[_Row], find: Callable[[_Row], Mapping[str, Any]]) -> list[_Row]:
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


def choose_columns(members: Sequence[Mapping[str, Any]], ranking: Ranking | None) -> list[str]:
    """The metrics as a table shows them: the one by which members are ordered first."""
    first = [] if ranking is None else [ranking.metric]
    return list(dict.fromkeys([*first, *list_metric_names(members)]))


def choose_ranking(members: Sequence[Mapping[str, Any]], wanted: str = "") -> Ranking | None:
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
