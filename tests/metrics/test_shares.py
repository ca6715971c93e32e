"""Series, stalls, attribution, energy and interference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.metrics.presence import (
    Attribution,
    Felt,
    attribute_gpu_use,
    attribute_whole,
    compute_rest,
    find_changes,
    find_interference,
    model_sm_activity,
)
from slurm_colloc.metrics.rates import Interval, Track, compute_percentile, describe_values
from slurm_colloc.metrics.sharing_cost import (
    EnergyPhase,
    compute_data_share,
    compute_saving,
    find_idle_power_w,
    measure_energy,
    split_energy,
    split_stalls,
)

VALUES = st.lists(st.none() | st.floats(0, 1e6), max_size=50)


def make_intervals(begin: int, end: int, rate: float, wait: float | None = 0.1) -> list[Interval]:
    return [Interval(t, t + 1, rate, None, wait) for t in range(begin, end)]


@given(VALUES)
def test_what_was_not_read_is_in_no_mean(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    spread = describe_values(values)
    if not known:
        assert spread is None
        return
    assert spread is not None
    assert spread.mean == pytest.approx(sum(known) / len(known))
    assert min(known) <= spread.p50 <= spread.p95 <= spread.max == max(known)
    track = Track([float(t) for t in range(len(values))], values)
    assert track.compute_mean([(-1, len(values))]) == pytest.approx(spread.mean, abs=1e-6)
    assert track.compute_mean([(-5, -1)]) is None


def test_percentiles_lie_between_their_neighbours() -> None:
    assert compute_percentile([1, 2, 3, 4], 0.5) == 2.5
    assert compute_percentile([7], 0.95) == 7
    with pytest.raises(ValueError, match="no values"):
        compute_percentile([], 0.5)


def test_a_counter_is_read_between_its_readings_and_never_outside() -> None:
    track = Track([0, 10, 20, 30], [100, 200, None, 500])
    assert track.compute_increase((0, 30)) == 400
    assert track.compute_increase((5, 20)) == 350 - 150
    assert track.compute_increase((-1, 10)) is None
    assert track.compute_increase((0, 31)) is None
    assert Track([0, 10], [500, 3]).compute_increase((0, 10)) is None, "it was set back"


def test_power_is_integrated_where_there_is_no_counter() -> None:
    power = Track([0, 10, 20], [100, 300, 300])
    assert power.compute_integral((0, 20)) == 2000 + 3000
    assert measure_energy(Track(), power, (0, 20)) == 5000
    assert measure_energy(Track([0, 20], [10, 4010]), power, (0, 20)) == 4000
    assert measure_energy(Track([0, 20], [None, None]), Track(), (0, 20)) is None


def test_idle_power_needs_three_readings() -> None:
    power = Track([0, 1, 2, 3, 4], [90, 110, 100, 400, 400])
    assert find_idle_power_w(power, 2) == 100
    assert find_idle_power_w(power, 1) is None


def test_waiting_for_data_is_a_share_of_the_time() -> None:
    assert compute_data_share(make_intervals(0, 20, 10, 0.37)) == pytest.approx(0.37)
    assert compute_data_share(make_intervals(0, 20, 10, 1.2)) == 1
    assert compute_data_share([*make_intervals(0, 9, 1), *make_intervals(9, 10, 1, None)]) is None
    assert compute_data_share([]) is None


@given(st.none() | st.floats(0.5, 50))
def test_what_is_not_measured_of_stalls_is_unknown(slowdown: float | None) -> None:
    stall = split_stalls([], slowdown)
    assert (stall.data, stall.host, stall.device) == (None, None, None)
    assert (stall.sharing is None) == (slowdown is None)
    assert stall.sharing is None or 0 <= stall.sharing < 1


@given(st.floats(0, 1), st.floats(0.1, 1000), st.floats(1, 50))
def test_in_company_activity_falls_as_the_rate_does(
    solo: float, rate: float, slowdown: float
) -> None:
    modelled = model_sm_activity(solo, rate, rate / slowdown * 60, 60)
    assert modelled == pytest.approx(solo / slowdown)
    assert model_sm_activity(solo, rate, rate * 60, 60) == pytest.approx(solo)
    # Who starts up for half of the time has used half as much.
    assert model_sm_activity(solo, rate, rate * 30, 60) == pytest.approx(solo / 2)
    assert model_sm_activity(None, rate, 1, 60) is None
    assert model_sm_activity(solo, None, 1, 60) is None
    assert model_sm_activity(solo, rate, None, 60) is None
    assert model_sm_activity(solo, rate, 0, 0) is None


def test_only_who_was_alone_has_an_exact_part() -> None:
    exact = attribute_gpu_use(0.6, None, was_alone=True)
    assert exact is not None
    assert exact.attribution is Attribution.EXACT
    modelled = attribute_gpu_use(0.6, 0.2, was_alone=False)
    assert modelled is not None
    assert (modelled.value, modelled.attribution) == (0.2, Attribution.MODELLED)
    assert attribute_gpu_use(0.6, None, was_alone=False) is None
    assert attribute_gpu_use(None, 0.2, was_alone=True) is None
    assert attribute_whole([1]) is Attribution.EXACT
    assert attribute_whole([1, 2]) is Attribution.WHOLE_GPU


@given(st.none() | st.floats(0, 1e6), VALUES)
def test_parts_and_the_rest_make_the_whole(whole: float | None, parts: list[float | None]) -> None:
    explained, rest = compute_rest(whole, parts)
    if whole is None:
        assert rest is None
    else:
        assert rest is not None
        assert explained + rest == pytest.approx(whole, abs=1e-3)


PHASES = st.lists(
    st.builds(
        EnergyPhase,
        st.floats(0.1, 1000),
        st.none() | st.floats(0, 1e6),
        st.none() | st.floats(0, 1),
        st.dictionaries(st.integers(1, 5), st.none() | st.floats(0, 1), max_size=4),
    ),
    max_size=8,
)


@pytest.mark.parametrize(
    ("phase", "parts"),
    [
        # 10 W idle for 10 s is 50 J each; 800 J beyond it by 0.1 and 0.3 of 0.8.
        (EnergyPhase(10.0, 900.0, 0.8, {1: 0.1, 2: 0.3}), (150, 350)),
        # The models say more than there was, or nothing was active: all of it is theirs.
        (EnergyPhase(10.0, 900.0, 0.2, {1: 0.1, 2: 0.3}), (250, 650)),
        (EnergyPhase(10.0, 900.0, 0.0, {1: 0.1, 2: 0.3}), (250, 650)),
        (EnergyPhase(10.0, 900.0, 0.5, {1: 0.0, 2: None}), (50, None)),
        (EnergyPhase(10.0, 900.0, None, {1: 0.1, 2: 0.3}), (None, None)),
        # Between two readings.
        (EnergyPhase(0.1, 9.0, None, {1: 0.1, 2: 0.3}), (2.5, 6.5)),
    ],
)
def test_energy_in_company_follows_the_models(
    phase: EnergyPhase, parts: tuple[float | None, float | None]
) -> None:
    split = split_energy([phase], 10.0)
    for member, expected in zip((1, 2), parts, strict=True):
        part = split.parts[member]
        assert (part is None) is (expected is None)
        if part is not None:
            assert part.value == pytest.approx(expected)
            assert part.attribution is Attribution.MODELLED


@given(PHASES, st.none() | st.floats(0, 500))
def test_energy_of_members_and_the_rest_is_what_was_measured(
    phases: list[EnergyPhase], idle_power_w: float | None
) -> None:
    split = split_energy(phases, idle_power_w)
    known = [part.value for part in split.parts.values() if part is not None]
    if any(phase.energy_j is None for phase in phases) or not phases:
        assert split.whole_j is None
        assert split.rest_j is None
    else:
        assert split.rest_j is not None
        assert sum(known) + split.rest_j == pytest.approx(split.whole_j, abs=1e-2)
    for phase in phases:
        shares = len(phase.sm_by_member) > 1
        for member, own in phase.sm_by_member.items():
            if phase.energy_j is None or (shares and (own is None or idle_power_w is None)):
                assert split.parts[member] is None, "unknown in, unknown out"


def test_idle_power_is_split_evenly_and_the_rest_by_activity() -> None:
    phase = EnergyPhase(10, 3000, 0.8, {1: 0.4, 2: 0.2})
    split = split_energy([phase, EnergyPhase(5, 700, 0.4, {1: 0.4})], 100)
    first, second = split.parts[1], split.parts[2]
    assert first is not None
    assert second is not None
    assert first.value == 500 + 2000 * 0.5 + 700
    assert second.value == 500 + 2000 * 0.25
    assert split.rest_j == 2000 * 0.25, "nobody's model explains it"
    assert first.attribution is Attribution.MODELLED
    alone = split_energy([EnergyPhase(5, 700, None, {3: None})], None).parts[3]
    assert alone is not None
    assert (alone.value, alone.attribution) == (700, Attribution.EXACT)


def test_energy_saved_says_how_it_was_found() -> None:
    assert compute_saving(3.6e6, [3.6e6, 3.6e6], 200, 100, 50) == (1, "solo_power")
    by_idle, how = compute_saving(3.6e6, [3.6e6, None], 7200, 3600, 100)
    assert by_idle == pytest.approx(0.1)
    assert how == "idle_power"
    assert compute_saving(None, [None], None, 100, 50)[0] is None
    assert compute_saving(1.0, [None], 200, 100, None)[0] is None


def test_the_neighbour_that_slowed_a_member_is_named() -> None:
    stays = [Felt(1, 0, 4, 100), Felt(2, 40, 41, 70), Felt(3, 42, 46, 200)]
    changes = find_changes(stays, 1, (0, 100))
    assert [(c.begin, c.end, c.came, c.went) for c in changes] == [
        (40, 46, (2, 3), ()),
        (70, 70, (), (2,)),
    ]
    rates = ((10, 40, 20), (40, 46, 1), (46, 70, 10), (70, 99, 16))
    intervals = [i for begin, end, rate in rates for i in make_intervals(begin, end, rate)]
    found = find_interference(intervals, changes, (0, 100))
    assert [(f.at, f.came, f.went, f.ratio) for f in found] == [
        (40, (2, 3), (), 0.5),
        (70, (), (2,), 1.6),
    ]


def test_a_change_that_cannot_be_compared_is_none() -> None:
    changes = find_changes([Felt(2, 3, 3, 200)], 1, (0, 100))
    assert find_interference(make_intervals(0, 99, 20), changes, (0, 100)) == [], "3 s before it"
    changes = find_changes([Felt(2, 50, 50, 200)], 1, (0, 100))
    steady = [*make_intervals(0, 50, 20), *make_intervals(50, 99, 19.5)]
    assert find_interference(steady, changes, (0, 100)) == [], "within its own ups and downs"
