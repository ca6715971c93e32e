"""The numbers of members: none comes twice, whatever happens to the process or to the folder."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import NotFound, StateError
from slurm_colloc.model.job_ids import OWN_NUMBERS, is_own_number
from slurm_colloc.model.member import Selection
from slurm_colloc.store.all_packs import State, remove_pack, remove_remains
from slurm_colloc.store.own_numbers import (
    WINDOW,
    claim_numbers,
    compute_base,
    find_member,
    find_nearest,
    has_given,
    list_joined,
    list_numbers,
)

from ..packs import build_pack, write_packs

ENDLESS = """
import sys
from pathlib import Path
from slurm_colloc.store.own_numbers import claim_numbers
while True:
    print(claim_numbers(Path(sys.argv[1]), "here", [(f"{sys.argv[2]}.0", [1, 2, 3])]), flush=True)
"""


def start_claimer(root: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(root), name], stdout=subprocess.PIPE, text=True
    )


@given(st.text(max_size=20), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_a_window_lies_within_the_range(cluster: str, uid: int, salt: int) -> None:
    base = compute_base(cluster, uid, salt)
    assert base in OWN_NUMBERS
    assert base + WINDOW - 1 in OWN_NUMBERS


def test_numbers_follow_each_other_and_lead_to_their_members(tmp_path: Path) -> None:
    first = claim_numbers(tmp_path, "here", [("a.0", [2, 3, 9]), ("a.1", [4])])
    second = claim_numbers(tmp_path, "here", [("b.0", [1])])
    assert second == first + 4
    found = [find_member(tmp_path, "here", number) for number in range(first - 1, second + 2)]
    assert found == [
        None, ("a.0", 2), ("a.0", 3), ("a.0", 9), ("a.1", 4), ("b.0", 1), None,
    ]  # fmt: skip
    assert list_numbers(tmp_path, "here") == [*range(first, second + 1)]
    assert list_joined(tmp_path, 9) == [second]


def test_two_clusters_with_one_home_count_by_themselves(tmp_path: Path) -> None:
    clusters = ("here", "there")
    here, there = (claim_numbers(tmp_path, name, [(f"{name}.0", [1])]) for name in clusters)
    assert here != there
    assert find_member(tmp_path, "there", here) is None
    # Where the cluster is not known, any may have given it.
    assert find_member(tmp_path, "", here) == ("here.0", 1)
    assert (has_given(tmp_path, "here"), has_given(tmp_path, "elsewhere")) == (True, False)


def test_a_copied_state_counts_elsewhere_and_still_finds_the_old_ones(tmp_path: Path) -> None:
    own = tmp_path / "own"
    first = claim_numbers(own, "here", [("a.0", [1])])
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", own, copy], check=True)
    there = {claim_numbers(copy, "here", [(f"c{n}.0", [1])]) for n in range(3)}
    here = {claim_numbers(own, "here", [(f"b{n}.0", [1])]) for n in range(3)}
    assert here == {first + 1, first + 2, first + 3}
    assert not here & there
    assert min(abs(number - first) for number in there) > 3
    assert find_member(copy, "here", first) == ("a.0", 1)
    # It was moved back: its own folder goes on where it was.
    shutil.rmtree(own)
    copy.rename(own)
    assert claim_numbers(own, "here", [("d.0", [1])]) == max(there) + 1


def test_several_csub_at_once_and_kills_at_any_moment_give_none_twice(tmp_path: Path) -> None:
    chance = random.Random(1)
    given_numbers: list[int] = []
    for turn in range(6):
        claimers = [start_claimer(tmp_path, f"{turn}-{n}") for n in range(3)]
        for claimer in claimers:
            assert claimer.stdout is not None
            given_numbers.append(int(claimer.stdout.readline()))
        for claimer in claimers:
            time.sleep(chance.uniform(0, 0.03))
            claimer.send_signal(signal.SIGKILL)
        for claimer in claimers:
            out, _ = claimer.communicate()
            lines = out.split("\n")[:-1]
            given_numbers += map(int, lines)
    assert len(set(given_numbers)) == len(given_numbers) >= 18
    claimed = sorted(int(p.name) for p in (tmp_path / "numbers" / "here").iterdir()
                     if p.name.isdecimal())  # fmt: skip
    # What was claimed and not told any more counts, too: three each, one after the other.
    assert set(given_numbers) <= set(claimed)
    assert claimed == [*range(claimed[0], claimed[0] + 3 * len(claimed), 3)]


def test_a_damaged_claim_is_one_sentence_and_others_are_served(tmp_path: Path) -> None:
    first, second, third = (claim_numbers(tmp_path, "here", [(f"{n}.0", [1])]) for n in range(3))
    (tmp_path / "numbers" / "here" / str(second) / "claim.json").write_text("{")
    with pytest.raises(StateError) as problem:
        find_member(tmp_path, "here", second)
    assert "\n" not in str(problem.value)
    assert "claim.json" in str(problem.value)
    assert find_member(tmp_path, "here", first) == ("0.0", 1)
    assert list_numbers(tmp_path, "here") == [first, third]
    assert claim_numbers(tmp_path, "here", [("3.0", [1])]) == third + 1


def test_a_window_that_is_used_up_is_said(tmp_path: Path) -> None:
    first = claim_numbers(tmp_path, "here", [("a.0", [1])])
    folder = tmp_path / "numbers" / "here"
    (folder / str(first)).rename(folder / str(first + WINDOW - 1))
    with pytest.raises(StateError, match=r'no number is left .*job_id = "pack"'):
        claim_numbers(tmp_path, "here", [("b.0", [1])])
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_many_members_take_one_claim_and_many_claims_two_files_each(tmp_path: Path) -> None:
    first = claim_numbers(tmp_path, "here", [("a.0", range(1, 100_001))])
    files = [path for path in (tmp_path / "numbers").rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["claim.json", "origin.json"]
    assert files[0].stat().st_size < 4096
    assert find_member(tmp_path, "here", first + 99_999) == ("a.0", 100_000)
    assert claim_numbers(tmp_path, "here", [("b.0", [1])]) == first + 100_000


def test_numbering_goes_on_after_all_packs_are_cleaned_away(tmp_path: Path) -> None:
    state = State(tmp_path / "state", "here")
    state.prepare()
    seen: set[int] = set()
    for turn in range(4):
        name = f"20260901-100000-0000000{turn}"
        write_packs(state, build_pack(name, cluster="here"), job_id=str(11 + turn))
        given_now = [int(next(state.claim_numbers([(f"{name}.0", [2])]))) for _ in range(2)]
        assert not seen & set(given_now)
        seen |= set(given_now)
        assert state.resolve(Selection(str(given_now[1]))) == Selection.of(str(11 + turn), (2,))
        remove_pack(state, f"{name}.0")
        remove_remains(state)
        # The newest claim stays, because counting goes on from there.
        assert list_numbers(state.root, "here") == [max(seen)]
        with pytest.raises(NotFound):
            state.resolve(Selection(str(given_now[1])))


def test_what_was_never_claimed_is_removed_after_a_day(tmp_path: Path) -> None:
    state = State(tmp_path / "state", "here")
    state.prepare()
    state.claim_numbers([("a.0", [1])])
    folder = state.root / "numbers" / "here"
    for name, age_s in ((".0123456789abcdef", 90_000), (".fedcba9876543210", 60)):
        (folder / name).mkdir()
        os.utime(folder / name, (time.time() - age_s,) * 2)
    remove_remains(state)
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == [".fedcba9876543210"]


def test_numbers_typed_wrongly(tmp_path: Path) -> None:
    state = State(tmp_path / "state", "here")
    state.prepare()
    write_packs(state, build_pack("20260901-100000-00000001", cluster="here"), job_id="11")
    number = next(state.claim_numbers([("20260901-100000-00000001.0", [2])]))
    with pytest.raises(NotFound) as problem:
        state.resolve(Selection(f"{number[:-1]}{(int(number[-1]) + 1) % 10}"))
    assert f"did you mean {number}?" in str(problem.value.hint)
    with pytest.raises(NotFound, match=f"{number} is one job, which has no members"):
        state.resolve(Selection.parse(f"{number}/2"))
    with pytest.raises(NotFound, match="is one job"):
        state.resolve(Selection.parse(f"{number}_3"))
    assert find_nearest("12", [number]) == ""
    outside = ("0", str(1 << 31), str((1 << 27) - 1), "9" * 18)
    assert not any(map(is_own_number, outside))
    # Others are Slurm's ids, and stay.
    assert [state.resolve(Selection(text)) for text in outside] == list(map(Selection, outside))
