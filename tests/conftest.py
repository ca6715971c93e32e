"""What holds for all tests."""

from __future__ import annotations

import pytest

try:
    import hypothesis
except ImportError:
    # The machine with a GPU may lack it, and runs no test that needs it.
    pass
else:
    # A test that asserts its own duration fails on a busy machine.
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give a test on a real Slurm a second chance, on a machine too busy for its patience.

    The summary names each that needed it.
    """
    if not config.pluginmanager.hasplugin("rerunfailures"):
        return
    for item in items:
        if item.get_closest_marker("slurm") and not item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.flaky(reruns=1))
