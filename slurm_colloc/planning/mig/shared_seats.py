"""Several members on one MIG instance, by MPS inside it: who with whom, and how fast; pure.

Only where the user asks for more members at once than the layout has instances, and the site
allows MPS inside instances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from slurm_colloc.model.calibration import Calibration, Load
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.planning.mig.choose_layout import SeatedLayout
from slurm_colloc.planning.mig.seat_members import (
    Seating,
    compute_bound_share,
    compute_own_slowdown,
    seat_members,
)
from slurm_colloc.planning.mig.seats import Seat
from slurm_colloc.planning.pack_request import compute_thread_percentage
from slurm_colloc.planning.predict.sharing_ways import PLAIN, build_families, predict_in
from slurm_colloc.planning.priced_packs import Subject

_FULL = 100


def share_seats(subjects: Sequence[Subject], seats: Sequence[Seat]) -> Seating | None:
    """Put members onto seats, several on one where there are more of them than seats.

    Those that need most memory first, each onto the seat where most is left for it: of what
    members are bound by, and of the instance's memory. That is no search: what it would gain is
    less than what is known of how members share an instance.

    Args:
        subjects: The members.
        seats: The seats.

    Returns:
        Who sits where; None where their memory does not suffice for all at once.
    """
    if len(subjects) <= len(seats):
        return seat_members(subjects, seats)
    order = sorted(
        range(len(subjects)),
        key=lambda at: (-(subjects[at].gpu_memory_mb or 0), -compute_bound_share(subjects[at]), at),
    )
    left_mb = [seat.room_mb for seat in seats]
    crowds = [0.0] * len(seats)
    counts = [0] * len(seats)
    places = [0] * len(subjects)
    for at in order:
        need_mb, share = subjects[at].gpu_memory_mb or 0, compute_bound_share(subjects[at])
        open_seats = [n for n, left in enumerate(left_mb) if left is None or need_mb <= left]
        if not open_seats:
            return None
        found = min(
            open_seats, key=lambda n: ((crowds[n] + share) * seats[n].stretch, counts[n], n)
        )
        left = left_mb[found]
        left_mb[found] = None if left is None else left - need_mb
        crowds[found] += share
        counts[found] += 1
        places[at] = found
    taken = [
        subject.run_s * compute_own_slowdown(subject, seats[place])
        for subject, place in zip(subjects, places, strict=True)
    ]
    return Seating(tuple(places), 0.0, max(taken), sum(taken))


def predict_neighbours(
    subjects: Sequence[Subject], seat: Seat, calibration: Calibration | None
) -> tuple[float, ...] | None:
    """How much slower members are by those who share their instance, against alone on it.

    The contention model of MPS, with what each takes as a share of the instance: an activity of
    which the instance has less fills more of it, and lasts longer, too.

    Args:
        subjects: Those on one instance.
        seat: The instance.
        calibration: How jobs slow each other down on the whole GPU.

    Returns:
        Of each; None where a load or the model is unknown.
    """
    if len(subjects) < 2:
        return (1.0,) * len(subjects)
    loads = [_scale(subject, seat) for subject in subjects if subject.load is not None]
    families = build_families(calibration, (SharingMode.MPS,))
    if len(loads) < len(subjects) or not families:
        return None
    percentage = compute_thread_percentage(len(loads), SharingMode.MPS) or _FULL
    return tuple(
        predict_in(
            families[0],
            loads,
            [percentage] * len(loads),
            PLAIN,
        )
    )


def add_neighbours(
    running: Sequence[Subject],
    first: Sequence[int],
    layout: SeatedLayout,
    slowdowns: Sequence[float],
    calibration: Calibration | None,
) -> tuple[float, ...] | None:
    """Slowdowns with those by who shares an instance; None where one is unknown.

    Args:
        running: The members that run at once.
        first: Their places among all members.
        layout: Where they sit.
        slowdowns: Of all members, each alone on its instance.
        calibration: How jobs slow each other down on the whole GPU.
    """
    found = list(slowdowns)
    for number, seat in enumerate(layout.seats):
        mine = [at for at, place in enumerate(layout.seating.places) if place == number]
        slower = predict_neighbours([running[at] for at in mine], seat, calibration)
        if slower is None:
            return None
        for at, times in zip(mine, slower, strict=True):
            found[first[at]] *= times
    return tuple(found)


def _scale(subject: Subject, seat: Seat) -> Load:
    """What a job takes of an instance, alone on it."""
    load = subject.load
    assert load is not None
    own = compute_own_slowdown(subject, seat)
    part = seat.stretch / own
    return dataclasses.replace(
        load,
        engine=min(1.0, load.engine * part),
        sm=min(1.0, load.sm * part),
        dram=min(1.0, load.dram * part),
        tensor=min(1.0, load.tensor * part),
        # What all members copy is counted for the whole GPU.
        pcie=0.0,
    )
