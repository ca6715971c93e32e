r"""`--metric`: results that a job prints, such as its loss; pure.

One expression names one metric or several. `loss` finds the number after this word. An expression
with the group `value` is named after the word that it begins with, and any other group is a metric
of its own name: `loss=(?P<value>[0-9.]+)` and `epoch \d+ (?P<loss>\S+)` are both `loss`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from slurm_colloc.model.late_definitions import dataclass, late_pattern

METRICS_MOST = 16
EXPRESSION_MOST = 1000
NAME_MOST = 100
"""Characters of a metric's name, also of one that a program reports itself."""

_VALUE = "value"
_NUMBER = late_pattern(r"[-+]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][-+]?[0-9]{1,3})?")
_NOT_FINITE = frozenset({"nan", "inf", "infinity"})
_NUMBER_AFTER = (
    r"(?<![\w./-]){name}[\"']?\s{{0,8}}[:=]?\s{{0,8}}"
    r"(?P<value>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:nan|[-+]?inf))(?!\w)"
)
_WORD = late_pattern(r"(?a)[A-Za-z][\w/.-]*")
_BEGINNING = late_pattern(r"(?a)(?:\^|\\b)?([A-Za-z][\w/]*)")


@dataclass(frozen=True)
class MetricExpression:
    """What is searched for in each line.

    Attributes:
        text: As the user wrote it.
        regex: The expression.
        names: The metric of each of its groups.
    """

    text: str
    regex: re.Pattern[str]
    names: dict[str, str]

    def search(self, line: str) -> Iterator[tuple[str, str]]:
        """The metrics in a line, each with what stands for its value."""
        for match in self.regex.finditer(line):
            for group, name in self.names.items():
                if match[group] is not None:
                    yield name, match[group]


def parse_metrics(text: str) -> tuple[str, ...]:
    """The expressions of a job, each checked.

    Args:
        text: The values of all its `--metric`, a line each.

    Raises:
        ValueError: One of them is none.
    """
    found = tuple(dict.fromkeys(text.split("\n")))
    if len(found) > METRICS_MOST:
        raise ValueError(f"there are {len(found)} of them, and may be {METRICS_MOST}")
    for one in found:
        parse_metric(one)
    return found


def parse_metric(text: str) -> MetricExpression:
    """One expression.

    Raises:
        ValueError: It is none of Python's, or names no metric.
    """
    if not text:
        raise ValueError("it is empty: write a name, as in loss, or a regular expression")
    if len(text) > EXPRESSION_MOST:
        raise ValueError(f"it has {len(text)} characters, and may have {EXPRESSION_MOST}")
    if _WORD.fullmatch(text):
        _check_name(text)
        regex = re.compile(_NUMBER_AFTER.format(name=re.escape(text)))
        return MetricExpression(text, regex, {_VALUE: text})
    try:
        regex = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"it is not a regular expression of Python's: {error}") from error
    if not regex.groupindex:
        raise ValueError(
            f"it does not say which part is the number: write it as (?P<{_VALUE}>...), "
            "as in 'loss=(?P<value>[0-9.]+)'"
        )
    names = {group: group for group in regex.groupindex}
    if len(names) > METRICS_MOST:
        raise ValueError(f"it has {len(names)} named groups, and may have {METRICS_MOST}")
    if _VALUE in names:
        beginning = _BEGINNING.match(text)
        if beginning is None:
            raise ValueError(
                f"its group '{_VALUE}' has no name: begin with the name of the metric, as in "
                "'loss=(?P<value>[0-9.]+)', or call the group so, as in '(?P<loss>[0-9.]+)'"
            )
        names[_VALUE] = beginning[1]
    for name in names.values():
        _check_name(name)
    return MetricExpression(text, regex, names)


def _check_name(name: str) -> None:
    if len(name) > NAME_MOST:
        raise ValueError(f"its name has {len(name)} characters, and may have {NAME_MOST}")


def parse_number(text: str) -> float | None:
    """The number that a text is, and nothing else; NaN for one that is not finite, None for none.

    Args:
        text: `0.25`, `-1e-3`, `nan`, with blanks around it or without.
    """
    word = text.strip()
    if word.lower().lstrip("+-") in _NOT_FINITE:
        return math.nan
    if not _NUMBER.fullmatch(word):
        return None
    value = float(word)
    return value if math.isfinite(value) else math.nan


_LESS = late_pattern(
    r"loss|err(or)?s?|perplexity|ppl|bpc|bpd|nll|mse|mae|rmse|rmsle|mape|wer|cer|fid|latency|"
    r"seconds|time|divergence|regret"
)
_MORE = late_pattern(
    r"acc(uracy)?|top\d*|score|reward|return|auc|auroc|auprc|f1|f2|bleu|rouge\w*|m?iou|m?ap\d*|"
    r"precision|recall|dice|r2|psnr|ssim|correct|win|likelihood|elbo|throughput|mcc"
)


def is_less_better(name: str) -> bool | None:
    """Whether smaller values of a metric are better, by the words in its name; None where unknown.

    Args:
        name: `loss`, `val_accuracy`, `eval/top1`.
    """
    words = re.findall(r"[a-z]+\d*", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    # The last word that says it: `error_recall` is a recall.
    for word in reversed(words):
        if _LESS.fullmatch(word):
            return True
        if _MORE.fullmatch(word):
            return False
    return None
