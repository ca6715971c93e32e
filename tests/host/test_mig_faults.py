"""A GPU that stays divided drains the node, whatever the way out of a hook, and a fault passes.

Each of these left a divided GPU to the next job, or drained a node without a reason, once.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from slurm_colloc.host.hooks.epilog import JobUndo
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.nvml.mig_child import GPU_LOCKS_AT

from .hook_node import NODE, HookNode, check_clean
from .mig_node import COMMENT, mig_on

pytestmark = pytest.mark.root

DEAD = "811011"
"""A job that no other cluster on this machine runs: one that runs is alive."""

SEVEN = "[csub/1 mig=1g+1g+1g+1g+1g+1g+1g]"


@pytest.fixture
def mig(bed: HookNode) -> Iterator[HookNode]:
    """Two H200 with MIG on, and a site that lets jobs use that."""
    with mig_on(bed):
        yield bed


# -- what is read in part -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "fail=nvmlDeviceGetGpuInstanceProfileInfoV:999",
        "fail=nvmlDeviceGetGpuInstanceProfileInfoV:3",
        "fail=nvmlDeviceGetGpuInstancePossiblePlacements_v2:999",
    ],
)
def test_instances_that_cannot_be_seen_are_not_taken_for_gone(mig: HookNode, fault: str) -> None:
    before = mig.snapshot()
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    mig.fail_nvml(fault)
    ended = mig.epilog()
    assert ended.status == 1, ended.audit
    assert "could not be put back" in ended.audit["outcome"]
    mig.fail_nvml()
    assert mig.epilog().status == 0
    assert mig.snapshot() == before
    check_clean(mig)


# -- checkpoints that cannot be read --------------------------------------------------------------


def test_a_damaged_checkpoint_is_kept_while_a_gpu_may_be_divided(mig: HookNode) -> None:
    before = mig.snapshot()
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    path = mig.checkpoint_path()
    saved = path.read_text()
    path.write_text(saved[:100])
    for ended in (mig.epilog(), mig.prolog(SLURM_JOB_COMMENT=COMMENT)):
        assert ended.status in (1, 10), ended.audit
        assert "11.json is damaged" in ended.audit["outcome"]
        assert path.read_text() == saved[:100]
    assert "not known whether a GPU is still divided" in str(mig.command("recover")["jobs"])
    path.write_text(saved)
    assert mig.epilog().status == 0
    assert mig.snapshot() == before


def test_what_a_newer_checkpoint_says_of_the_gpus_is_undone(mig: HookNode) -> None:
    before = mig.snapshot()
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    mig.change_checkpoint(schema=2, phase={"of": "another kind"})
    ended = mig.epilog()
    assert ended.status == 0, ended.audit
    assert mig.snapshot() == before
    check_clean(mig)


def test_where_no_gpu_has_mig_a_damaged_checkpoint_is_forgotten(bed: HookNode) -> None:
    bed.write_policy()
    bed.prolog()
    bed.checkpoint_path().write_text("{")
    assert bed.epilog().status == 0
    check_clean(bed)
    # As long as NVML says so.
    bed.prolog()
    bed.checkpoint_path().write_text("{")
    bed.fail_nvml("fail=nvmlDeviceGetCount_v2:999")
    assert bed.epilog().status == 1
    bed.fail_nvml()
    assert bed.epilog().status == 0
    check_clean(bed)


# -- ways out -------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_prolog_without_time_to_undo_lets_no_job_start(mig: HookNode) -> None:
    mig.write_policy(mig="where-on", mig_slow_s=0.0)
    before = mig.snapshot()
    mig.fail_nvml(
        "slow=nvmlGpuInstanceDestroy:4", "fail=nvmlDeviceCreateGpuInstanceWithPlacement#7:999"
    )
    ended = mig.prolog(SLURM_JOB_COMMENT=SEVEN)
    assert ended.status == 10, ended.audit
    assert "not fit for the next job" in ended.audit["outcome"]
    assert re.search(r"instance \d+ \(1g\.18gb at \d\) may still be", ended.audit["outcome"])
    mig.fail_nvml()
    assert mig.epilog().status == 0
    assert mig.snapshot() == before
    check_clean(mig)


@pytest.mark.long
@pytest.mark.parametrize("has_epilog", [True, False])
def test_no_job_starts_on_a_gpu_that_is_still_divided_for_another(
    mig: HookNode, has_epilog: bool
) -> None:
    before = mig.snapshot()
    mig.prolog(DEAD, SLURM_JOB_COMMENT="[csub/1 mig=3g]")
    (uuid,) = [one["uuid"] for one in mig.setup(DEAD)["mig"]["gpus"][0]["instances"]]
    mig.fail_nvml(f"held={uuid}")
    if has_epilog:
        assert mig.epilog(DEAD).status == 1
    else:
        mig.change_checkpoint(DEAD, seen=True)
    for comment in ("[csub/1 mps]", COMMENT):
        ended = mig.prolog("12", SLURM_JOB_COMMENT=comment)
        assert ended.status == 10, ended.audit
        assert f"is still divided for job {DEAD}" in ended.audit["outcome"]
    mig.fail_nvml()
    assert mig.prolog("12", SLURM_JOB_COMMENT=COMMENT).status == 0
    assert mig.epilog("12").status == 0
    assert mig.snapshot() == before


def test_an_epilog_without_the_jobs_lock_drains_the_node(mig: HookNode) -> None:
    mig.write_policy(mig="where-on", deadline_s=6.0, stop_s=3.0)
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    with (mig.run / "lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 1 + 11)
        ended = mig.epilog()
    assert ended.status == 1, ended.audit
    assert "is still divided for job 11; another hook is at work" in ended.audit["outcome"]
    assert mig.epilog().status == 0
    check_clean(mig)


def test_an_epilog_that_fails_as_no_one_foresaw_drains_the_node(mig: HookNode) -> None:
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    # A name that cannot be read as text where it is looked at.
    mig.change_checkpoint(gpus=["GPU-\x00"])
    ended = mig.epilog()
    assert "unforeseen" in ended.audit["outcome"]
    assert ended.status == 1, ended.audit


def test_what_else_is_left_makes_no_gpu_unfit(
    mig: HookNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = mig.snapshot()
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    run = RunDirectory(str(mig.run), makes=False)
    monkeypatch.setattr(run, "remove_directory", lambda _job: ("its directory is busy",))
    known = run.read("11")
    assert known is not None
    undone = JobUndo(run, known, driver=str(mig.simulation), node=NODE).undo()
    assert (undone.unsafe, undone.left) == ([], ["its directory is busy"])
    assert mig.snapshot() == before
    left = run.read("11")
    run.close()
    assert left is not None
    assert left.mig == ()
    assert mig.epilog().status == 0
    check_clean(mig)


# -- whose an instance is -------------------------------------------------------------------------

REPLACE = """
import ctypes, sys
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByUUID(sys.argv[1])
count, found = ctypes.c_uint(7), (n.c_nvmlGpuInstance_t * 7)()
n.nvmlDeviceGetGpuInstances(gpu, 9, found, ctypes.byref(count))
for instance in found[: count.value]:
    n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
    n.nvmlGpuInstanceDestroy(instance)
place = n.c_nvmlGpuInstancePlacement_t(4, 4)
made = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 9, ctypes.byref(place))
n.nvmlGpuInstanceCreateComputeInstance(made, 2)
"""


def test_an_administrators_instance_in_the_place_of_the_jobs_is_left_and_told(
    mig: HookNode,
) -> None:
    mig.prolog(SLURM_JOB_COMMENT="[csub/1 mig=3g]")
    (gpu,) = mig.setup()["mig"]["gpus"]
    mig.fail_nvml(f"held={gpu['instances'][0]['uuid']}")
    assert mig.epilog().status == 1
    mig.fail_nvml()
    subprocess.run(
        [sys.executable, "-c", REPLACE, gpu["uuid"]],
        env={
            "SIMGPU_ROOT": str(mig.simulation),
            "SLURMD_NODENAME": NODE,
            "LD_LIBRARY_PATH": f"{mig.simulation}/lib",
        },
        check=True,
    )
    stands = mig.snapshot()
    told = mig.command("recover")
    assert mig.snapshot() == stands
    assert told["status"] == 1
    assert "stands where the job's was, and is not the job's" in str(told["jobs"])
    mig.checkpoint_path().unlink()


# -- slow answers ---------------------------------------------------------------------------------


def test_an_nvml_that_takes_its_time_to_load_drains_nothing(mig: HookNode) -> None:
    before = mig.snapshot()
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    # Likewise another hook, or a call that was killed, may have the GPU for longer than a call.
    with (mig.run / "lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, GPU_LOCKS_AT)
        later = threading.Timer(7.5, lambda: fcntl.lockf(file, fcntl.LOCK_UN, 1, GPU_LOCKS_AT))
        later.start()
        ended = mig.epilog()
        later.join()
    assert ended.status == 0, ended.audit
    assert mig.snapshot() == before
    check_clean(mig)


@pytest.mark.long
def test_the_first_cause_is_told_of_an_nvml_that_gives_no_answer(mig: HookNode) -> None:
    mig.write_policy(mig="where-on", mig_slow_s=2.0)
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    mig.fail_nvml("hang=nvmlDeviceGetMigMode")
    ended = mig.epilog()
    assert ended.status == 1
    assert "NVML gave no answer to read within" in ended.audit["outcome"]
    assert "an instance at 4" in ended.audit["outcome"]


@pytest.mark.long
def test_a_node_is_drained_by_name_where_waiting_has_an_end(mig: HookNode) -> None:
    mig.write_policy(mig="where-on", mig_slow_s=2.0)
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    (gpu,) = mig.setup()["mig"]["gpus"]
    mig.fail_nvml("hang=nvmlGpuInstanceDestroy")
    ended = mig.epilog()
    assert ended.status == 1, ended.audit
    assert (
        f"{gpu['uuid']} could not be put back: NVML gave no answer to destroy"
        in (ended.audit["outcome"])
    )
    assert re.search(r"instance \d+ \(3g\.71gb at 4\)", ended.audit["outcome"]), ended.audit
    mig.fail_nvml()
    assert mig.command("recover")["status"] == 0
    check_clean(mig)


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        "slow=nvmlDeviceGetMigMode:7",
        "slow=nvmlGpuInstanceDestroy:7",
        "slow=nvmlComputeInstanceDestroy:3 slow=nvmlDeviceGetGpuInstances:1",
    ],
)
def test_an_nvml_that_has_become_slow_since_is_waited_for(mig: HookNode, fault: str) -> None:
    before = mig.snapshot()
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    mig.fail_nvml(*fault.split())
    ended = mig.epilog()
    assert ended.status == 0, ended.audit
    mig.fail_nvml()
    assert mig.snapshot() == before
    check_clean(mig)


@pytest.mark.long
def test_a_prolog_waits_for_a_slow_nvml_to_take_back_what_it_began(mig: HookNode) -> None:
    before = mig.snapshot()
    mig.fail_nvml(
        "slow=nvmlGpuInstanceDestroy:7", "fail=nvmlDeviceCreateGpuInstanceWithPlacement#3:999"
    )
    ended = mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert ended.status == 0, ended.audit
    assert ended.audit["action"] == "told", ended.audit
    mig.fail_nvml()
    assert mig.epilog().status == 0
    assert mig.snapshot() == before
    check_clean(mig)


@pytest.mark.parametrize(
    "fault",
    [
        # Each look at a GPU takes so long, or each call that would change it.
        "slow=nvmlDeviceGetMigMode:7",
        "slow=nvmlDeviceGetHandleByUUID:7",
        "slow=nvmlDeviceCreateGpuInstanceWithPlacement:7",
    ],
)
@pytest.mark.long
def test_an_nvml_that_is_slow_at_each_call_is_a_fallback_and_no_drain(
    mig: HookNode, fault: str
) -> None:
    before = mig.snapshot()
    mig.fail_nvml(fault)
    ended = mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert ended.status == 0, ended.audit
    assert ended.audit["action"] != "prepared", ended.audit
    mig.fail_nvml()
    assert mig.snapshot() == before
    assert mig.epilog().status == 0
    check_clean(mig)


# -- changing while the job runs ------------------------------------------------------------------
