"""What packs teach of their jobs: two numbers for each, which find the truth and stay small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.usage_profile import Compared, Feedback, Observation, ProfileRecord, learn

OVERSHOOT = 1.15
"""What pressure keeps of a sensitivity that was not believed yet: at most 11 % after 15 packs."""

RESIDUALS = st.floats(-1.0, 1.0)


def start(*names: str) -> dict[str, ProfileRecord]:
    return {
        name: ProfileRecord.start(Observation(name, name, name, "NVIDIA H200", "", "r", 1.0, 60.0))
        for name in names
    }


def compare(source: str, residuals: Mapping[str, float | None]) -> Feedback:
    """A pack of one job of each name, all of them together."""
    numbers = {name: number for number, name in enumerate(residuals, 1)}
    everybody = frozenset(numbers.values())
    members = [
        Compared(numbers[name], residual, everybody - {numbers[name]}, (name,))
        for name, residual in residuals.items()
    ]
    return Feedback(source, "NVIDIA H200", tuple(members))


def correct(records: Mapping[str, ProfileRecord], name: str, others: Sequence[str]) -> float:
    """What planning adds to the model's slowdown (planning.contention)."""
    profiles = {key: record.for_planning() for key, record in records.items()}
    pressed = sum(profiles[other].pressure for other in others) / len(others)
    return profiles[name].sensitivity + pressed


@pytest.mark.long
@given(st.dictionaries(st.sampled_from("abcdef"), RESIDUALS, min_size=2))
def test_what_is_seen_again_and_again_is_believed_and_never_by_much_too_much(
    truth: dict[str, float],
) -> None:
    records = start(*truth)
    largest = max(abs(value) for value in truth.values())
    for pack in range(200):
        records |= learn(compare(f"p{pack}", truth), records)
        for name in truth:
            found = correct(records, name, [other for other in truth if other != name])
            assert abs(found) <= OVERSHOOT * largest + 1e-9
    for name, value in truth.items():
        found = correct(records, name, [other for other in truth if other != name])
        assert found == pytest.approx(value, abs=0.05 * largest + 1e-9)


@given(st.lists(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=4), max_size=40))
def test_whatever_is_measured_both_numbers_stay_between_minus_one_and_one(
    packs: list[list[float]],
) -> None:
    records = start(*"abcd")
    for place, values in enumerate(packs):
        residuals = dict(zip("abcd", values, strict=False))
        records |= learn(compare(f"p{place}", residuals), records)
    for record in records.values():
        profile = record.for_planning()
        assert -1.0 < profile.sensitivity < 1.0
        assert -1.0 < profile.pressure < 1.0
        assert len(record.compared) <= 64


@given(
    sensitivity=st.tuples(*[st.floats(-0.3, 0.3)] * 5),
    pressure=st.tuples(*[st.floats(-0.3, 0.3)] * 5),
    order=st.randoms(use_true_random=False),
)
def test_jobs_that_meet_in_turn_are_predicted_better_than_without(
    sensitivity: tuple[float, ...], pressure: tuple[float, ...], order: Random
) -> None:
    names = "abcde"
    sensitive, pressing = dict(zip(names, sensitivity)), dict(zip(names, pressure))  # noqa: B905
    pairs = [(one, two) for one in names for two in names if one < two] * 6
    order.shuffle(pairs)
    records = start(*names)
    for place, (one, two) in enumerate(pairs):
        seen = {one: sensitive[one] + pressing[two], two: sensitive[two] + pressing[one]}
        records |= learn(compare(f"p{place}", seen), records)
    left = plain = 0.0
    for one, two in pairs:
        for name, other in ((one, two), (two, one)):
            truth = sensitive[name] + pressing[other]
            plain += truth**2
            left += (truth - correct(records, name, [other])) ** 2
    assert left <= 0.6 * plain + 1e-9


def test_one_that_suffers_is_not_taken_for_one_that_makes_others_suffer() -> None:
    records = start(*"abc")
    for pack in range(10):
        # Only a suffers, whatever runs with it.
        partner = "b" if pack % 2 else "c"
        records |= learn(compare(f"p{pack}", {"a": 0.4, partner: 0.0}), records)
    profiles = {name: record.for_planning() for name, record in records.items()}
    assert profiles["a"].sensitivity == pytest.approx(0.4 * 10 / 12)
    assert profiles["a"].pressure == 0.0
    assert profiles["b"].sensitivity == profiles["c"].sensitivity == 0.0
    assert 0.0 < profiles["b"].pressure < 0.1


def test_one_that_makes_others_suffer_is_found_by_what_they_do_not_feel_elsewhere() -> None:
    records = start(*"abcd")
    for pack in range(30):
        residuals = ({"a": 0.4, "d": 0.0}, {"a": 0.0, "b": 0.0}, {"b": 0.4, "d": 0.0})[pack % 3]
        records |= learn(compare(f"p{pack}", residuals), records)
    profiles = {name: record.for_planning() for name, record in records.items()}
    assert profiles["d"].pressure > 0.15
    assert profiles["a"].pressure < 0.0
    assert profiles["b"].pressure < 0.0
    assert profiles["d"].sensitivity == 0.0


def test_a_pack_teaches_once() -> None:
    records = start(*"ab")
    pack = compare("p", {"a": 0.3, "b": 0.1})
    once = learn(pack, records)
    assert set(once) == {"a", "b"}
    assert learn(pack, once) == {}


def test_members_of_one_profile_count_as_one_pack() -> None:
    records = start("a")
    everybody = frozenset({1, 2, 3})
    members = tuple(
        Compared(n, residual, everybody - {n}, ("a",))
        for n, residual in ((1, 0.1), (2, 0.3), (3, None))
    )
    found = learn(Feedback("p", "NVIDIA H200", members), records)["a"]
    assert found.sensitivity is not None
    assert found.pressure is not None
    assert found.sensitivity.n == found.pressure.n == 1
    assert found.sensitivity.total == pytest.approx(0.2)
    # 0.2 / 3 is believed; of the rest each feels that of its partners.
    left = {1: 0.1 - 0.2 / 3, 2: 0.3 - 0.2 / 3}
    expected = (left[2] + left[1] + (left[1] + left[2]) / 2) / 3
    assert found.pressure.total == pytest.approx(expected)


def test_who_is_not_compared_still_presses() -> None:
    found = learn(compare("p", {"a": 0.3, "b": None}), start(*"ab"))
    assert found["b"].sensitivity is None
    assert found["b"].for_planning().pressure == pytest.approx(0.2 / 3)
    assert found["a"].pressure is None


def test_the_profiles_of_a_family_learn_together() -> None:
    records = start("a", "b", "c")
    one = Compared(1, 0.3, frozenset({2}), ("a", "b"))
    two = Compared(2, 0.0, frozenset({1}), ("c",))
    found = learn(Feedback("p", "NVIDIA H200", (one, two)), records)
    assert found["a"].sensitivity == found["b"].sensitivity
    assert found["c"].for_planning().pressure == pytest.approx(0.2 / 3)


def test_a_profile_that_is_gone_is_not_made_again() -> None:
    assert set(learn(compare("p", {"a": 0.3, "b": 0.1}), start("a"))) == {"a"}
