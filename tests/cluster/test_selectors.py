"""Members by selectors and filters, everywhere an id is taken; and what has ended."""

from __future__ import annotations

import json

import pytest

from .conftest import CsubUser

pytestmark = pytest.mark.slurm


def names(user: CsubUser, *arguments: str) -> list[str]:
    """The members that a command's JSON names."""
    return [row["member"] for row in json.loads(user.csub(*arguments, "--json").stdout)]


@pytest.mark.smoke
def test_history_shows_what_has_ended_newest_first(user: CsubUser) -> None:
    user.script("end.sh", "exit $1")
    first = user.submit("pack", "--gres=gpu:1", "-J", "early", "end.sh 0", "end.sh 3")
    user.finish(first)
    second = user.submit("--gres=gpu:1", "-J", "late", "end.sh", "0")
    user.finish(second)
    never = user.submit("--hold", "end.sh", "0")
    user.csub("cancel", never)
    user.wait_for_states(never, "CANCELLED")
    waiting = user.submit("--hold", "end.sh", "0")
    rows = json.loads(user.csub("history", "--json").stdout)
    assert [row["member"] for row in rows][:2] == [f"{never}/1", f"{second}/1"]
    assert {row["member"] for row in rows[2:]} == {f"{first}/1", f"{first}/2"}
    assert [row["ended_by"] for row in rows] == sorted(
        (row["ended_by"] for row in rows), reverse=True
    )
    assert rows[0]["ended_at"] is None
    assert rows[1]["ended_at"] == rows[1]["ended_by"]
    assert names(user, "history", "--state=FAILED") == [f"{first}/2"]
    assert names(user, "history", "--name=late") == [f"{second}/1"]
    assert names(user, "history", f"{first}/1") == [f"{first}/1"]
    assert names(user, "history", "--since=0s") == []
    table = user.csub("history").stdout.splitlines()
    assert table[0].split() == [
        *("MEMBER", "NAME", "STATE", "EXIT", "MODE", "NODE", "TIME", "ENDED", "ARGS")
    ]
    assert len(table) == 5
    assert table[1].split()[:3] == [f"{never}/1", "end.sh", "CANCELLED"]
    assert "by " in table[1]
    assert table[2].split()[:4] == [f"{second}/1", "late", "COMPLETED", "0:0"]
    bad = user.csub("history", "--since=soon", check=False)
    assert bad.returncode == 2
    assert "--since: 'soon' is no age" in bad.stderr
    # The state alone tells it: no Slurm is asked where nothing is open.
    user.csub("cancel", waiting)
    user.wait_for_states(waiting, "CANCELLED")
    alone = user.run(["csub", "history"], environment={"SLURM_CONF": "/nonexistent"}, check=False)
    assert alone.returncode == 0, alone.stderr
    assert len(alone.stdout.splitlines()) == 6
