"""Members by selectors and filters, everywhere an id is taken; and what has ended."""

from __future__ import annotations

import json

from ..bed import CsubUser

GO = "while [ ! -e go ]; do sleep 0.1; done"


def names(user: CsubUser, *arguments: str) -> list[str]:
    """The members that a command's JSON names."""
    return [row["member"] for row in json.loads(user.csub(*arguments, "--json").stdout)]


def test_members_are_selected_by_numbers_ranges_and_names(user: CsubUser) -> None:
    user.script("go.sh", GO)
    held = user.submit(
        "--array=0-5", "--gres=gpu:1", "--degree=3", "--hold", "-J", "sweep", "go.sh"
    )
    other = user.submit("--hold", "-J", "eval", "go.sh")
    whole = [f"{held}/{number}" for number in range(6)]
    assert names(user, "queue", held) == whole
    assert names(user, "queue", f"{held}/2-4") == whole[2:5]
    assert names(user, "queue", f"{held}/0,3-9") == [whole[0], *whole[3:]]
    assert names(user, "queue", f"{held}/1", other) == [whole[1], f"{other}/1"]
    assert names(user, "queue", "last") == names(user, "queue", "last/1") == [f"{other}/1"]
    assert names(user, "queue", "all") == names(user, "queue") == [*whole, f"{other}/1"]
    assert names(user, "queue", "--name", "ev*") == [f"{other}/1"]
    assert names(user, "queue", "--state", "pd", "--name=sweep") == whole
    assert names(user, "queue", "--state=RUNNING") == []
    assert names(user, "show", "--name=eval", "all") == [f"{other}/1"]
    assert names(user, "why", f"{held}/5") == [whole[5]]
    shown = user.csub("show", f"{held}/1-2").stdout
    assert shown.count("Member ") == 2
    missing = user.csub("queue", f"{held}/7-9", check=False)
    assert missing.returncode == 7
    assert f"job {held} has no members 7-9" in missing.stderr
    user.csub("cancel", f"{held}/1-2,5")
    rows = user.members(held)
    assert [n for n, row in rows.items() if row["state"] == "CANCELLED"] == [1, 2, 5]
    user.csub("cancel", "--name=eval")
    user.wait_for_states(other, "CANCELLED")
    user.csub("cancel", "all")
    user.wait_for_states(held, "CANCELLED")
    nothing = user.csub("cancel", "--state=PENDING")
    assert "no member matches all --state=PENDING" in nothing.stderr


def test_all_are_those_that_had_not_ended_when_the_wait_began(user: CsubUser) -> None:
    user.script("quick.sh", "sleep 1; exit $1")
    job_id = user.submit("pack", "--gres=gpu:1", "quick.sh 0", "quick.sh 3")
    assert user.run(["csub", "wait", "all"], check=False).returncode == 3
    assert user.csub("wait", "all").stdout == ""
    assert user.run(["csub", "wait", f"{job_id}/1", "last/2"], check=False).returncode == 3


def test_a_command_without_a_member_says_so(user: CsubUser) -> None:
    for command in ("cancel", "wait", "logs", "show"):
        told = user.csub(command, check=False)
        assert told.returncode == 2
        assert "name members to act on" in told.stderr
    assert user.csub("show", "last", check=False).returncode == 7


def test_an_explicit_name_follows_a_member_that_was_submitted_again(user: CsubUser) -> None:
    user.script("go.sh", "exit 0")
    old = user.submit("pack", "--gres=gpu:1", "--hold", "go.sh", "go.sh")
    new = user.submit("pack", "--gres=gpu:1", "--hold", "-J", "new", "go.sh", "go.sh")
    packs = {path.name: path for path in (user.state / "packs").iterdir()}
    by_job = {(path / "slurm_job_id").read_text().strip(): path for path in packs.values()}
    note = {"schema": 1, "pack_id": by_job[new].name, "number": 2}
    (by_job[old] / "members" / "0002" / "moved.json").write_text(json.dumps(note))
    assert user.members(old)[2]["state"] == "REQUEUED"
    followed = user.csub("queue", "--json", f"{old}/2")
    assert [row["member"] for row in json.loads(followed.stdout)] == [f"{new}/2"]
    assert f"{old}/2 was submitted again as {new}/2" in followed.stderr
    told = user.csub("why", "--json", "--state=REQUEUED", "all", check=False)
    assert json.loads(told.stdout) == []
    user.csub("cancel", old)
    assert user.members(old)[1]["state"] == "CANCELLED"
    assert user.members(new)[2]["state"] == "CANCELLED"
    assert user.members(new)[1]["state"] == "PENDING"
    user.csub("cancel", new)


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
    # Of one that never started it is known at once by when, and exactly once Slurm has told.
    assert rows[0]["ended_at"] in (None, rows[0]["ended_by"])
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
    assert table[2].split()[:4] == [f"{second}/1", "late", "COMPLETED", "0:0"]
    bad = user.csub("history", "--since=soon", check=False)
    assert bad.returncode == 2
    assert "--since: 'soon' is not an age" in bad.stderr
    # The state alone tells it: no Slurm is asked where nothing is open.
    user.csub("cancel", waiting)
    user.wait_for_states(waiting, "CANCELLED")
    alone = user.run(["csub", "history"], environment={"SLURM_CONF": "/nonexistent"}, check=False)
    assert alone.returncode == 0, alone.stderr
    assert len(alone.stdout.splitlines()) == 6
