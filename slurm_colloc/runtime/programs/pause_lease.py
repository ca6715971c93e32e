"""A pause is a lease: the runner renews it, and without that the member's wrapper ends it.

A runner may hang, as on a file server that does not answer, and then nobody else would let a paused
member go on. So it tells the wrapper by a signal that the member is paused, again every few seconds
as long as it is, and by another one that it is not any more. No file is needed, and nothing is done
while nothing is paused.
"""

from __future__ import annotations

import signal

LEASE_S = 30.0
"""How long a pause lasts without a word of the runner's, which may wait as long for Slurm."""

RENEW_S = 5.0
"""How often the runner renews it."""

PAUSED = signal.SIGRTMIN + 3
"""The member is paused, for LEASE_S at most."""

GOES_ON = signal.SIGRTMIN + 4
"""The pause is over."""
