"""`csub probe`: how long a job runs alone until its rate is known; pure."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.model.job import Job

PROBE_TIME_S = 660
"""What `csub probe` asks Slurm for at most."""


@dataclass(frozen=True)
class ProbePatience:
    """How long a probe window may be.

    Attributes:
        first_step_s: Without a step until then there is nothing to wait for.
        window_s: The longest window.
    """

    first_step_s: float
    window_s: float


BY_ITSELF = ProbePatience(360.0, 560.0)
"""No other waits for it, and the program may take long to start."""


@dataclass(frozen=True)
class ProbeProgress:
    """What is known of a member in its probe window.

    Attributes:
        elapsed_s: Since the window began.
        steps: Steps so far; None where it has reported none.
        steady: Its rate has settled.
        settled_s: Since its warm-up was over, as reports count it (`metrics.rates`).
        steps_per_s: Its rate; None where unknown.
        mean_steps_per_s: Its rate since its warm-up; None where unknown.
        mean_error: The standard error of that, over the rate; None where unknown.
    """

    elapsed_s: float
    steps: int | None
    steady: bool
    settled_s: float = 0.0
    steps_per_s: float | None = None
    mean_steps_per_s: float | None = None
    mean_error: float | None = None

    @property
    def rate_alone(self) -> float | None:
        """Its rate alone in steps per second; None where it is not known well enough."""
        if self.steady:
            return self.steps_per_s or None
        is_exact = self.mean_error is not None and self.mean_error <= MEAN_ERROR_MOST
        return self.mean_steps_per_s or None if is_exact else None

    @property
    def is_enough(self) -> bool:
        """It has run for as long as a usage profile asks for."""
        step_s = 1.0 / self.steps_per_s if self.steps_per_s else 0.0
        # Steps are seen from look to look: one or two in a tick where each takes nearly as long.
        first_s = max(TICK_S, step_s)
        last_s = max(step_s, TICK_S + min(TICK_S, step_s))
        return self.settled_s >= SETTLED_LEAST_S + first_s + last_s


SETTLED_LEAST_S = 22.0
"""Twice what a usage profile asks for, 2 s away from the neighbours that start then; the steps
between two looks at either end lie partly outside."""

TICK_S = 1.0
"""Between two looks of the monitor."""

MEAN_ERROR_MOST = 0.08
"""Where the host is fast and slow by turns no rate is steady, and its mean so exact will do: on one
that ran a training at 74 to 145 steps a second it takes 6 s longer than where it is calm."""

_END_S = 100
"""Of a time limit, for ending the job and writing down what it has shown."""


def choose_patience(job: Job) -> ProbePatience:
    """How long the window of a job may be."""
    if job.time_limit_s is None:
        return BY_ITSELF
    window_s = min(BY_ITSELF.window_s, max(30.0, float(job.time_limit_s - _END_S)))
    return ProbePatience(min(BY_ITSELF.first_step_s, window_s), window_s)


def find_obstacle_to_counting(job: Job, *, instruments: bool) -> str:
    """Why the rate of a job would never be known; empty where it would.

    Args:
        job: The job.
        instruments: The settings let steps be counted.
    """
    if not (instruments and job.instrument) and job.progress_regex is None:
        return "nothing counts its steps"
    return ""


def may_be_measured(job: Job, *, instruments: bool = True) -> bool:
    """Whether a job may be paused, and something counts its steps."""
    return job.pause and not find_obstacle_to_counting(job, instruments=instruments)


def judge_window(progress: ProbeProgress, patience: ProbePatience) -> str:
    """Why a probe window is over; empty while it is not."""
    is_known = progress.rate_alone is not None
    if is_known and progress.is_enough and progress.steady:
        return "its rate is steady"
    if is_known and progress.is_enough:
        return f"the mean of its rate is known to {100 * (progress.mean_error or 0.0):.0f} %"
    if not progress.steps and progress.elapsed_s >= patience.first_step_s:
        return f"it has reported no step within {patience.first_step_s:g} s"
    if progress.elapsed_s >= patience.window_s and is_known:
        return (
            f"it has not run for as long as a usage profile asks for within {patience.window_s:g} s"
        )
    if progress.elapsed_s >= patience.window_s:
        return f"its rate was not steady within {patience.window_s:g} s"
    return ""
