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

    The contention model of MPS, with the instance's SMs and DRAM as the whole: what a job takes of
    either fills more of them, and lasts longer, too.

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


def predict_crowding(
    subjects: Sequence[Subject],
    seats: Sequence[Seat],
    first: Sequence[int],
    layout: SeatedLayout,
    calibration: Calibration | None,
) -> tuple[float, ...] | None:
    """How much slower each member is by those who share its instance; None where one is unknown.

    Args:
        subjects: The members.
        seats: Theirs.
        first: Places of those that run at once, in the order of the layout's seating.
        layout: Where those sit.
        calibration: How jobs slow each other down on the whole GPU.
    """
    found = [1.0] * len(subjects)
    for number, seat in enumerate(layout.seats):
        mine = [
            at for at, place in zip(first, layout.seating.places, strict=True) if place == number
        ]
        slower = predict_neighbours([subjects[at] for at in mine], seat, calibration)
        if slower is None:
            return None
        for at, times in zip(mine, slower, strict=True):
            found[at] = times
        # One that waits has the place of the first of them that ends, and the others around it.
        others = sorted(mine, key=lambda at: subjects[at].run_s * found[at])[1:]
        for at, its in enumerate(seats):
            if its == seat and at not in first:
                crowd = [subjects[one] for one in (at, *others)]
                slower = predict_neighbours(crowd, seat, calibration)
                if slower is None:
                    return None
                found[at] = slower[0]
    return tuple(found)


def _scale(subject: Subject, seat: Seat) -> Load:
    """What a job takes of an instance, alone on it: of its SMs and its bandwidth as the whole."""
    load = subject.load
    assert load is not None
    own = compute_own_slowdown(subject, seat)
    sm, dram = seat.sm_share * own, seat.dram_share * own
    return dataclasses.replace(
        load,
        # What the host takes of a step stays as long as on the whole GPU.
        engine=1.0 - (1.0 - load.engine) / own,
        sm=min(1.0, load.sm / sm),
        dram=min(1.0, load.dram / dram),
        tensor=min(1.0, load.tensor / sm),
        # What all members copy is counted for the whole GPU.
        pcie=0.0,
    )
