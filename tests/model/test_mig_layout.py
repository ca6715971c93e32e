"""Where the instances of a MIG layout lie."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.mig_layout import place
from slurm_colloc.model.mig_profiles import (
    MIG_TABLES,
    InstanceProfile,
    choose_mig_table,
    describe_profile,
    parse_profile,
)

from .mig_layouts import enumerate_layouts

PLAIN = {
    model: [
        profile
        for profile in table
        if not profile.media_extensions
        and (profile.compute_slices, profile.memory_slices) != (1, 2)
    ]
    for model, table in MIG_TABLES.items()
}
TABLES = st.sampled_from(sorted(MIG_TABLES))


@pytest.mark.parametrize("model", sorted(set(MIG_TABLES) - {"A30"}))
def test_a_gpu_of_seven_slices_has_the_nineteen_layouts_of_the_guide(model: str) -> None:
    layouts = enumerate_layouts(PLAIN[model])
    names = ["".join(str(one.profile.compute_slices) for one in layout) for layout in layouts]
    left = ["4", "3", "22", "211", "112", "1111"]
    right = ["3", "21", "111"]
    assert sorted(names) == sorted(["7", *(a + b for a in left for b in right)])
    assert len(layouts) == 19


def test_an_a30_has_five() -> None:
    names = {
        "".join(str(one.profile.compute_slices) for one in layout)
        for layout in enumerate_layouts(PLAIN["A30"])
    }
    assert names == {"4", "22", "211", "112", "1111"}


def _fits_by_trying(wanted: list[InstanceProfile]) -> bool:
    """Every combination of placements, without any order or pruning."""
    if any(wanted.count(profile) > profile.instances_max for profile in wanted):
        return False
    if sum(profile.media_extensions for profile in wanted) > 1:
        return False
    for chosen in itertools.product(*(profile.placements for profile in wanted)):
        slices = [
            number
            for placement in chosen
            for number in range(placement.start, placement.start + placement.size)
        ]
        if len(slices) == len(set(slices)):
            return True
    return False


@given(st.data())
def test_placing_is_exact(data: st.DataObject) -> None:
    table = MIG_TABLES[data.draw(TABLES)]
    wanted = data.draw(st.lists(st.sampled_from(table), max_size=5))
    found = place(wanted)
    assert (found is not None) == _fits_by_trying(wanted)
    if found is not None:
        assert sorted(one.profile.name for one in found) == sorted(one.name for one in wanted)
        sizes = [one.profile.memory_slices for one in found]
        assert sizes == sorted(sizes, reverse=True), "the biggest is made first"
        taken = 0
        for one in found:
            assert not taken & one.placement.mask
            assert one.placement in one.profile.placements
            taken |= one.placement.mask


@given(TABLES)
def test_each_layout_can_be_placed_again(model: str) -> None:
    for layout in enumerate_layouts(MIG_TABLES[model]):
        assert place([one.profile for one in layout]) is not None
        if model != "A30":
            assert sum(one.profile.compute_slices for one in layout) <= 7


def test_what_stays_free_is_where_the_large_ones_begin() -> None:
    one, three = (PLAIN["H100-80"][number] for number in (0, 2))
    placed = place([one, one, three])
    assert placed is not None
    assert [(p.placement.start, p.placement.size) for p in placed] == [(4, 4), (3, 1), (2, 1)]


def test_a_profile_survives_its_json() -> None:
    for table in MIG_TABLES.values():
        for profile in table:
            assert parse_profile(describe_profile(profile)) == profile


@pytest.mark.parametrize(
    ("name", "memory_mb", "model"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "H100-80"),
        ("NVIDIA H200", 143771, "H200"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-40"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80"),
        ("NVIDIA A30", 24576, "A30"),
        ("NVIDIA B200", 183359, "B200"),
        ("NVIDIA H100 NVL", 95830, None),
        ("NVIDIA A100-SXM4-40GB", None, None),
        ("NVIDIA GeForce RTX 4090", 24564, None),
        ("NVIDIA GB200", 189471, None),
    ],
)
def test_a_table_is_chosen_by_name_and_memory(
    name: str, memory_mb: int | None, model: str | None
) -> None:
    assert choose_mig_table(name, memory_mb) == (MIG_TABLES[model] if model else ())
