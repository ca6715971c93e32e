"""`csub plan`: what would share, how and why; nothing is submitted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.cli.plan_command import parse_changes, split_command
from slurm_colloc.errors import UsageProblem
from slurm_colloc.learning.learn_from_pack import learn_from_pack
from slurm_colloc.model.usage_profile import (
    Calibration,
    Completion,
    HeldUp,
    ModeModel,
    Observation,
)
from slurm_colloc.store.calibrations import calibration_path, user_folder, write_calibration
from slurm_colloc.store.profile_updates import add_completions, add_held_up, add_observations
from slurm_colloc.store.profiles import (
    compute_family,
    compute_kind,
    compute_signature,
    list_profiles,
)
from slurm_colloc.submission.jobs.call_jobs import collect_call

from ..calls import UserWithoutSlurm
from ..report.generated import Truth, make_pack

CALIBRATION = Calibration(
    gpu_model="NVIDIA H200",
    modes={
        "timeslice": ModeModel(turns=0.85, switching=0.15),
        "mps": ModeModel(waiting=0.8, width=1.4, narrowing=0.6, capacity=1.3, crowding=0.6),
    },
    residual=0.05,
)
SMALL, BIG = "small.sh", "big.sh"
COMMANDS = {
    "sinfo": 'echo "gpu*|64|512000|gpu:h200:4|1-00:00:00|n/a"',
    "squeue": "true",
    "sacctmgr": 'echo "Only accounting_storage/slurmdbd is supported." >&2; exit 1',
    "sacct": 'echo "Slurm accounting storage is disabled" >&2; exit 1',
    "sbatch": 'echo "$@" >>"$HOME/called"; echo "sbatch: Job 7 to start at once" >&2',
}


class LoginNode(UserWithoutSlurm):
    """Somebody with two scripts, where Slurm's commands give fixed answers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        folder = self.home / "bin"
        folder.mkdir()
        conf = folder / "slurm.conf"
        conf.write_text("ClusterName=here\n")
        self.environment |= {"PATH": f"{folder}:{os.defpath}", "SLURM_CONF": str(conf)}
        for name, body in COMMANDS.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
        for name in (SMALL, BIG):
            (self.home / name).write_text(
                f"#!/bin/sh\n#SBATCH --gres=gpu:h200:1 --time=30:00\necho {name}\n"
            )
        # Of its own, so that no test depends on what was measured elsewhere.
        write_calibration(calibration_path(user_folder(self.state), "NVIDIA H200"), CALIBRATION)

    def plan(self, *arguments: str) -> dict[str, Any]:
        done = self.csub("plan", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def forget_nodes(self) -> None:
        """Let csub ask anew which nodes there are, as after a minute."""
        (self.state / "waits" / "nodes.json").unlink(missing_ok=True)

    def learn(
        self,
        script: str,
        *,
        steps: float = 5400.0,
        gpu_model: str = "NVIDIA H200",
        **seen: Any,
    ) -> None:
        """Somebody has run a script alone to its end."""
        call = collect_call([script], self.environment, str(self.home), pack=False)
        candidate = call.candidates[0]
        observation = Observation(
            signature=compute_signature(candidate.script, candidate.job),
            family=compute_family(candidate.script, candidate.job),
            kind=compute_kind(candidate.script, candidate.job),
            name=script,
            gpu_model=gpu_model,
            gpu_uuid="GPU-1",
            source=f"{script}/1.1.1",
            at=time.time(),
            window_s=60,
            gpu_memory_total_mb=143771,
            steps_per_s=10.0,
            **seen,
        )
        assert add_observations(self.state, [observation]) == []
        done = Completion(observation.signature, gpu_model, f"{script}/1", steps)
        assert add_completions(self.state, [done]) == []

    def learn_small(self, **seen: Any) -> None:
        usual = {"sm_active": 0.1, "dram_active": 0.03, "engine_active": 0.25,
                 "gpu_memory_peak_mb": 6000.0}  # fmt: skip
        self.learn(SMALL, **{**usual, **seen})

    def learn_big(self, **seen: Any) -> None:
        usual = {"sm_active": 0.9, "dram_active": 0.5, "engine_active": 1.0,
                 "gpu_memory_peak_mb": 140000.0}  # fmt: skip
        self.learn(BIG, **{**usual, **seen})


@pytest.fixture
def node(tmp_path: Path) -> LoginNode:
    return LoginNode(tmp_path)


def test_what_the_first_run_measured_packs_the_second(node: LoginNode) -> None:
    before = node.csub("plan", "--explain", "--array=1-8", SMALL)
    assert (before.returncode, before.stderr) == (0, "")
    assert "unknown" in before.stdout
    assert "how long they hold a GPU is not known yet" in before.stdout
    node.learn_small()
    after = node.csub("plan", "--explain", "--array=1-8", SMALL)
    assert (after.returncode, after.stderr) == (0, "")
    assert "family" in after.stdout
    assert "GPU memory  #" in after.stdout
    assert "Calibration: NVIDIA H200" in after.stdout
    assert "Slurm: Job 7 to start at once" in after.stdout
    assert after.stdout.endswith("Nothing was submitted.\n")
    called = (node.home / "called").read_text().splitlines()
    assert called
    assert all("--test-only" in line for line in called)
    assert not node.state.joinpath("packs").exists()


def test_jobs_that_copy_over_pcie_share_it(tmp_path: Path) -> None:
    nodes = []
    for name, share in (("still", 0.001), ("copying", 0.5)):
        (tmp_path / name).mkdir()
        nodes.append(LoginNode(tmp_path / name))
        nodes[-1].learn_small(pcie_share=share)
    still, copying = nodes
    packs = still.plan("--array=1-4", SMALL)["packs"]
    assert [len(pack["members"]) for pack in packs] == [4]
    assert packs[0]["pcie_share"] < 0.01
    assert "PCIe" not in still.csub("plan", "--array=1-4", SMALL).stdout
    packs = copying.plan("--array=1-4", SMALL)["packs"]
    assert [len(pack["members"]) for pack in packs] == [2, 2]
    assert 0.7 < packs[0]["pcie_share"] <= 1.0
    assert packs[0]["members"][0]["pcie_share"] == packs[0]["pcie_share"] / 2
    shown = copying.csub("plan", "--explain", "--array=1-4", SMALL, COLUMNS="200").stdout
    assert "PCIe        #" in shown
    assert "--max-slowdown is 1.5" in shown


def test_jobs_that_wait_for_the_disk_are_apart_and_told_why(node: LoginNode) -> None:
    node.learn_small()
    assert [len(pack["members"]) for pack in node.plan("--array=1-2", SMALL)["packs"]] == [2]
    (record,) = list_profiles(node.state)[0]
    told = HeldUp(record.signature, record.gpu_model, 0.02, 0.05, 0.8)
    assert add_held_up(node.state, [told]) == []
    packs = node.plan("--array=1-2", SMALL)["packs"]
    assert [len(pack["members"]) for pack in packs] == [1, 1]
    shown = node.csub("plan", "--explain", "--array=1-2", SMALL, COLUMNS="200").stdout
    assert "both wait for the disk (alone for 80 % and 80 % of their time)" in shown


def test_json_has_each_member_with_its_prediction(node: LoginNode) -> None:
    node.learn_small()
    found = node.plan("--array=1-6", SMALL)
    members = [member for pack in found["packs"] for member in pack["members"]]
    assert sorted(member["number"] for member in members) == [1, 2, 3, 4, 5, 6]
    for member in members:
        assert member["known_by"] == "family"
        assert 1.0 <= member["slowdown"] <= member["max_slowdown"] == 1.5
        assert member["predicted_steps_per_s"] == pytest.approx(10.0 / member["slowdown"])
        assert member["run_s"] == 540
    assert found["figures"]["gpu_hours"] < found["figures"]["serial_gpu_hours"] == 0.9
    assert found["what_if"] is None
    assert [c["source"][:10] for c in found["calibrations"]] == ["the user's"]
    assert found["policy"]["goal"] == "throughput"


def test_every_pair_that_is_apart_has_a_reason_with_numbers(node: LoginNode) -> None:
    node.learn_small()
    node.learn_big()
    done = node.csub("plan", "--explain", "pack", SMALL, BIG, COLUMNS="90")
    assert done.returncode == 0, done.stderr
    assert "2 jobs in 2 packs" in done.stdout
    told = " ".join(done.stdout.partition("Not together:")[2].split())
    assert f"{SMALL} and {BIG}" in told
    assert "of GPU memory, 136582 MB are usable" in told
    assert max(map(len, done.stdout.splitlines())) <= 90
    (pair,) = node.plan("pack", SMALL, BIG)["not_together"]
    broken = {entry["constraint"]: entry for entry in pair["broken"]}
    assert broken["gpu_memory"]["have"] > broken["gpu_memory"]["limit"] == 136582


def test_what_if_stands_beside_the_plan(node: LoginNode) -> None:
    node.learn_small()
    found = node.plan("--what-if=degree=2,mode=timeslice", "--array=1-6", SMALL)
    assert found["what_if"]["changes"] == {"degree": "2", "mode": "timeslice"}
    assert {pack["degree"] for pack in found["what_if"]["packs"]} == {2}
    assert {pack["mode"] for pack in found["what_if"]["packs"]} == {"timeslice"}
    alone = node.plan("--what-if=mode=exclusive", "--array=1-6", SMALL)["what_if"]
    assert alone["figures"]["packs"] == 6
    assert alone["figures"]["worst_slowdown"] == 1.0
    done = node.csub("plan", "--what-if", "mode=exclusive", "--array=1-6", SMALL)
    rows = {line[:19].strip(): line[19:].split() for line in done.stdout.splitlines()}
    assert rows["packs"][-1] == "6"
    bounded = node.plan("--what-if=max-slowdown=1", "--array=1-6", SMALL)["what_if"]
    assert bounded["figures"]["worst_slowdown"] == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo=1", "there is no 'foo'"),
        ("degree", "'degree' has no value"),
        ("degree=", "'degree=' has no value"),
        (",", "has no value"),
    ],
)
def test_a_wrong_change_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageProblem, match="--what-if") as problem:
        parse_changes(text)
    assert message in str(problem.value)


@pytest.mark.parametrize("change", ["degree=0", "mode=magic", "max-slowdown=x", "gpu-mem=much",
                                    "goal=fame"])  # fmt: skip
def test_a_wrong_value_is_refused(node: LoginNode, change: str) -> None:
    done = node.csub("plan", f"--what-if={change}", "--array=1-2", SMALL)
    assert done.returncode == 2
    assert done.stderr.startswith("csub: error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("word", ["pack", "sweep", "batch"])
def test_the_name_of_a_command_may_stand_behind_options(word: str) -> None:
    assert split_command(["--explain", word, "a.sh"]) == (["--explain", "a.sh"], word)
    assert split_command(["--time", "10", word, "a.sh"]) == (["--time", "10", "a.sh"], word)
    assert split_command(["a.sh", word]) == (["a.sh", word], "")
    assert split_command(["-J", word, "a.sh"]) == (["-J", word, "a.sh"], "")


def test_a_sweep_and_a_table_are_planned_as_they_would_be_submitted(node: LoginNode) -> None:
    swept = node.csub("plan", "sweep", "--zip", SMALL, "--lr", "0.1,0.2,0.3", "--seed", "0:3")
    assert (swept.returncode, swept.stderr) == (0, "")
    assert "3 jobs" in swept.stdout
    value = json.loads(node.csub("plan", "--json", "sweep", SMALL, "--lr", "0.1,0.2").stdout)
    assert sum(len(pack["members"]) for pack in value["packs"]) == 2
    table = node.home / "jobs.csv"
    table.write_text(f"script,mem\n{SMALL},1G\n{SMALL},2G\n")
    done = node.csub("plan", "--what-if=degree=1", "batch", "jobs.csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 jobs" in done.stdout
    for words, told in (
        (("plan", "--zip", SMALL), "--zip is an option of csub sweep alone"),
        (("plan", "--resume", "sweep", SMALL, "--lr=1,2"), "--resume is an option of csub batch"),
        (("batch", "--what-if=degree=1", "jobs.csv"), "--what-if submits nothing"),
        (("plan", "batch"), "no table was given"),
        (("plan", "--snapshot=nowhere", SMALL), "--snapshot: there is no nowhere"),
    ):
        refused = node.csub(*words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert told in refused.stderr


def test_jobs_that_look_alike_are_told_once(node: LoginNode) -> None:
    done = node.csub("plan", "--array=1-400", SMALL)
    assert "400 jobs in 100 packs" in done.stdout
    assert "Packs 1-100, alike: 4 members" in done.stdout
    assert len(done.stdout.splitlines()) < 12


def test_a_submission_takes_no_what_if_and_keeps_goal_and_policy_apart(
    node: LoginNode,
) -> None:
    done = node.csub("--what-if=degree=2", SMALL)
    assert done.returncode == 2
    assert "--what-if submits nothing" in done.stderr
    (node.home / SMALL).write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n#CSUB --goal=energy\n")
    (node.home / BIG).write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n#CSUB --goal=latency\n")
    done = node.csub("plan", "pack", SMALL, BIG)
    assert done.returncode == 2
    assert f"--goal=energy ({SMALL}:3) and latency ({BIG}:3)" in done.stderr
    assert node.plan("--goal=throughput", "pack", SMALL, BIG)["policy"]["goal"] == "throughput"
    assert node.plan(SMALL)["policy"]["goal"] == "energy"


def test_a_calibration_that_is_wrong_is_named_and_ours_counts(node: LoginNode) -> None:
    node.learn_small()
    folder = node.state / "calibrations"
    (folder / "nvidia-h200.json").write_text('{"schema": 1, "modes": {}}')
    done = node.csub("plan", "--array=1-4", SMALL)
    assert done.returncode == 0
    assert "nvidia-h200.json: modes: must be an object" in done.stderr
    (calibration,) = node.plan("--array=1-4", SMALL)["calibrations"]
    assert calibration["source"] == "shipped with csub"


def test_help_needs_no_script(node: LoginNode) -> None:
    done = node.csub("plan", "--help")
    assert done.returncode == 0
    assert "--what-if=CHANGES" in done.stdout


def test_without_slurm_it_plans_too(node: LoginNode) -> None:
    node.learn_small()
    done = node.csub("plan", "--local", "--array=1-3", SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Slurm:" not in done.stdout


def test_the_queue_is_told_and_sacct_asked_once_an_hour(node: LoginNode) -> None:
    node.learn_small()
    told = node.csub("plan", "--explain", "--array=1-4", SMALL)
    assert "Queue: no estimate: Slurm keeps no accounts here" in told.stdout
    assert "Queue" not in node.csub("plan", "--array=1-4", SMALL).stdout
    line = "cpu=4,gres/gpu=1,mem=16G,node=1|60|1760000000|1760000120|None"
    (node.home / "bin" / "sacct").write_text(
        f"#!/bin/sh\necho x >>$HOME/asked\nfor i in $(seq 25); do echo '{line}'; done\n"
    )
    assert "no accounts" in str(node.plan("--array=1-4", SMALL)["queue_unknown"]), "kept"
    for path in (node.state / "waits").iterdir():
        path.unlink()
    for _ in range(2):
        found = node.plan("--array=1-4", SMALL)
        assert found["queue_unknown"] is None
        assert found["packs"][0]["queue"] == {
            "median_s": 120.0, "p90_s": 120.0, "jobs": 25, "of": "1 GPU and at most 1 h",
        }  # fmt: skip
    assert (node.home / "asked").read_text() == "x\n"
    assert "waits 2 min 00 s in the median" in node.csub("plan", "--array=1-4", SMALL).stdout


def test_a_pack_lasts_no_longer_than_its_qos_allows(node: LoginNode) -> None:
    def find_limit(*options: str) -> int:
        return int(
            node.plan(*options, "--no-pause", "--array=1-3", SMALL)["packs"][0]["time_limit_s"]
        )

    # 30 min stretched by 1.5, and a minute to start and end.
    assert find_limit("--qos=short") == 2760
    answers = (
        "case \"$*\" in *withassoc*) echo 'c|lab|lab|||normal,short|||||';; "
        "*) echo 'short|00:40:00|||||';; esac"
    )
    (node.home / "bin" / "sacctmgr").write_text(f"#!/bin/sh\n{answers}\n")
    (node.home / "bin" / "scontrol").write_text("#!/bin/sh\necho 'PartitionName=gpu QoS=N/A'\n")
    (node.home / "bin" / "scontrol").chmod(0o755)
    assert find_limit("--qos=short") == 2760, "kept for an hour"
    (node.state / "waits" / "qos.json").unlink()
    assert find_limit("--qos=short") == 2400
    assert find_limit("--qos=long") == find_limit() == 2760
    reasons = node.plan("--qos=short", "--no-pause", "--array=1-3", SMALL)["packs"][0]["reasons"]
    assert any("asks for 2400 s, which is MaxTime here" in reason for reason in reasons)


def test_each_job_has_its_own_bound(node: LoginNode) -> None:
    node.learn_small()
    script = node.home / SMALL
    for name, bound in (("calm.sh", "3"), ("strict.sh", "1")):
        text = script.read_text().replace("30:00", f"30:00\n#CSUB --max-slowdown={bound}")
        (node.home / name).write_text(text)
    found = node.plan("--profile-like=small.sh", "pack", "calm.sh", "calm.sh", "strict.sh", SMALL)
    bounds = {
        tuple(sorted(member["max_slowdown"] for member in pack["members"]))
        for pack in found["packs"]
    }
    assert bounds == {(1.5, 3.0, 3.0), (1.0,)}
    assert found["policy"]["max_slowdown"] == 1.0
    all_2 = node.plan("--max-slowdown=2", "--array=1-3", SMALL)
    assert {m["max_slowdown"] for pack in all_2["packs"] for m in pack["members"]} == {2.0}


def test_a_single_submission_never_asks_for_the_queue(node: LoginNode) -> None:
    node.learn_small()
    (node.home / "bin" / "sacct").write_text("#!/bin/sh\necho x >>$HOME/asked\n")
    (node.home / "bin" / "sbatch").write_text("#!/bin/sh\necho 4711\n")
    done = node.csub("--parsable", SMALL)
    assert (done.returncode, done.stdout) == (0, "4711\n")
    assert not (node.home / "asked").exists()


def test_what_a_run_left_is_what_the_next_plan_rests_on(node: LoginNode) -> None:
    # As the runner leaves it behind on the node.
    assert learn_from_pack(make_pack(node.state, [Truth(1, 0, 100, lambda _: 20)])) == []
    (record,), _ = list_profiles(node.state)
    (node.home / "train.sh").write_text("#!/bin/sh\npython train.py 1\n")
    found = node.plan(
        "--gres=gpu:1", "--time=30:00", "--max-slowdown=2", "pack", "train.sh", "train.sh"
    )
    (pack,) = found["packs"]
    assert pack["known"]
    assert pack["degree"] == 2
    for member in pack["members"]:
        assert member["known_by"] == "exact"
        assert member["solo_steps_per_s"] == pytest.approx(20, rel=0.02)
        assert member["run_s"] == pytest.approx(record.run_s)
        assert 1 <= member["slowdown"] <= 2
