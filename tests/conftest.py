"""What holds for all tests."""

from __future__ import annotations

try:
    import hypothesis
except ImportError:
    # The machine with a GPU may lack it, and runs no test that needs it.
    pass
else:
    # A test that asserts its own duration fails on a busy machine.
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")
