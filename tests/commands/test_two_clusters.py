"""One home that two clusters share, whose slurm.conf lies where Slurm's programs alone look."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm

FOREVER = "while :; do sleep 0.1; done"


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[tuple[FakeSlurm, FakeSlurm]]:
    found = []
    for name in ("north", "South"):
        (tmp_path / name).mkdir()
        found.append(FakeSlurm(tmp_path / name, name, in_site_prefix=True))
    yield found[0], found[1]
    for fake in found:
        fake.close()


@pytest.fixture
def users(tmp_path: Path, clusters: tuple[FakeSlurm, FakeSlurm]) -> tuple[CsubUser, CsubUser]:
    """The same person on a login node of each cluster."""
    home = tmp_path / "home"
    home.mkdir()
    name, uid, gid = pwd.getpwuid(os.geteuid()).pw_name, os.geteuid(), os.getegid()
    north = CsubUser(name, uid, gid, home, cast(Sandbox, clusters[0]))
    return north, dataclasses.replace(north, sandbox=cast(Sandbox, clusters[1]))


def count_questions(fake: FakeSlurm) -> int:
    return fake.list_all_calls().count(["scontrol", "show", "config"])


def read_records(user: CsubUser) -> dict[str, dict[str, object]]:
    paths = (user.state / "packs").glob("*/pack.json")
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def test_each_cluster_sees_its_own_job_by_an_id_that_both_have_given(
    users: tuple[CsubUser, CsubUser],
) -> None:
    north, south = users
    north.script("go.sh", FOREVER)
    jobs = [
        user.submit("--gres=gpu:1", f"--job-name=j{n}", "go.sh") for n, user in enumerate(users)
    ]
    assert jobs[0] == jobs[1]
    assert {record["cluster"] for record in read_records(north).values()} == {"north", "south"}
    for number, user in enumerate(users):
        [row] = user.wait_for_states(jobs[0], "RUNNING").values()
        assert row["name"] == f"j{number}"
    south.csub("cancel", jobs[0])
    south.wait_for_states(jobs[0], "CANCELLED")
    assert north.members(jobs[0])[1]["state"] == "RUNNING"
    # No sweep of the other cluster has settled it, or fenced its runner.
    north.csub("cancel", jobs[0])
    north.wait_for_states(jobs[0], "CANCELLED")


def test_a_pack_of_the_other_cluster_is_neither_settled_nor_dropped(
    users: tuple[CsubUser, CsubUser],
) -> None:
    north, south = users
    north.script("go.sh", FOREVER)
    # Ids that only the other cluster knows, pending and running.
    jobs = [north.submit("--gres=gpu:1", *more, "go.sh") for more in ((), ("--hold",))]
    north.wait_for_states(jobs[0], "RUNNING")
    before = {path: path.read_bytes() for path in (north.state / "packs").rglob("*.json")
              if path.parent.name != "report" and path.name != "latest.json"}  # fmt: skip
    for command in (("queue",), ("cancel", "all"), ("clean", "--older-than=0s")):
        south.csub(*command)
    assert all(path.read_bytes() == data for path, data in before.items())
    assert south.csub("cancel", jobs[0], check=False).returncode == 7
    assert north.members(jobs[0])[1]["state"] == "RUNNING"
    north.csub("cancel", *jobs)


def test_slurm_is_asked_for_the_name_once_an_hour(
    users: tuple[CsubUser, CsubUser], clusters: tuple[FakeSlurm, FakeSlurm]
) -> None:
    north, _ = users
    for _ in range(3):
        north.csub("queue")
    assert count_questions(clusters[0]) == 1
    [kept] = (north.state / "waits").glob("cluster-of-*.json")
    value = json.loads(kept.read_text())
    kept.write_text(json.dumps({**value, "made_at": value["made_at"] - 3700}))
    north.csub("queue")
    assert count_questions(clusters[0]) == 2
    # Where the controller is away, what it said before still holds.
    value = json.loads(kept.read_text())
    kept.write_text(json.dumps({**value, "made_at": value["made_at"] - 3700}))
    clusters[0].stop_controller()
    north.csub("queue")
    clusters[0].start_controller()
    assert json.loads(kept.read_text())["answer"] == {"name": "north"}


def test_while_it_is_not_known_which_cluster_this_is_nothing_is_settled_or_ended(
    users: tuple[CsubUser, CsubUser], clusters: tuple[FakeSlurm, FakeSlurm]
) -> None:
    north, _ = users
    north.script("go.sh", FOREVER)
    job_id = north.submit("--gres=gpu:1", "go.sh")
    north.wait_for_states(job_id, "RUNNING")
    [kept] = (north.state / "waits").glob("cluster-of-*.json")
    kept.unlink()
    # The cluster was not known when it was submitted, and is not now.
    [(pack_id, record)] = read_records(north).items()
    path = north.state / "packs" / pack_id / "pack.json"
    path.write_text(json.dumps({**record, "cluster": ""}))
    north.index(job_id).rename(north.state / "jobs" / f"{job_id}.json")
    away = north.home / "bin"
    away.mkdir()
    (away / "scontrol").write_text(
        f'#!/bin/sh\n[ "$*" != "show config" ] || exit 1\nexec {north.find("scontrol")} "$@"\n'
    )
    (away / "scontrol").chmod(0o755)
    blind = dataclasses.replace(north, extra={"PATH": f"{away}:{north.environment['PATH']}"})
    calls = len(clusters[0].list_all_calls())
    sentence = (
        f"csub: error: {job_id}: cannot find out which cluster this is: nothing was changed; "
        "try again when scontrol show config answers here\n"
    )
    for command in ("cancel", "requeue", "hold"):
        refused = blind.csub(command, job_id, check=False)
        assert (refused.returncode, refused.stderr) == (4, sentence)
    asked = {tuple(call[:1]) for call in clusters[0].list_all_calls()[calls:]}
    assert ("scancel",) not in asked
    # Once it is known, the pack's mark in squeue's answer says that it is of this cluster.
    north.csub("queue")
    assert read_records(north)[pack_id]["cluster"] == "north"
    north.csub("cancel", job_id)
    north.wait_for_states(job_id, "CANCELLED")
