"""Whether a call's only job is to ask for more than it needs, so that others can join it."""

from __future__ import annotations

import dataclasses

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.plan import MPS_CLIENTS_MAX
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.settings import Settings
from slurm_colloc.submission.jobs.call_jobs import Call


@dataclasses.dataclass(frozen=True)
class Opening:
    """How a single job is opened for others.

    Attributes:
        places: How many places it is to have, its own among them; None for as many as one GPU's
            share of a node has room for.
        is_wanted: It was asked for, so that Slurm is not asked what it costs.
    """

    places: int | None = None
    is_wanted: bool = False


def choose_opening(
    call: Call, settings: Settings, *, joins: str, is_single: bool
) -> Opening | None:
    """How a call's job is opened for others; None where it is not.

    Args:
        call: The call.
        settings: The settings.
        joins: Which packs the job may join: `auto`, `pending` or `never`.
        is_single: A job by itself was called for.

    Raises:
        UsageProblem: `--open` has a wrong value, or cannot be.
    """
    given = call.options.given("open")
    if given is not None and given.value == "never":
        return None
    is_single = is_single and len(call.candidates) == 1 and call.array is None
    obstacle = _find_obstacle(call, settings, is_single=is_single)
    if given is not None:
        places = None if given.value is None else _read_places(given.value, given.origin)
        if obstacle:
            raise UsageProblem(f"{given.origin}: --open: {obstacle}", hint="leave --open out")
        return Opening(places, is_wanted=True)
    if obstacle or settings.open == "never" or settings.join == "never":
        return None
    if settings.open == "always":
        return Opening(is_wanted=True)
    return Opening() if joins == "auto" else None


def _read_places(text: str, origin: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= 3
    if is_number and 2 <= int(text) <= MPS_CLIENTS_MAX:
        return int(text)
    raise UsageProblem(
        f"{origin}: --open={escape_controls(cut(text))}: a number of jobs that run at the same "
        f"time is needed, from 2 to {MPS_CLIENTS_MAX}, or never",
        hint=f"sbatch's option is --open-mode={text}" if text in ("append", "truncate") else "",
    )


def _find_obstacle(call: Call, settings: Settings, *, is_single: bool) -> str:
    """Why no job could join it while it runs; empty where one could."""
    if not is_single:
        return "packs of several jobs ask for what they need, only a job by itself is opened"
    if call.options.flag("local"):
        return "without Slurm (--local) there is nothing to ask for"
    if call.candidates[0].job.only_probe:
        return "a job that is probed runs alone"
    if not settings.state_shared:
        return "packs that travel in their batch script (state_shared = false) cannot be joined"
    if call.options.text("join") == "never":
        return "--join=never keeps other jobs away"
    if settings.caps.join != "auto":
        return f"this site lets no job join a running pack (caps.join = {settings.caps.join})"
    return ""
