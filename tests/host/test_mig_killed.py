"""Hooks that divide a GPU and are killed at any step: the next one puts it back.

CSUB_CAMPAIGN_KILLS=200 asks for more random kills, CSUB_CAMPAIGN_SEED for an earlier run's.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from slurm_colloc.host.system.node_processes import identify
from slurm_colloc_lab.simgpu.nvml.mig_instances import restart_gpu

from ..signalling import send_signal
from ..wait_until import wait_until
from .hook_node import NODE, HookNode, check_clean, kill_at, require_strace
from .mig_node import COMMENT, list_own, list_profiles, mig_on, switch

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

KILLS = int(os.environ.get("CSUB_CAMPAIGN_KILLS", "16"))
SEED = int(os.environ.get("CSUB_CAMPAIGN_SEED") or random.SystemRandom().randrange(1 << 32))
CHILD = "slurm_colloc.host.nvml.mig_child"
LIFECYCLE = "slurm_colloc.host.lifecycle"


@pytest.fixture
def mig(bed: HookNode) -> Iterator[HookNode]:
    with mig_on(bed):
        yield bed


def _list_counts(call: str) -> Iterator[int]:
    """There are many writes; each fifth one is tried."""
    return itertools.count(1, 5) if call == "write" else itertools.count(1)


# Requests to NVML's child and files are written; checkpoints are renamed into place.
@pytest.mark.parametrize("call", ["write", "rename,renameat,renameat2", "mkdir,mkdirat"])
def test_a_prolog_killed_at_any_step_is_undone_by_the_epilog(mig: HookNode, call: str) -> None:
    require_strace()
    before = mig.snapshot()
    kills = 0
    for count in _list_counts(call):
        killed = kill_at(mig, "prolog", call, count, SLURM_JOB_COMMENT=COMMENT)
        ended = mig.epilog()
        assert ended.status == 0, ended.audit
        assert mig.list_left() == [], (call, count, ended.audit)
        assert mig.snapshot() == before, (call, count)
        assert list_own(mig) == []
        if not killed:
            break
        kills += 1
    assert kills >= 1


@pytest.mark.parametrize("call", ["write", "rename,renameat,renameat2", "unlink,unlinkat"])
def test_an_epilog_killed_at_any_step_is_finished_by_the_next_hook(
    mig: HookNode, call: str
) -> None:
    require_strace()
    before = mig.snapshot()
    kills = 0
    for count in _list_counts(call):
        mig.prolog(SLURM_JOB_COMMENT=COMMENT)
        killed = kill_at(mig, "epilog", call, count)
        ended = mig.epilog()
        assert ended.status == 0, ended.audit
        assert mig.list_left() == [], (call, count, ended.audit)
        assert mig.snapshot() == before, (call, count)
        if not killed:
            break
        kills += 1
    assert kills >= 1


def test_the_next_jobs_prolog_puts_back_what_a_dead_job_has_left_on_its_gpu(mig: HookNode) -> None:
    mig.prolog(SLURM_JOB_COMMENT="[csub/1 mig=1g+1g+1g+1g+1g+1g+1g]")
    mig.change_checkpoint(phase="undoing")
    mig.fail_nvml("slow=nvmlGpuInstanceDestroy:0.2")
    ended = mig.prolog("12", SLURM_JOB_COMMENT=COMMENT)
    assert ended.audit["mode"] == "mig", ended.audit
    assert len(list_profiles(mig, "12")) == 4
    assert ended.audit["recovered"][0]["job"] == "11"
    assert ended.audit["recovered"][0]["undone"] is True


def test_a_reboot_takes_everything_away_and_recovery_touches_nothing(mig: HookNode) -> None:
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    # What is there after it is the site's.
    mig.change_checkpoint(boot="another boot")
    # The mode is another matter: test_mig_after_boot.
    for path in (mig.home / "state" / "mig_on").iterdir():
        path.unlink()
    stands = mig.snapshot()
    told = mig.command("recover")
    assert (told["status"], told["jobs"][0]["reason"]) == (0, "the node has been rebooted")
    assert mig.snapshot() == stands
    check_clean(mig)


@pytest.mark.parametrize(
    ("policy", "was_on"), [("where-on", True), ("switch", False), ("switch", True)]
)
def test_what_a_restarted_gpu_has_lost_is_no_fault(
    mig: HookNode, policy: str, was_on: bool
) -> None:
    switch(mig, on=was_on)
    before = mig.snapshot()
    mig.write_policy(mig=policy)
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    (gpu_uuid,) = mig.setup()["gpus"]
    # A driver that was loaded again in the same boot: from Hopper on MIG is off then.
    for gpu in mig.node.read_gpus():
        restart_gpu(mig.node, gpu)
    ended = mig.epilog()
    assert ended.status == 0, ended.audit
    if policy == "switch":
        assert mig.snapshot()[NODE][gpu_uuid] == before[NODE][gpu_uuid]
        assert ("turned on again" in str(ended.audit.get("notes"))) == was_on
    else:
        assert "was not turned off for the job: it was left so" in str(ended.audit["notes"])
    check_clean(mig)


def test_hooks_are_killed_at_random_moments(mig: HookNode) -> None:
    print(f"seed {SEED}", file=sys.stderr)
    chance = random.Random(SEED)
    before = mig.snapshot()
    # Calls take a while, so that a kill falls into one.
    mig.fail_nvml(
        "slow=nvmlDeviceCreateGpuInstanceWithPlacement:0.05",
        "slow=nvmlGpuInstanceCreateComputeInstance:0.05",
        "slow=nvmlGpuInstanceDestroy:0.05",
        "slow=nvmlComputeInstanceDestroy:0.05",
    )
    hits = 0
    for number in range(KILLS):
        part = chance.choice(("prolog", "epilog", "prolog's NVML", "epilog's NVML"))
        hits += _kill_once(mig, part, chance)
        told = f"seed {SEED}, kill {number}: {part}"
        ended = mig.epilog()
        if ended.status:
            # Its own NVML may be what was killed last.
            ended = mig.epilog()
        assert ended.status == 0, (told, ended.audit)
        wait_until(lambda: not list_own(mig), f"nothing runs any more ({told})")
        assert mig.snapshot() == before, (told, ended.audit)
        assert mig.list_left() == [], told
    assert hits >= KILLS // 2


def _kill_once(mig: HookNode, part: str, chance: random.Random) -> bool:
    """Kill one part at a random moment; whether it was there."""
    is_epilog = part.startswith("epilog")
    if is_epilog:
        mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    hook = subprocess.Popen(
        mig.argv("epilog" if is_epilog else "prolog"),
        env=mig.environment("11", SLURM_JOB_COMMENT=COMMENT),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(chance.uniform(0.1, 1.0))
    hit = False
    if part.endswith("NVML"):
        for pid in list_own(mig, CHILD):
            identity = identify(pid)
            hit |= identity is not None and bool(send_signal(identity, signal.SIGKILL))
    else:
        hit = hook.poll() is None
        hook.kill()
    hook.wait(60)
    return hit
