"""How a number about one member of a shared GPU was obtained, and what stays unexplained."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_colloc.metrics.series import Value


class Attribution(enum.StrEnum):
    """The word that goes with a number."""

    EXACT = "exact"
    """No other member was on what was measured."""
    PER_PROCESS = "per_process"
    """The driver reports it for each process."""
    MODELLED = "modelled"
    """Computed from the member's usage profile and its rate."""
    WHOLE_GPU = "whole_gpu"
    """Of the whole GPU; it cannot be split."""


@dataclass(frozen=True)
class AttributedPart:
    """A member's part of something.

    Attributes:
        value: The part.
        attribution: How it was obtained.
    """

    value: float
    attribution: Attribution


@dataclass(frozen=True)
class Rest:
    """A measured whole against the parts that are known.

    Attributes:
        measured: The whole; None where it could not be read.
        explained: Sum of the known parts.
        rest: What is left, less than 0 where the model says too much; never spread.
    """

    measured: float | None
    explained: float
    rest: float | None


def model_sm_activity(
    solo_sm: Value, solo_rate: Value, steps: Value, length_s: float
) -> float | None:
    """A member's SM activity over some time: that of its steps, as they are alone.

    A step needs the same work of the GPU alone and in company. The GPU-wide value cannot be split
    by measurement under MPS or time slices. Under a thread limit of MPS the same work is done by
    fewer SMs that are each busier, so that the model says too much there.

    Args:
        solo_sm: SM activity alone, 0 to 1.
        solo_rate: Steps per second alone.
        steps: Steps in that time.
        length_s: The time in seconds.
    """
    if solo_sm is None or not solo_rate or steps is None or length_s <= 0:
        return None
    return solo_sm / solo_rate * steps / length_s


def attribute_gpu_use(alone: Value, modelled: Value, *, was_alone: bool) -> AttributedPart | None:
    """A member's part of the GPU.

    Args:
        alone: The GPU's value while it was there.
        modelled: What the model says.
        was_alone: No other member was ever there with it.
    """
    if was_alone:
        return None if alone is None else AttributedPart(alone, Attribution.EXACT)
    return None if modelled is None else AttributedPart(modelled, Attribution.MODELLED)


def compute_rest(measured: Value, parts: Iterable[Value]) -> Rest:
    """What known parts leave of a whole; a part that is unknown stays in the rest."""
    explained = sum(part for part in parts if part is not None)
    return Rest(measured, explained, None if measured is None else measured - explained)


def attribute_whole(members: Sequence[object]) -> Attribution:
    """The word for a number of the whole GPU: it is exactly that of a pack's only member."""
    return Attribution.EXACT if len(members) == 1 else Attribution.WHOLE_GPU
