"""Options for several GPUs mean to csub what they mean to sbatch, on a real Slurm."""

from __future__ import annotations

import pytest

from slurm_colloc.slurm.slurm_commands import parse_job_fields

from ..bed import CsubUser

pytestmark = pytest.mark.slurm

ASKED = (
    "NumNodes", "NumTasks", "TresPerJob", "TresPerNode", "TresPerTask", "OverSubscribe", "TRES",
    "ReqTRES",
)  # fmt: skip
USUAL = ("--hold", "--time=5", "--mem=100M", "--cpus-per-task=1")


def find_asked(user: CsubUser, job_id: str) -> dict[str, str]:
    shown = user.run(["scontrol", "--oneliner", "show", "job", job_id]).stdout
    fields = parse_job_fields(shown)
    return {name: fields[name] for name in ASKED if name in fields}


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        (("--gres=gpu:2",), True),
        (("--gpus-per-node=2",), True),
        (("--gpus=2",), True),
        (("--gpus-per-task=2", "--ntasks=1"), True),
        (("--gpus=2", "--gpus-per-task=1"), False),
        (("--gpus=2", "--ntasks-per-gpu=1"), False),
        (("--gres=gpu:2", "--gpu-bind=closest"), False),
        (("--gres=gpu:1", "--exclusive"), False),
    ],
)
def test_jobs_of_several_gpus_ask_for_what_sbatch_asks_for(
    user: CsubUser, options: tuple[str, ...], shares: bool
) -> None:
    user.script("train.sh", "exit 0")
    sbatch = ("sbatch", "--parsable", *USUAL, *options, "train.sh")
    wanted = find_asked(user, user.run(sbatch).stdout.strip())
    alone = user.csub("--parsable", *USUAL, *options, "train.sh").stdout.strip()
    assert find_asked(user, alone) == wanted
    pack = user.csub(
        "--parsable", *USUAL, *options, "--array=1-2", "--degree=2", "train.sh"
    ).stdout.strip()
    asked = find_asked(user, pack)
    if not shares:
        assert {name: asked.get(name) for name in wanted} == wanted
        return
    # Both members of the pack have both GPUs of one node.
    assert (asked["NumNodes"].partition("-")[0], asked["NumTasks"]) == ("1", "1")
    assert asked["TresPerNode"].endswith("gpu:2")
    assert "TresPerJob" not in asked
    assert "TresPerTask" not in asked


def test_jobs_that_share_a_node_of_their_own_get_it_whole(user: CsubUser) -> None:
    user.script("train.sh", "exit 0")
    job_id = user.csub(
        "--parsable", *USUAL, "--gres=gpu:1", "--exclusive", "--gpus-per-pack=node",
        "--array=1-4", "train.sh",
    ).stdout.strip()  # fmt: skip
    asked = find_asked(user, job_id)
    assert asked["TresPerNode"].endswith("gpu:2")
    assert asked["OverSubscribe"] == "NO"
    assert user.run(["squeue", "-h", "--me", "-o", "%i"]).stdout.split() == [job_id]
