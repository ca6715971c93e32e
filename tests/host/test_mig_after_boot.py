"""A reboot turns MIG off from Hopper on: where the site had it on, it is turned on again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc_lab.simgpu.nvml.mig_instances import restart_gpu

from .hook_node import NODE, PATIENCE_S, HookNode, check_clean
from .mig_node import COMMENT, list_profiles, mig_on

pytestmark = pytest.mark.root

ANOTHER_BOOT = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def mig(bed: HookNode) -> Iterator[HookNode]:
    """Two H200 with MIG on, and a site that lets jobs use that, and turn it on."""
    with mig_on(bed):
        bed.write_policy(mig="switch")
        yield bed


def list_kept(bed: HookNode) -> list[Path]:
    return sorted((bed.home / "state" / "mig_on").glob("*"))


def read_modes(bed: HookNode) -> list[int]:
    return [gpu.mig_mode for gpu in bed.node.read_gpus()]


def reboot(bed: HookNode) -> None:
    """What is left of a node in the middle of a job: /run is empty, and MIG is off."""
    for gpu in bed.node.read_gpus():
        restart_gpu(bed.node, gpu)
    for path in bed.run.iterdir():
        if path.is_dir():
            subprocess.run(["umount", "-q", str(path)], check=False)
    shutil.rmtree(bed.run)
    for path in list_kept(bed):
        path.write_text(json.dumps({"schema": 1, "boot": ANOTHER_BOOT}))


def recover_at_boot(bed: HookNode) -> dict[str, Any]:
    """`recover` where no slurmd is to be seen: that of another test may run on this machine."""
    ended = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *bed.argv("recover")],
        env={
            "PATH": os.environ["PATH"],
            "SLURM_COLLOC_DRIVER": str(bed.simulation),
            "SLURMD_NODENAME": NODE,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.stderr == ""
    return {"status": ended.returncode, **json.loads(ended.stdout)}


def test_what_is_kept_goes_with_the_end_of_the_job(mig: HookNode) -> None:
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    (kept,) = list_kept(mig)
    assert kept.name == mig.setup()["gpus"][0]
    assert mig.epilog().status == 0
    assert list_kept(mig) == []
    check_clean(mig)


def test_recover_turns_mig_on_again_after_a_reboot(mig: HookNode) -> None:
    before = mig.snapshot()[NODE]
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    (gpu,) = mig.setup()["gpus"]
    reboot(mig)
    assert read_modes(mig) == [0, 0]
    told = recover_at_boot(mig)
    assert told["status"] == 0, told
    assert "MIG was turned on again on GPU-" in told["mig"][0]
    # The other GPU was no job's: its mode is the site's own affair.
    assert read_modes(mig) == [1, 0]
    assert mig.snapshot()[NODE][gpu] == before[gpu]
    assert list_kept(mig) == []
    # Once more, and there is nothing to do.
    assert recover_at_boot(mig)["mig"] == []


def test_the_next_prolog_does_it_where_nothing_did_at_boot(mig: HookNode) -> None:
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    reboot(mig)
    ended = mig.prolog("12", SLURM_JOB_COMMENT=COMMENT)
    assert ended.audit["action"] == "prepared", ended.audit
    assert "MIG was turned on again on GPU-" in str(ended.audit["notes"])
    assert max(list_profiles(mig, "12")) == "3g.71gb"
    # It is on as the site's, so the epilog leaves it on.
    assert mig.epilog("12").status == 0
    assert read_modes(mig) == [1, 0]
    assert list_kept(mig) == []


def test_a_layout_that_is_not_to_be_had_then_still_gets_one_instance(mig: HookNode) -> None:
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    reboot(mig)
    ended = mig.prolog("12", SLURM_JOB_COMMENT="[csub/1 mig=4g+4g]")
    assert ended.audit["action"] == "prepared", ended.audit
    assert list_profiles(mig, "12") == ["7g.141gb"]
    assert mig.epilog("12").status == 0
    assert read_modes(mig) == [1, 0]


def test_a_policy_that_lets_nothing_switch_is_told_once_and_drains_nothing(mig: HookNode) -> None:
    mig.write_policy(mig="where-on")
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    reboot(mig)
    told = recover_at_boot(mig)
    assert told["status"] == 0
    assert "stays off: the site's policy does not let it be turned on" in told["mig"][0]
    assert mig.read_audit()[-1]["mig"] == told["mig"]
    assert read_modes(mig) == [0, 0]
    assert recover_at_boot(mig)["mig"] == []


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("absent", 0, "is not known"),
        ("fail=nvmlDeviceSetMigMode:999", 1, "is off"),
        ("fail=nvmlDeviceGetMigMode:999", 0, "is not known"),
    ],
)
def test_what_could_not_be_done_is_done_by_the_next_hook(
    mig: HookNode, fault: str, status: int, said: str
) -> None:
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    reboot(mig)
    mig.fail_nvml(fault)
    told = recover_at_boot(mig)
    assert (told["status"], said in told["mig"][0]) == (status, True), told
    assert len(list_kept(mig)) == 1
    mig.fail_nvml()
    assert recover_at_boot(mig)["status"] == 0
    assert read_modes(mig) == [1, 0]


def test_a_state_directory_of_others_is_neither_used_nor_a_fault(mig: HookNode) -> None:
    state = mig.home / "state"
    state.mkdir()
    os.chown(state, 65534, 65534)
    ended = mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert ended.audit["action"] == "prepared", ended.audit
    assert "is not root's alone" in str(ended.audit["notes"])
    assert list(state.iterdir()) == []
    assert mig.epilog().status == 0
    assert "is not root's alone" in recover_at_boot(mig)["mig"][0]


def test_while_slurmd_runs_a_gpu_is_left_to_the_job_that_has_it(mig: HookNode) -> None:
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    reboot(mig)
    stand_in = mig.home / "slurmd"
    shutil.copy("/bin/sleep", stand_in)
    with subprocess.Popen([stand_in, "60"]) as process:
        try:
            told = mig.command("recover")
        finally:
            process.kill()
    assert "the next job that asks for MIG there turns it on again" in told["mig"][0]
    assert read_modes(mig) == [0, 0]
    assert len(list_kept(mig)) == 1
