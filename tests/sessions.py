"""The processes of a session, as tests look for what a daemon has started."""

from __future__ import annotations

from slurm_colloc.host.system.node_processes import Process, list_running_processes


def list_session(session_id: int) -> tuple[Process, ...]:
    """The processes of a session that have not ended."""
    return tuple(p for p in list_running_processes() if p.session_id == session_id)
