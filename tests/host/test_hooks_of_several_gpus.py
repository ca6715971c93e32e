"""Root's hooks for jobs of several GPUs: a daemon each, and all of them put back."""

from __future__ import annotations

import dataclasses
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from slurm_colloc.host.system.node_processes import identify
from slurm_colloc_lab.simgpu.gpu_models import H200
from slurm_colloc_lab.simgpu.install import make_simulation

from ..signalling import send_signal
from .hook_node import DEFAULT, EXCLUSIVE_PROCESS, NOBODY, NODE, OTHER, HookNode, check_clean

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

EACH = "[csub/1 mps gpus=each]"
GPUS = 8


@pytest.fixture
def wide(bed: HookNode) -> HookNode:
    """A node of eight GPUs whose policy sets EXCLUSIVE_PROCESS."""
    make_simulation(bed.simulation, {NODE: [H200] * GPUS})
    # A simulated daemon takes as long as a Python to start.
    bed.write_policy(exclusive_process=True, deadline_s=60.0, stop_s=15.0)
    return bed


def list_modes(bed: HookNode) -> list[int]:
    return [gpu.compute_mode for gpu in bed.node.read_gpus()]


def test_eight_gpus_of_one_job_have_a_daemon_each_and_are_put_back(wide: HookNode) -> None:
    before = wide.snapshot()
    numbers = ",".join(map(str, range(GPUS)))
    ended = wide.prolog(SLURM_JOB_GPUS=numbers, SLURM_JOB_COMMENT=EACH)
    assert (ended.status, ended.audit["action"]) == (0, "prepared"), str(ended.audit)
    setup = wide.setup()
    uuids = [gpu.uuid for gpu in wide.node.read_gpus()]
    assert [daemon["gpus"] for daemon in setup["daemons"]] == [[uuid] for uuid in uuids]
    assert len({wide.peer(name=str(name)).pid for name in range(GPUS)}) == GPUS
    assert list_modes(wide) == [EXCLUSIVE_PROCESS] * GPUS
    # What one of them has done keeps no other from its end.
    daemon = identify(wide.peer(name="3").pid)
    assert daemon is not None
    send_signal(daemon, signal.SIGKILL)
    assert wide.epilog().status == 0
    assert wide.snapshot() == before
    check_clean(wide)


def test_two_jobs_of_two_gpus_each_do_not_disturb_each_other(wide: HookNode) -> None:
    def start(job_id: str, gpus: str, uid: int) -> int:
        return wide.prolog(
            job_id,
            SLURM_JOB_GPUS=gpus,
            SLURM_JOB_COMMENT=EACH,
            SLURM_JOB_UID=str(uid),
            SLURM_JOB_GID=str(uid),
        ).status

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(start, ("11", "12"), ("0,2", "1,3"), (NOBODY, OTHER))) == [0, 0]
    uuids = [gpu.uuid for gpu in wide.node.read_gpus()]
    assert wide.setup("11")["gpus"] == [uuids[0], uuids[2]]
    assert wide.setup("12")["gpus"] == [uuids[1], uuids[3]]
    assert {wide.peer("11", name).uid for name in "01"} == {NOBODY}
    assert {wide.peer("12", name).uid for name in "01"} == {OTHER}
    assert wide.epilog("11").status == 0
    assert list_modes(wide) == [DEFAULT, EXCLUSIVE_PROCESS] * 2 + [DEFAULT] * 4
    assert {wide.peer("12", name).uid for name in "01"} == {OTHER}
    assert wide.epilog("12").status == 0
    assert list_modes(wide) == [DEFAULT] * GPUS
    check_clean(wide)


def test_where_one_gpu_of_a_job_is_divided_or_held_none_is_half_prepared(wide: HookNode) -> None:
    gpu = wide.node.read_gpus()[1]
    wide.node.write_gpu(dataclasses.replace(gpu, mig_mode=1, mig_pending=1))
    before = wide.snapshot()
    ended = wide.prolog(SLURM_JOB_GPUS="0,1", SLURM_JOB_COMMENT=EACH)
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert gpu.uuid in wide.setup()["reason"]
    assert (wide.setup()["daemons"], wide.list_programs()) == ([], [])
    assert wide.snapshot() == before
    wide.epilog()
    wide.write_policy()
    wide.prolog("12", SLURM_JOB_GPUS="2", SLURM_JOB_COMMENT=EACH)
    wide.prolog("13", SLURM_JOB_GPUS="2,4", SLURM_JOB_COMMENT=EACH)
    assert wide.setup("13")["reason"].startswith("job 12 still holds GPU-")
    for job_id in ("12", "13"):
        assert wide.epilog(job_id).status == 0
    assert wide.snapshot() == before
    check_clean(wide)
