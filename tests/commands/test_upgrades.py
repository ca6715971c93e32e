"""Packs that are under way while csub is upgraded, or taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..bed import CsubUser

GO = "echo start >> ran.$1; while [ ! -e go.$1 ]; do sleep 0.1; done"
PACK = ("--gres=gpu:1", "--degree=2", "--pack-size=3", "--time=5", "--requeue")


def make_newer(value: Any) -> Any:
    """The record as a csub of tomorrow would have written it."""
    if isinstance(value, dict):
        newer = {name: make_newer(item) for name, item in value.items()}
        return {**newer, "of_tomorrow": {"deep": [1, None]}}
    return [make_newer(item) for item in value] if isinstance(value, list) else value


def rewrite(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(make_newer({**json.loads(path.read_text()), **changes})))


def list_objects(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file of the state, of one with lines those of each line."""
    try:
        text = path.read_text(encoding="utf-8")
        values = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return []
    return [value for value in values if isinstance(value, dict)]


def find_pack(user: CsubUser) -> Path:
    [pack] = (user.state / "packs").iterdir()
    return pack


def test_a_pack_whose_node_was_upgraded_first_is_shown_and_ends_as_ever(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    for path in find_pack(user).rglob("*.json"):
        if path.parent.name != "report":
            rewrite(path)
    shown = user.csub("queue")
    assert shown.stderr == ""
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == [
        f"{job_id}/1", f"{job_id}/2", f"{job_id}/3",
    ]  # fmt: skip
    user.run(["touch", "go.1", "go.2", "go.3"])
    assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}


def test_a_runner_that_was_taken_back_goes_on_with_what_a_newer_one_has_written(
    user: CsubUser,
) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    user.run(["touch", "go.1"])
    user.wait_for_states(job_id, {1: "COMPLETED", 2: "RUNNING", 3: "RUNNING"})
    members = find_pack(user) / "members"
    rewrite(find_pack(user) / "pack.json")
    for number in ("0001", "0002", "0003"):
        rewrite(members / number / "spec.json")
    # States that only a newer csub knows: one that has ended, and one that has not.
    rewrite(members / "0001" / "state.1.json", state="CHECKPOINTED", cause="of_tomorrow")
    rewrite(members / "0002" / "state.1.json", state="PARKED")
    rows = user.members(job_id)
    assert [rows[number]["state"] for number in (1, 2)] == ["CHECKPOINTED", "PARKED"]
    user.csub("why", f"{job_id}/1")
    user.run(["scontrol", "requeue", job_id])
    user.run(["touch", "go.2", "go.3"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["CHECKPOINTED", "COMPLETED", "COMPLETED"]
    assert user.output("ran.1") == "start\n"


def test_one_damaged_record_is_told_and_hides_no_neighbour(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    path = find_pack(user) / "members" / "0002" / "state.1.json"
    before = path.read_text()
    path.write_text('{"schema": 1, "state": ')
    shown = user.csub("queue", check=False)
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == [
        f"{job_id}/1", f"{job_id}/3",
    ]  # fmt: skip
    assert f"{path} is damaged" in shown.stderr
    assert shown.returncode == 6
    path.write_text(before)
    user.run(["touch", "go.1", "go.2", "go.3"])
    user.finish(job_id)


def test_every_record_of_the_state_says_its_version(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", *PACK, "go.sh 1", "go.sh 2", "go.sh 3")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    found = {path: list_objects(path) for path in user.state.rglob("*") if path.is_file()}
    user.run(["touch", "go.1", "go.2", "go.3"])
    user.finish(job_id)
    found |= {path: list_objects(path) for path in user.state.rglob("*") if path.is_file()}
    names = {path.name for path, objects in found.items() if objects}
    assert {
        "pack.json", "spec.json", "state.1.json", "run.1.1.started", "run.1.1.exit",
        "runner.json",
    } <= names  # fmt: skip
    # A log for people has none.
    assert [
        str(path)
        for path, objects in found.items()
        if path.name != "events.jsonl" and not all("schema" in each for each in objects)
    ] == []
