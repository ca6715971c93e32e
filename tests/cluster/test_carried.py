"""Where login and compute nodes share no path, packs travel in their batch script."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from slurm_colloc.host.system.node_processes import list_processes, read_uid

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import kill, read_parent

pytestmark = pytest.mark.slurm


@pytest.mark.smoke
def test_a_carried_pack_runs_without_the_state_directory(user: CsubUser) -> None:
    config = user.home / ".config" / "slurm_colloc"
    user.run(["mkdir", "-p", str(config)])
    (config / "settings.toml").write_text("state_shared = false\n")
    user.script("good.sh", 'echo "secret is $SECRET"')
    user.script("bad.sh", "exit 3")
    user.extra["SECRET"] = "hunter2"
    job_id = user.submit("pack", "--gres=gpu:1", "--mem=200M", "good.sh", "bad.sh")
    # What a member needs is with Slurm alone.
    for spec in user.state.glob("packs/*/members/*/script"):
        spec.unlink()
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["FAILED", "FAILED"]
    assert "secret is hunter2" in user.output(f"slurm-{job_id}_1.out")
    log = user.output(f"csub-{job_id}.log")
    assert "member 1 good.sh COMPLETED 0:0" in log
    assert "member 2 bad.sh FAILED 3:0" in log
    left = [path for path in user.state.rglob("*") if path.is_file() and path.name == "env"]
    assert left == []


def test_a_carried_pack_whose_members_all_succeed_is_completed(user: CsubUser) -> None:
    config = user.home / ".config" / "slurm_colloc"
    user.run(["mkdir", "-p", str(config)])
    (config / "settings.toml").write_text("state_shared = false\n")
    user.script("good.sh", "exit 0")
    job_id = user.submit("--array=0-4", "--gres=gpu:1", "--mem=200M", "good.sh")
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}


def test_with_another_export_environments_travel_all_the_same(user: CsubUser) -> None:
    config = user.home / ".config" / "slurm_colloc"
    user.run(["mkdir", "-p", str(config)])
    (config / "settings.toml").write_text("state_shared = false\n")
    user.script("good.sh", 'echo "secret is $SECRET"; env | grep -c CARRIED')
    job_id = user.submit(
        "pack", "--gres=gpu:1", "--mem=200M", "--export=NONE,SECRET=hunter2", "good.sh", "good.sh"
    )
    user.finish(job_id)
    for number in (1, 2):
        assert user.output(f"slurm-{job_id}_{number}.out") == "secret is hunter2\n0\n"
    assert "hunter2" not in user.run(["scontrol", "write", "batch_script", job_id, "-"]).stdout


def test_a_carried_pack_whose_runner_is_killed_is_not_requeued(user: CsubUser) -> None:
    """What its members have done is known on the node alone, so all of them would run again."""
    config = user.home / ".config" / "slurm_colloc"
    user.run(["mkdir", "-p", str(config)])
    (config / "settings.toml").write_text("state_shared = false\n")
    user.script("work.sh", "echo up; sleep 300")
    job_id = user.submit("pack", "--requeue", "--gres=gpu:1", "--mem=200M", "work.sh", "work.sh")
    for number in (1, 2):
        name = f"slurm-{job_id}_{number}.out"
        wait_until(lambda name=name: "up" in user.output(name), f"{name} is written")  # type: ignore[misc]
    found = find_runtime(user)
    [runner] = [pid for pid in found if read_parent(pid) in found]
    kill(runner)
    try:
        user.wait_for_states(job_id, "FAILED")
        shown = user.run(["scontrol", "show", "job", job_id]).stdout
        assert "Restarts=0" in shown
        assert "Requeue=1" in shown
    finally:
        shutil.rmtree(found[runner].parents[1], ignore_errors=True)


def find_runtime(user: CsubUser) -> dict[int, Path]:
    """Processes of the user that run a carried pack, and where it lies on the node."""
    found = {}
    for process in list_processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process.id.pid}/cmdline").read_text().split("\0")
            if "slurm_colloc.runtime" in words and read_uid(process.id.pid) == user.uid:
                path = Path(words[words.index("slurm_colloc.runtime") + 1])
                if path.parents[1].name.startswith("csub-pack."):
                    found[process.id.pid] = path
    return found
