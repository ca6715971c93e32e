"""Signals to processes that a test has started or found, and to no later one with the same pid."""

from __future__ import annotations

import os
import signal

from slurm_colloc.host.system.node_processes import ProcessId, is_alive


def send_signal(identity: ProcessId, number: int) -> bool:
    """Signal exactly this process; False where it has ended already."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True
