"""Dataclasses that are made at their first use behave as those of `dataclasses`, always."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import pickle
from typing import Any

import pytest

from slurm_colloc.model import late_definitions as late

MANY = 40
"""More instances than it takes for a compiled `__init__`."""

CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((1,), {}), ((1, 2), {}), ((1,), {"b": 3}), ((), {"a": 1, "c": [4]}), ((1, 2, [3]), {}),
    ((), {}), ((1, 2, [3], 4), {}), ((1,), {"a": 2}), ((1,), {"z": 2}), ((), {"b": 1}),
)  # fmt: skip


def make_kind(decorate: Any, *, keywords: bool = False) -> Any:
    """A class by either of them."""

    class Kind:
        a: int
        b: int = 2
        c: list[int] = dataclasses.field(default_factory=list)

        def __post_init__(self) -> None:
            object.__setattr__(self, "seen", (self.a, self.b, len(self.c)))

    return decorate(frozen=True, kw_only=keywords)(Kind)


def call(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call makes, or its error in words."""
    try:
        made = kind(*args, **kwargs)
    except TypeError as error:
        return str(error).rpartition(".")[2]
    return dataclasses.astuple(made), made.seen


@pytest.mark.parametrize("keywords", [False, True])
@pytest.mark.parametrize("before", [0, MANY])
def test_instances_are_as_dataclasses_makes_them(*, keywords: bool, before: int) -> None:
    as_late, as_given = (
        make_kind(decorate, keywords=keywords)
        for decorate in (late.dataclass, dataclasses.dataclass)
    )
    for _ in range(before):
        as_late(a=1)
    for args, kwargs in CALLS:
        assert call(as_late, args, kwargs) == call(as_given, args, kwargs), (args, kwargs)
    one, same = as_late(a=1), as_late(a=1)
    assert one.c is not same.c
    assert one == same != as_late(a=2)
    assert late.replace(one, b=5).b == 5
    assert copy.copy(one) == one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.a = 3


@late.dataclass(frozen=True)
class Named:
    """It can be pickled, as it has a name of its own."""

    value: int


@late.dataclass(frozen=True)
class Derived(Named):
    """Has a field more."""

    more: int = 1


def test_derived_and_pickled_ones_have_their_fields() -> None:
    for number in range(MANY):
        assert pickle.loads(pickle.dumps(Named(number))) == Named(number)
        assert dataclasses.asdict(Derived(number)) == {"value": number, "more": 1}
    late.write_methods()
    assert Named(value=3) == Named(3)


def test_a_digest_is_that_of_hashlib() -> None:
    for content in (b"", b"a", bytes(range(256)) * 99):
        assert late.hash_sha256(content) == hashlib.sha256(content).hexdigest()
