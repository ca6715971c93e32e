"""Settings that change between a submission and the start of its pack."""

from __future__ import annotations

from ..bed import CsubUser
from ..wait_until import wait_until

PACK = ("--gres=gpu:1", "--degree=2", "--time=5")


def write_settings(user: CsubUser, text: str) -> None:
    path = user.home / ".config" / "slurm_colloc" / "settings.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_slip_in_the_settings_fails_no_pack_that_waits(user: CsubUser) -> None:
    user.script("ok.sh", "exit 0")
    job_id = user.submit("pack", *PACK, "--hold", "ok.sh", "ok.sh")
    write_settings(user, "launchr = 'srun'\nslowdown_bound = nan\n")
    assert user.csub("queue", check=False).returncode == 2, "a login node still refuses it"
    user.run(["scontrol", "release", job_id])
    wait_until(
        lambda: not user.run(["squeue", "-h", "-j", job_id], check=False).stdout.strip(),
        "the pack has ended",
    )
    write_settings(user, "")
    assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}
    [log] = (user.state / "packs").glob("*/pack.log")
    warnings = [line for line in log.read_text().splitlines() if "warning" in line]
    assert ["'launchr'" in warnings[0], "slowdown_bound = nan" in warnings[1]] == [True, True]
    assert "not used on the node: " in user.csub("show", job_id).stdout


def test_a_pack_goes_by_what_was_set_when_it_was_submitted(user: CsubUser) -> None:
    write_settings(user, "instrument = false\n")
    user.script("env.sh", "env > env.$1")
    job_id = user.submit("pack", *PACK, "--hold", "env.sh 1", "env.sh 2")
    write_settings(user, "kill_wait_s = 7\n")
    user.run(["scontrol", "release", job_id])
    assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}
    assert "SLURM_COLLOC_PROGRESS" not in user.output("env.1")
