"""Root's hooks and MIG, through the simulated NVML: what a job gets, is told, and leaves behind."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_colloc.host.hooks.node_policy import REMOVED_KEYS
from slurm_colloc.host.nvml.nvml_query import UUID

from .hook_node import NODE, HookNode, check_clean
from .mig_node import COMMENT, list_own, list_profiles, mig_on, switch

pytestmark = pytest.mark.root


@pytest.fixture
def mig(bed: HookNode) -> Iterator[HookNode]:
    """Two H200 with MIG on, and a site that lets jobs use that."""
    with mig_on(bed):
        yield bed


def test_a_job_gets_the_layout_it_asks_for_and_leaves_the_gpu_as_it_was(mig: HookNode) -> None:
    before = mig.snapshot()
    ended = mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert (ended.status, ended.audit["action"], ended.audit["mode"]) == (0, "prepared", "mig")
    setup = mig.setup()
    assert (setup["mode"], setup["daemons"]) == ("mig", [])
    (gpu,) = setup["mig"]["gpus"]
    assert gpu["uuid"] == setup["gpus"][0]
    told = {(one["profile"], tuple(one["placement"])) for one in gpu["instances"]}
    assert told == {
        ("3g.71gb", (4, 4)),
        ("2g.35gb", (2, 2)),
        ("1g.18gb", (1, 1)),
        ("1g.18gb", (0, 1)),
    }
    uuids = {one["uuid"] for one in gpu["instances"]}
    assert len(uuids) == 4
    assert all(UUID.fullmatch(uuid) and uuid.startswith("MIG-") for uuid in uuids)
    largest = next(one for one in gpu["instances"] if one["profile"] == "3g.71gb")
    assert (largest["sms"], largest["memory_mb"]) == (60, 71424)
    assert "3g.71gb" in [profile["name"] for profile in gpu["profiles"]]
    assert mig.snapshot() != before
    again = mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert again.audit["outcome"] == "it was prepared already"
    assert mig.setup() == setup
    ended = mig.epilog()
    assert (ended.status, ended.audit["action"]) == (0, "undone")
    assert "4 MIG instances" in str(ended.audit["notes"])
    assert mig.snapshot() == before
    check_clean(mig)
    assert list_own(mig) == []


def test_the_mode_is_switched_where_the_site_lets_it_and_switched_back(mig: HookNode) -> None:
    switch(mig, on=False)
    before = mig.snapshot()
    refused = mig.prolog("10", SLURM_JOB_COMMENT=COMMENT)
    assert "the site's policy takes only GPUs where it is on" in refused.audit["no_mig"]
    assert mig.setup("10")["mode"] == "mps"
    assert "no MIG: MIG is off on GPU-" in mig.setup("10")["reason"]
    mig.epilog("10")
    mig.write_policy(mig="switch")
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert len(list_profiles(mig)) == 4
    ended = mig.epilog()
    assert (ended.status, "MIG was turned off again" in str(ended.audit["notes"])) == (0, True)
    assert mig.snapshot() == before
    check_clean(mig)


@pytest.mark.parametrize("layout", ["3c.7g+4c.7g", "1c.3g+2c.3g+1g", "1c.4g+2c.4g+1c.4g"])
def test_compute_instances_that_share_a_gpu_instance_are_made_in_any_order(
    mig: HookNode, layout: str
) -> None:
    before = mig.snapshot()
    ended = mig.prolog(SLURM_JOB_COMMENT=f"[csub/1 mig={layout}]")
    assert ended.audit.get("no_mig") is None, ended.audit
    assert len(list_profiles(mig)) == layout.count("+") + 1
    assert mig.epilog().status == 0
    assert mig.snapshot() == before
    check_clean(mig)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ("4g+4g", "the MIG layout 4g+4g does not fit"),
        ("3g.40gb", "this GPU has no MIG profile 3g.40gb: its profiles are 1g.18gb, "),
        ("4c.3g", "4 compute slices do not fit into 3"),
    ],
)
def test_words_that_do_not_fit_are_told_and_nothing_is_touched(
    mig: HookNode, layout: str, reason: str
) -> None:
    switch(mig, on=False)
    before = mig.snapshot()
    mig.write_policy(mig="switch", modes=[])
    ended = mig.prolog(SLURM_JOB_COMMENT=f"[csub/1 mig={layout}]")
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert reason in mig.setup()["reason"]
    assert mig.snapshot() == before
    mig.epilog()
    check_clean(mig)


def test_where_mig_is_on_a_job_whose_layout_is_not_to_be_had_gets_the_gpu_whole(
    mig: HookNode,
) -> None:
    before = mig.snapshot()
    ended = mig.prolog(SLURM_JOB_COMMENT="[csub/1 mig=4g+4g]")
    assert (ended.status, ended.audit["mode"]) == (0, "mig")
    assert list_profiles(mig) == ["7g.141gb"]
    assert "one instance has the whole GPU; no layout 4g+4g: " in mig.setup()["reason"]
    assert mig.setup()["mig"]["layout"] == ""
    assert mig.epilog().status == 0
    assert mig.snapshot() == before
    check_clean(mig)


@pytest.mark.parametrize(
    ("policy", "lines", "faults", "reason"),
    [
        ({"mig": "off"}, "", "", "the site's policy does not let jobs divide GPUs by MIG"),
        ({"mig_profiles": ["3g.71gb"]}, "", "", "does not allow the MIG profile 2g.35gb"),
        ({}, "AcctGatherEnergyType=acct_gather_energy/gpu", "", "Slurm keeps GPUs open"),
        # The node's name is another in each process that runs tests, the test's is not.
        ({}, "NodeName=HERE Gres=gpu:2,shard:8", "", "this node offers gres/shard"),
        ({}, "", "vgpu", "is a virtual GPU"),
        ({}, "", "fail=nvmlDeviceGetGpuInstances:999", "NVML does not say all"),
    ],
)
def test_what_stands_against_it_is_told_and_nothing_is_touched(
    mig: HookNode, policy: dict[str, Any], lines: str, faults: str, reason: str
) -> None:
    before = mig.snapshot()
    mig.write_policy(**{"mig": "where-on", "modes": [], **policy})
    mig.slurm_conf.write_text(f"{lines.replace('HERE', NODE)}\n")
    mig.fail_nvml(*faults.split())
    ended = mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    mig.fail_nvml()
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert reason in mig.setup()["reason"]
    assert mig.snapshot() == before
    mig.epilog()
    check_clean(mig)


def test_slurm_counting_instances_stands_against_it(mig: HookNode) -> None:
    (mig.home / "gres.conf").write_text("AutoDetect=nvml\n")
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert "slurmd counts MIG instances as GPUs" in mig.setup()["reason"]


def test_instances_of_someone_else_are_never_touched(mig: HookNode) -> None:
    mig.prolog("21", SLURM_JOB_COMMENT="[csub/1 mig=7g]")
    stands = mig.snapshot()
    # As if no job of ours had made it.
    saved = mig.checkpoint_path("21").read_text()
    mig.checkpoint_path("21").unlink()
    ended = mig.prolog("22", SLURM_JOB_COMMENT=COMMENT)
    assert "is divided already, and not for this job: instance 0 (7g.141gb at 0)" in str(
        ended.audit["no_mig"]
    )
    mig.epilog("22")
    assert mig.snapshot() == stands
    mig.checkpoint_path("21").write_text(saved)


CALLS = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceGetInfo",
    "nvmlComputeInstanceGetInfo_v2",
)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", [15, 23, 999])
def test_whatever_call_fails_the_gpu_is_put_back_and_the_job_falls_back(
    mig: HookNode, call: str, number: int, code: int
) -> None:
    before = mig.snapshot()
    mig.fail_nvml(f"fail={call}#{number}:{code}")
    ended = mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert ended.status == 0
    mig.fail_nvml()
    if mig.setup()["mode"] == "mig":
        # The driver answered another time, or the job has the GPU whole.
        assert len(list_profiles(mig)) in (1, 4)
    else:
        assert "no MIG: " in mig.setup()["reason"]
        assert mig.snapshot() == before
    assert mig.epilog().status == 0
    assert mig.snapshot() == before
    check_clean(mig)


def test_a_prolog_whose_nvml_hangs_comes_to_its_end_and_the_gpu_is_put_back(mig: HookNode) -> None:
    before = mig.snapshot()
    mig.write_policy(mig="where-on", deadline_s=12.0, stop_s=6.0)
    mig.fail_nvml("hang=nvmlDeviceCreateGpuInstanceWithPlacement#2")
    ended = mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert ended.status == 0
    mig.fail_nvml()
    assert mig.epilog().status == 0
    assert mig.snapshot() == before
    check_clean(mig)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("fail=nvmlGpuInstanceDestroy:999", "could not be put back: NVML: Unknown Error"),
        ("lost", "could not be put back: NVML: GPU is lost"),
    ],
)
def test_what_will_not_go_drains_the_node_with_the_reason_until_it_goes(
    mig: HookNode, fault: str, reason: str
) -> None:
    before = mig.snapshot()
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    mig.fail_nvml(fault)
    ended = mig.epilog()
    assert ended.status == 1
    assert reason in ended.audit["outcome"]
    mig.fail_nvml()
    told = mig.command("recover")
    assert told["status"] == 0
    assert mig.snapshot() == before
    check_clean(mig)


def test_an_instance_in_use_drains_the_node_with_gpu_instance_and_process(mig: HookNode) -> None:
    mig.prolog(SLURM_JOB_COMMENT="[csub/1 mig=3g]")
    (uuid,) = [one["uuid"] for one in mig.setup()["mig"]["gpus"][0]["instances"]]
    mig.fail_nvml(f"held={uuid}")
    ended = mig.epilog()
    assert ended.status == 1
    assert "instance 1 (3g.71gb at 4) of GPU-" in ended.audit["outcome"]
    assert "is in use: no process is to be seen on it" in ended.audit["outcome"]
    mig.fail_nvml()
    assert mig.epilog().status == 0


def test_two_jobs_repartition_two_gpus_of_a_node_at_the_same_time(mig: HookNode) -> None:
    before = mig.snapshot()
    mig.fail_nvml("slow=nvmlDeviceCreateGpuInstanceWithPlacement:0.2")
    ended: dict[str, Any] = {}

    def run(job_id: str, gpu: str) -> None:
        ended[job_id] = subprocess.run(
            mig.argv("prolog"),
            env=mig.environment(
                job_id, SLURM_JOB_GPUS=gpu, SLURM_JOB_COMMENT="[csub/1 mig=1g+1g+1g+1g+1g+1g+1g]"
            ),
            check=False,
            timeout=60,
        ).returncode

    threads = [threading.Thread(target=run, args=pair) for pair in (("31", "0"), ("32", "1"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == {"31": 0, "32": 0}
    gpus = {mig.setup(job_id)["gpus"][0] for job_id in ended}
    assert len(gpus) == 2
    for job_id in ended:
        assert list_profiles(mig, job_id) == ["1g.18gb"] * 7
    for job_id in ended:
        assert mig.epilog(job_id).status == 0
    assert mig.snapshot() == before


def test_the_gpus_of_a_job_are_divided_and_put_back_at_the_same_time(mig: HookNode) -> None:
    before = mig.snapshot()
    layout = "[csub/1 mig=1g+1g+1g+1g+1g+1g+1g]"
    mig.prolog(SLURM_JOB_COMMENT=layout, SLURM_JOB_GPUS="1,0")
    assert [list_profiles(mig, gpu=number) for number in (0, 1)] == [["1g.18gb"] * 7] * 2
    assert [one["uuid"] for one in mig.setup()["mig"]["gpus"]] == mig.setup()["gpus"]
    # One after the other takes longer than an epilog has.
    mig.fail_nvml("slow=nvmlGpuInstanceDestroy:1")
    ended = mig.epilog()
    assert ended.status == 0, ended.audit
    assert mig.snapshot() == before
    check_clean(mig)


def test_one_gpu_that_will_not_go_back_does_not_keep_the_other(mig: HookNode) -> None:
    mig.prolog(SLURM_JOB_COMMENT="[csub/1 mig=3g]", SLURM_JOB_GPUS="0,1")
    first, second = mig.setup()["mig"]["gpus"]
    mig.fail_nvml(f"held={first['instances'][0]['uuid']}")
    ended = mig.epilog()
    assert ended.status == 1
    assert first["uuid"] in ended.audit["outcome"]
    assert second["uuid"] not in ended.audit["outcome"]
    assert f"1 MIG instances of {second['uuid']} were destroyed" in ended.audit["notes"]


def test_the_job_is_told_whether_mps_may_run_inside_and_the_hooks_leave_no_process(
    mig: HookNode,
) -> None:
    mig.write_policy(mig="where-on", mig_mps_inside=True)
    mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert mig.setup()["mig"]["mps_inside"] is True
    assert list_own(mig) == []


def test_a_policy_with_a_removed_key_is_used_and_each_line_of_the_log_says_so(
    mig: HookNode,
) -> None:
    mig.write_policy(mig="where-on", mig_change=True)
    ended = mig.prolog(SLURM_JOB_COMMENT=COMMENT)
    assert ended.audit["mode"] == "mig"
    assert ended.audit["ignored"] == [REMOVED_KEYS["mig_change"]]
    assert len(mig.read_audit()) == 1
