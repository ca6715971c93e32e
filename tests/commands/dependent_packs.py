"""Packs that wait for a file each, and what Slurm shows of those that depend on them."""

from __future__ import annotations

from ..bed import CsubUser
from ..wait_until import wait_until

GO = "echo $$ > ran.$1; while [ ! -e go.$1 ]; do sleep 0.1; done; exit ${2:-0}"

PACK = ("--gres=gpu:1", "--time=5")


def read_slurm(user: CsubUser, job_id: str) -> str:
    """State, reason and dependency that Slurm itself shows."""
    return user.run(["squeue", "-h", "--states=all", "-o", "%T %r %E", "-j", job_id]).stdout.strip()


def wait_for_slurm(user: CsubUser, job_id: str, shown: str) -> None:
    wait_until(lambda: read_slurm(user, job_id) == shown, f"Slurm shows {shown} of {job_id}")


def start_pack(user: CsubUser, *words: str) -> str:
    user.script("go.sh", GO)
    user.script("next.sh", "echo $$ > ran.next.$1")
    job_id = user.submit("pack", *PACK, *words)
    user.wait_for_states(job_id, "RUNNING")
    return job_id
