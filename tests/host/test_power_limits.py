"""A power limit that a job asks for: within the site's bounds, and set back whatever is killed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.limit_power import choose_limits
from slurm_colloc.host.nvml.nvml_query import Gpu, GpuProcess, NvmlAnswer

from .hook_node import Ended, HookNode, kill_at, list_counts, require_strace

T = TypeVar("T")


def as_root(test: T) -> T:
    skips = pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
    pytest.mark.root(skips(test))
    return test


WISH = "[csub/1 off power=400]"
UUID = "GPU-00000000-0000-0000-0000-000000000001"
FULL_MW = 700_000


def read_limit(bed: HookNode, number: int = 0) -> int:
    return bed.node.read_gpus()[number].power_limit_mw


def ask(bed: HookNode, comment: str = WISH, job_id: str = "11") -> Ended:
    return bed.prolog(job_id, SLURM_JOB_COMMENT=comment)


# -- which limit -----------------------------------------------------------------------------------


def make_gpu(**values: object) -> Gpu:
    whole = Gpu(
        0,
        UUID,
        processes=(),
        power_limit_mw=FULL_MW,
        power_limit_least_mw=200_000,
        is_persistent=True,
        mig_enabled=False,
    )
    return dataclasses.replace(whole, **values)  # type: ignore[arg-type]


@given(
    wish=st.integers(10, 9999),
    least=st.integers(1, 9999),
    now=st.integers(1, 10**7),
    card=st.integers(0, 10**7),
)
def test_no_wish_leaves_the_bounds(wish: int, least: int, now: int, card: int) -> None:
    gpu = make_gpu(power_limit_mw=now, power_limit_least_mw=card)
    found = choose_limits(NvmlAnswer(gpus=(gpu,)), (UUID,), wish, least_w=least, divides=False)
    for before, limit in found.values():
        assert before == now
        assert max(1000 * least, 1000 * wish, card) == limit < now
    assert bool(found) is (max(1000 * least, 1000 * wish, card) < now)


@pytest.mark.parametrize(
    "wrong",
    [
        {"processes": (GpuProcess(4711),)},
        {"processes": None},
        {"mig_enabled": True},
        {"is_persistent": False},
        {"is_persistent": None},
        {"power_limit_mw": None},
        {"power_limit_least_mw": None},
    ],
)
def test_a_gpu_that_may_be_of_others_or_forgets_is_left_alone(wrong: dict[str, object]) -> None:
    both = NvmlAnswer(gpus=(make_gpu(**wrong),))
    with pytest.raises(NodeError):
        choose_limits(both, (UUID,), 400, least_w=300, divides=False)


# -- hooks -----------------------------------------------------------------------------------------


@as_root
@pytest.mark.parametrize("token", [WISH, "[csub/1 mps power=400]", "[csub/1 mig=3g power=400]"])
class TestHooks:
    def test_a_limit_is_set_for_the_job_and_set_back_after_it(
        self, bed: HookNode, token: str
    ) -> None:
        before = bed.snapshot()
        bed.write_policy(power_limit_min_w=300)
        ended = ask(bed, token)
        assert (ended.status, ended.audit["action"]) == (0, "prepared"), ended.audit
        limited, other = bed.node.read_gpus()[:2]
        assert (limited.power_limit_mw, other.power_limit_mw) == (400_000, FULL_MW)
        assert bed.setup()["power_limits_w"] == {limited.uuid: 400.0}
        assert bed.epilog().status == 0
        assert bed.snapshot() == before
        assert bed.list_left() == []

    def test_a_policy_without_a_bound_sets_none(self, bed: HookNode, token: str) -> None:
        bed.write_policy()
        assert ask(bed, token).status == 0
        assert read_limit(bed) == FULL_MW
        told = bed.setup()
        assert "the site's policy lets no job set a power limit" in f"{told}"
        bed.epilog()


@as_root
@pytest.mark.parametrize(
    ("wish", "limit_mw"), [("10", 300_000), ("299", 300_000), ("301", 301_000), ("9999", FULL_MW)]
)
def test_the_site_has_the_last_word(bed: HookNode, wish: str, limit_mw: int) -> None:
    bed.write_policy(power_limit_min_w=300)
    ask(bed, f"[csub/1 off power={wish}]")
    assert read_limit(bed) == limit_mw
    bed.epilog()
    assert read_limit(bed) == FULL_MW


@as_root
@pytest.mark.parametrize(
    "words",
    [
        b"[csub/1 off power=-400]",
        b"[csub/1 off power=99999]",
        b"[csub/1 off power=0400]",
        b"[csub/1 off power=4e2]",
        b"[csub/1 off power=400 power=300]",
        b"[csub/1 off power=\xd9\xa3\xd9\xa3\xd9\xa3]",
        b"[csub/1 off power=400\n]",
        b"[csub/1 off power=400;id]",
        b"[csub/1 off power=$(id)]",
        b"[csub/1 off power=400]\n",
    ],
)
def test_a_hostile_wish_sets_nothing(bed: HookNode, words: bytes) -> None:
    bed.write_policy(power_limit_min_w=300)
    ended = ask(bed, os.fsdecode(words))
    assert ended.status == 0
    assert read_limit(bed) == FULL_MW
    assert not bed.checkpoint_path().exists()


def _offer_shards(bed: HookNode) -> None:
    bed.slurm_conf.write_text(f"NodeName={bed.node.name} Gres=gpu:2,shard:8\n")


def _forget(bed: HookNode) -> None:
    gpu = bed.node.read_gpus()[0]
    bed.node.write_gpu(dataclasses.replace(gpu, persistence_mode=0))


def _forbid(bed: HookNode) -> None:
    bed.fail_nvml("fail=nvmlDeviceSetPowerManagementLimit:4")


@as_root
@pytest.mark.parametrize("spoil", [_offer_shards, _forget, _forbid])
def test_where_a_limit_cannot_be_had_the_job_is_told(
    bed: HookNode, spoil: Callable[[HookNode], None]
) -> None:
    bed.write_policy(power_limit_min_w=300)
    spoil(bed)
    assert ask(bed).status == 0
    assert read_limit(bed) == FULL_MW
    told = bed.setup()
    assert told["power_limits_w"] == {}
    assert any("no power limit was set" in note for note in told["notes"])
    bed.fail_nvml()
    assert bed.epilog().status == 0


@as_root
def test_a_limit_that_somebody_else_has_set_since_is_left(bed: HookNode) -> None:
    bed.write_policy(power_limit_min_w=300)
    ask(bed)
    gpu = bed.node.read_gpus()[0]
    bed.node.write_gpu(dataclasses.replace(gpu, power_limit_mw=350_000))
    ended = bed.epilog()
    assert (ended.status, read_limit(bed)) == (0, 350_000)
    assert any("somebody else" in note for note in ended.audit["notes"])


@as_root
def test_a_limit_that_cannot_be_set_back_keeps_the_node_from_the_next_job(bed: HookNode) -> None:
    bed.write_policy(power_limit_min_w=300)
    ask(bed)
    _forbid(bed)
    ended = bed.epilog()
    assert ended.status == 1
    assert bed.checkpoint_path().exists()
    bed.fail_nvml()
    assert bed.epilog().status == 0
    assert (read_limit(bed), bed.list_left()) == (FULL_MW, [])


@as_root
def test_a_damaged_checkpoint_still_gives_the_limit_back(bed: HookNode) -> None:
    bed.write_policy(power_limit_min_w=300)
    ask(bed)
    bed.change_checkpoint(uid=None)
    bed.epilog()
    assert read_limit(bed) == FULL_MW


@as_root
def test_a_checkpoint_of_the_version_before_is_read(bed: HookNode) -> None:
    bed.write_policy()
    bed.prolog()
    path = bed.checkpoint_path()
    value = json.loads(path.read_text())
    del value["power_limits"]
    path.write_text(json.dumps(value))
    ended = bed.epilog()
    assert (ended.status, "problem" in ended.audit) == (0, False)
    assert bed.list_left() == []


@as_root
@pytest.mark.parametrize("wish", [350, 450])
def test_the_limit_of_a_dead_job_is_not_taken_for_the_gpus_own(bed: HookNode, wish: int) -> None:
    bed.write_policy(power_limit_min_w=300)
    ask(bed)
    bed.change_checkpoint(seen=True)
    ended = ask(bed, f"[csub/1 off power={wish}]", "12")
    assert "recovered" in ended.audit, ended.audit
    assert read_limit(bed) == 1000 * wish
    assert bed.epilog("12").status == 0
    assert read_limit(bed) == FULL_MW
    assert bed.list_left() == []


# -- killed ----------------------------------------------------------------------------------------

STEPS = ("rename,renameat,renameat2", "clone,clone3,fork,vfork", "wait4", "write")


@pytest.mark.long
@as_root
@pytest.mark.parametrize("after", ["epilog", "recover"])
@pytest.mark.parametrize("call", STEPS)
def test_a_prolog_killed_at_any_step_leaves_no_limit(bed: HookNode, call: str, after: str) -> None:
    require_strace()
    before = bed.snapshot()
    bed.write_policy(power_limit_min_w=300)
    kills = 0
    for count in list_counts(call):
        killed = kill_at(bed, "prolog", call, count, SLURM_JOB_COMMENT=WISH)
        _undo(bed, after)
        assert bed.snapshot() == before, (call, count)
        assert bed.list_left() == [], (call, count)
        if not killed:
            break
        kills += 1
    assert kills >= 1


@pytest.mark.long
@as_root
@pytest.mark.parametrize("undoing", ["epilog", "recover"])
@pytest.mark.parametrize("call", [*STEPS, "unlink,unlinkat"])
def test_undoing_killed_at_any_step_is_finished_by_the_next(
    bed: HookNode, call: str, undoing: str
) -> None:
    require_strace()
    before = bed.snapshot()
    bed.write_policy(power_limit_min_w=300)
    kills = 0
    for count in list_counts(call):
        ask(bed)
        assert read_limit(bed) == 400_000
        if undoing == "recover":
            bed.change_checkpoint(seen=True)
        killed = kill_at(bed, undoing, call, count)
        if undoing == "recover" and bed.checkpoint_path().exists():
            bed.change_checkpoint(seen=True)
        _undo(bed, undoing)
        assert bed.snapshot() == before, (call, count)
        assert bed.list_left() == [], (call, count)
        if not killed:
            break
        kills += 1
    assert kills >= 1


def _undo(bed: HookNode, after: str) -> None:
    if after == "epilog":
        assert bed.epilog().status == 0
        return
    if bed.checkpoint_path().exists():
        bed.change_checkpoint(seen=True)
    assert bed.command("recover")["status"] == 0
