"""What holds for all tests."""

from __future__ import annotations

import signal

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
