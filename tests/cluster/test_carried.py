"""Where login and compute nodes share no path, packs travel in their batch script."""

from __future__ import annotations

import pytest

from .conftest import CsubUser

pytestmark = pytest.mark.slurm


def test_a_carried_pack_runs_without_the_state_directory(user: CsubUser) -> None:
    config = user.home / ".config" / "slurm_colloc"
    user.run(["mkdir", "-p", str(config)])
    (config / "settings.toml").write_text("state_shared = false\n")
    user.script("good.sh", 'echo "secret is $SECRET"')
    user.script("bad.sh", "exit 3")
    user.extra["SECRET"] = "hunter2"
    job_id = user.submit("pack", "--gres=gpu:1", "--mem=200M", "good.sh", "bad.sh")
    # What a member needs is in the batch script alone.
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
