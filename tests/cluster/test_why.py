"""`csub why` and `csub explain`, asked of real members."""

from __future__ import annotations

import re

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

GO = "while [ ! -e go ]; do sleep 0.1; done"


def why(user: CsubUser, member: str, *, check: bool = True) -> str:
    told = user.csub("why", member, check=check).stdout
    assert told.count("\n") == 1
    return told


@pytest.mark.smoke
def test_why_a_member_waits_for_slurm(user: CsubUser) -> None:
    user.script("go.sh", GO)
    held = user.submit("pack", "--gres=gpu:1", "--hold", "go.sh", "go.sh")
    assert why(user, f"{held}/1").startswith(
        f"{held}/1 PENDING: held; csub release {held} lets it go on"
    )
    later = user.submit("--begin=now+1hour", "go.sh")
    wait_until(lambda: "may begin" in why(user, f"{later}/1"), "Slurm tells when it may begin")
    assert re.search(
        r"PENDING: may begin at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", why(user, f"{later}/1")
    )
    after = user.submit(f"--dependency=afterok:{held}", "go.sh")
    wait_until(
        lambda: f"waits for afterok:{held}" in why(user, f"{after}/1"), "Slurm sees the dependency"
    )
    of_member = user.submit(f"--dependency=afterok:{held}/2", "--gres=gpu:1", "go.sh")
    wait_until(
        lambda: f"waits for afterok:{held}/2 (Dependency)" in why(user, f"{of_member}/1"),
        "csub names the member that Slurm does not know",
    )
    huge = user.submit("--exclusive", "--nodes=2", "--begin=now", "go.sh")
    blocker = user.submit("--gres=gpu:1", "--time=10", "go.sh")
    user.csub("cancel", huge)
    user.wait_for_states(blocker, "RUNNING")
    waiting = user.submit("--nodes=2", "--exclusive", "--time=5", "go.sh")
    wait_until(lambda: "(Resources)" in why(user, f"{waiting}/1"), "Slurm gives the reason")
    told = why(user, f"{waiting}/1")
    assert "on a node of partition gpu to become free (Resources)" in told
    assert "Slurm expects to start it at" in told or "has not planned its start yet" in told
    explained = user.csub("explain", f"{held}/2").stdout
    for words in (f"{held}/2 PENDING", "Means:", "It is held", f"csub release {held}/2"):
        assert words in explained
    user.csub("cancel", "all")
    assert "it never started" in why(user, f"{held}/1")
