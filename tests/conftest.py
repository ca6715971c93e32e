"""What holds for all tests."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from .suites import CHOICES, belongs, is_in_part

FOLDER = Path(__file__).parent
LONGEST = (
    "host/test_mig_faults.py",
    "cluster/test_join_races.py",
    "cluster/test_watching.py",
    "cluster/test_join_kills.py",
    "instrument/test_frameworks.py",
    "cluster/test_bad_input.py",
    "planning/test_local.py",
    "cluster/test_interrupted_submission.py",
    "cluster/test_failures.py",
    "cluster/test_probing.py",
    "cluster/test_joining.py",
    "cluster/test_hold.py",
    "sandbox/test_cluster.py",
    "scripts/test_scripts.py",
    "cluster/test_resubmission.py",
)
"""Files that take the longest come first: several run at a time, and none is left for the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--suite` chooses among all tests; without it all of them run."""
    parser.addoption(
        "--suite",
        choices=CHOICES,
        help="only what `make test` runs (quick), or one part of what it leaves out",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of another part are not even read: importing all takes longer than many a part."""
    suite = config.getoption("--suite")
    if (
        suite
        and collection_path.name.startswith("test_")
        and collection_path.is_relative_to(FOLDER)
    ):
        file = collection_path.relative_to(FOLDER).as_posix()
        return None if is_in_part(suite, file) else True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of a suite, the longest files first; the others stay in their order."""
    suite = config.getoption("--suite")
    if suite:
        kept: list[pytest.Item] = []
        left: list[pytest.Item] = []
        for item in items:
            marks = {mark.name for mark in item.iter_markers()}
            file = item.path.relative_to(FOLDER).as_posix()
            (kept if belongs(suite, file, marks) else left).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=left)
    places = {FOLDER / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def count_reasons(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """How many tests were skipped for which reason."""
    found: Counter[str] = Counter()
    for report in reports:
        said = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        found[said.removeprefix("Skipped: ")] += 1
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was skipped: a line for each reason, and not for each place."""
    reasons = count_reasons(terminalreporter.stats.get("skipped", ()))
    if reasons:
        terminalreporter.section("skipped, by reason", sep="-")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count:5}  {reason}")


# A shell that starts them in the background has them ignore it, and with them all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

try:
    import hypothesis
except ImportError:
    # The machine with a GPU may lack it, and runs no test that needs it.
    pass
else:
    # A test that asserts its own duration fails on a busy machine.
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")
