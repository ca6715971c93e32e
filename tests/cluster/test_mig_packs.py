"""Packs on MIG instances that root's prolog makes and its epilog takes away, on a real Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from slurm_colloc.host.hooks.recover_jobs import STARTING_S
from slurm_colloc.host.system.node_processes import identify
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.simgpu.install import simulation_environment

from ..bed import CsubUser, administrate, wait_until_quiet
from ..signalling import send_signal
from ..wait_until import wait_until
from .hooks import run_directory, wait_for_epilog
from .mig_user import OPTIONS, cluster_with_mig, policy_of, user_with_script
from .mps import Untouched, explained, list_processes, pack_directory, runner_pid
from .test_hook_kills import find_hook

pytestmark = [pytest.mark.slurm, pytest.mark.root]

LAYOUT = "--share=mig=3g+2g+1g+1g"
BEGIN = 'echo "device=$CUDA_VISIBLE_DEVICES"'
ANOTHER_BOOT = "00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    with cluster_with_mig() as sandbox:
        yield sandbox


@pytest.fixture
def user(cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_with_script(cluster, accounts, BEGIN) as somebody:
        yield somebody


def submit(user: CsubUser, share: str = LAYOUT, tasks: str = "1-4", *more: str) -> str:
    return user.submit(share, *OPTIONS, *more, f"--array={tasks}", "train.sh")


def wait_for_instances(user: CsubUser, job_id: str, *numbers: int) -> dict[int, str]:
    """Wait until members run on instances; which each has."""
    rows = user.wait_for_states(job_id, dict.fromkeys(numbers, "RUNNING"))

    def told() -> bool:
        return all("device=" in user.output(f"slurm-{job_id}_{n}.out") for n in numbers)

    wait_until(told, "the members' own words")
    found = {}
    for number in numbers:
        (uuid,) = rows[number]["gpu_uuids"]
        assert user.output(f"slurm-{job_id}_{number}.out").startswith(f"device={uuid}\n")
        found[number] = uuid
    return found


@pytest.mark.smoke
def test_a_pack_runs_from_csub_to_the_report_each_member_on_its_own_instance(
    user: CsubUser,
) -> None:
    untouched = Untouched(user)
    planned = user.csub("plan", LAYOUT, *OPTIONS, "--array=1-4", "train.sh").stdout
    assert "|   1g   |   1g   |        2g       |                 3g                |" in planned
    job_id = submit(user)
    with explained(user, job_id):
        instances = wait_for_instances(user, job_id, 1, 2, 3, 4)
        assert len(set(instances.values())) == 4
        assert all(uuid.startswith("MIG-") for uuid in instances.values())
        rows = user.members(job_id)
        assert [rows[n]["mig_instance"] for n in (1, 2, 3, 4)] == [
            "3g.40gb",
            "2g.20gb",
            "1g.10gb",
            "1g.10gb",
        ]
        shown = user.csub("show", job_id).stdout
        assert "Sharing:  mig, 4 at the same time (the node has cut the GPU" in shown
        assert f"3g.40gb {instances[1]} (40448 MB, 60 SMs): {job_id}/1" in shown
        inner = user.csub("show", f"{job_id}/2").stdout
        assert f"mig, 2g.20gb {instances[2]}" in inner
        latest = pack_directory(user, job_id) / "latest.json"

        def seen() -> bool:
            gpus = json.loads(latest.read_text())["gpus"] if latest.exists() else {}
            return all((gpus.get(u) or {}).get("sm_active") for u in instances.values())

        wait_until(seen, "the monitor's figures of each instance")
        (user.home / "end").touch()
        assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}
        wait_until(lambda: user.csub("report", "--json", job_id, check=False).stdout, "the report")
        report = user.csub("report", job_id).stdout
        assert "3g.40gb" in report
        detail = user.csub("report", "--detail", job_id).stdout
        assert "nothing tells that of a MIG instance" in " ".join(detail.split())
        (summary,) = json.loads(user.csub("report", "--json", job_id).stdout)
        for member in summary["members"]:
            assert member["mig"]["uuid"] == instances[member["member"]]
            assert member["mig"]["gpu_memory_peak_mb"] > 0
            assert member["mig"]["sm_active"] > 0
            assert member["sm_share"]["attribution"] == "exact"
        wait_for_epilog(user.sandbox, job_id)
        untouched.check()


def test_the_gpu_is_as_before_after_scancel(user: CsubUser) -> None:
    untouched = Untouched(user)
    job_id = submit(user)
    with explained(user, job_id):
        wait_for_instances(user, job_id, 1, 2, 3, 4)
        user.run(["scancel", job_id])
        wait_for_epilog(user.sandbox, job_id)
        untouched.check()


def member_pid(user: CsubUser, job_id: str, number: int) -> int:
    """The script of a member that runs."""
    folder = pack_directory(user, job_id) / "members" / f"{number:04d}"
    (started,) = folder.glob("run.*.started")
    return int(json.loads(started.read_text())["pid"])


@pytest.mark.parametrize("part", ["runner", "member", "slurmd"])
def test_the_gpu_is_as_before_after_kill_9_of(user: CsubUser, part: str) -> None:
    untouched = Untouched(user)
    job_id = submit(user)
    with explained(user, job_id):
        wait_for_instances(user, job_id, 1, 2, 3, 4)
        if part == "slurmd":
            node = user.sandbox.node_names[0]
            user.sandbox.kill_node(node)
            user.sandbox.start_node(node)
        else:
            pid = runner_pid(user, job_id) if part == "runner" else member_pid(user, job_id, 2)
            assert pid
            known = identify(pid)
            assert known is not None
            assert send_signal(known, signal.SIGKILL)
        (user.home / "end").touch()
        user.finish(job_id)
        wait_for_epilog(user.sandbox, job_id)
        untouched.check()


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_the_gpu_is_as_before_once_a_hook_was_killed(user: CsubUser, hook: str) -> None:
    untouched = Untouched(user)
    job_id = submit(user)
    with explained(user, job_id):
        if hook == "epilog":
            wait_for_instances(user, job_id, 1, 2, 3, 4)
            (user.home / "end").touch()
        pid = wait_until(lambda: find_hook(user.sandbox, hook), f"the {hook}")
        known = identify(pid)
        if known is not None:
            send_signal(known, signal.SIGKILL)
        (user.home / "end").touch()
        user.run(["scancel", job_id], check=False)
        wait_until_quiet(user)
        # What a hook was killed at is Slurm's to say: the node is resumed by its administrator.
        change_checkpoints(user.sandbox, made_at=time.time() - 2 * STARTING_S)
        resume_node(user)
        (user.home / "end").unlink()
        # The next job's hooks undo what is left, and find the GPU as it was.
        after = submit(user)
        wait_for_instances(user, after, 1, 2, 3, 4)
        (user.home / "end").touch()
        user.finish(after)
        wait_for_epilog(user.sandbox, after)
        untouched.check()


@pytest.mark.parametrize(
    ("policy", "boot"),
    [("where-on", ANOTHER_BOOT), ("switch", ANOTHER_BOOT), ("switch", "")],
    ids=["by the site", "by csub", "of the driver alone"],
)
def test_the_gpu_is_as_before_after_a_reboot(user: CsubUser, policy: str, boot: str) -> None:
    untouched = Untouched(user)
    node = user.sandbox.node_names[0]
    with policy_of(user.sandbox, f'mig = "{policy}"', instead_of='mig = "switch"'):
        job_id = submit(user)
        with explained(user, job_id):
            wait_for_instances(user, job_id, 1, 2, 3, 4)
            user.sandbox.kill_node(node, jobs=True)
            wait_until(lambda: not list_processes(user), "the end of all of its processes")
            simgpu(user, "reboot")
            if policy == "where-on":
                # Else root's hooks do it: the administrator's own boot script.
                simgpu(user, "mig", "on")
            change_checkpoints(user.sandbox, made_at=time.time() - 2 * STARTING_S)
            if boot:
                change_checkpoints(user.sandbox, boot=boot)
                for path in (user.sandbox.layout.hooks / "state" / "mig_on").iterdir():
                    path.write_text(json.dumps({"schema": 1, "boot": boot}))
            user.sandbox.start_node(node)
            resume_node(user)
            user.run(["scancel", job_id], check=False)
            wait_until_quiet(user)
            (user.home / "end").touch()
            after = submit(user)
            user.finish(after)
            wait_for_epilog(user.sandbox, after)
            untouched.check()


def simgpu(user: CsubUser, *words: str) -> None:
    """What the simulation's owner does on the node."""
    subprocess.run(
        [str(user.sandbox.layout.simgpu / "bin" / "simgpu"), *words],
        env={
            **os.environ,
            **simulation_environment(user.sandbox.layout.simgpu),
            "SLURMD_NODENAME": user.sandbox.node_names[0],
        },
        check=True,
    )


def change_checkpoints(cluster: Sandbox, **changes: object) -> None:
    """Let what is left of jobs be older, or of another boot, than a test has time for."""
    for path in (run_directory(cluster) / "jobs").glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def resume_node(user: CsubUser) -> None:
    """As an administrator does who has looked."""
    node = user.sandbox.node_names[0]

    def is_up() -> bool:
        text = user.run(["sinfo", "-h", "-o", "%t"], check=False).stdout.split()
        if text and text[0].rstrip("*") in ("idle", "mix", "alloc"):
            return "*" not in text[0]
        administrate(user, "scontrol", "update", f"nodename={node}", "state=resume", check=False)
        return False

    wait_until(is_up, "a node that takes jobs")
