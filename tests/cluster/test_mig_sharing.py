"""MPS inside MIG instances, and members that wait for one, on a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser
from ..wait_until import wait_until
from .hooks import wait_for_epilog
from .mig_user import OPTIONS, cluster_with_mig, policy_of, user_with_script
from .mps import Untouched, explained, journal, pack_directory, read_setup, write_settings

pytestmark = [pytest.mark.slurm, pytest.mark.root]

BEGIN = 'echo "device=$CUDA_VISIBLE_DEVICES pipe=$CUDA_MPS_PIPE_DIRECTORY"'


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    with cluster_with_mig() as sandbox:
        yield sandbox


@pytest.fixture
def user(cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_with_script(cluster, accounts, BEGIN) as somebody:
        yield somebody


def read_places(user: CsubUser, job_id: str, *numbers: int) -> dict[int, tuple[str, str]]:
    """The device and the pipe directory that members have, by their own words."""
    found = {}
    for number in numbers:
        line = user.output(f"slurm-{job_id}_{number}.out").splitlines()[0]
        device, pipe = line.split()
        found[number] = device.removeprefix("device="), pipe.removeprefix("pipe=")
    return found


def test_members_share_instances_by_a_daemon_in_each(user: CsubUser) -> None:
    untouched = Untouched(user)
    write_settings(user, mig_mps_inside=True)
    options = ("--share=mig=3g+3g", "--degree=4", *OPTIONS, "--array=1-4", "train.sh")
    planned = user.csub("plan", "--explain", *options).stdout
    assert "members share instances by MPS" in " ".join(planned.split())
    job_id = user.submit(*options)
    with explained(user, job_id):
        user.wait_for_states(job_id, dict.fromkeys((1, 2, 3, 4), "RUNNING"))

        def clients(rows: dict[int, dict[str, object]]) -> bool:
            return all(row["is_mps_client"] for row in rows.values())

        user.wait_for_rows(job_id, clients, "clients of the daemons inside")
        places = read_places(user, job_id, 1, 2, 3, 4)
        pairs: dict[tuple[str, str], list[int]] = {}
        for number, place in places.items():
            pairs.setdefault(place, []).append(number)
        assert sorted(map(len, pairs.values())) == [2, 2], places
        assert len({device for device, _ in pairs}) == len({pipe for _, pipe in pairs}) == 2
        shown = " ".join(user.csub("show", job_id).stdout.split())
        for (uuid, _), (one, other) in pairs.items():
            told = f"3g.40gb {uuid} (40448 MB, 60 SMs): {job_id}/{one}, {job_id}/{other}"
            assert f"{told} (MPS inside, for 2)" in shown
        assert "shared by mps, threads at most 100 %" in user.csub("show", f"{job_id}/1").stdout
        assert len(journal(user, job_id, "mps_daemon")) == 2
        assert not journal(user, job_id, "trouble")
        latest = pack_directory(user, job_id) / "latest.json"

        def seen() -> bool:
            members = json.loads(latest.read_text())["members"] if latest.exists() else {}
            return len(members) == 4 and all(one["gpu_memory_mb"] for one in members.values())

        wait_until(seen, "the monitor's figures of each member")
        (user.home / "end").touch()
        assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}
        wait_for_epilog(user.sandbox, job_id)
        untouched.check()
        (summary,) = json.loads(user.csub("report", "--json", job_id).stdout)
        for member in summary["members"]:
            assert member["mig"]["shared_by"] == "mps"
            assert member["gpu_memory_mb"]["peak"] > 0
        assert [one["places"] for one in summary["layout"]["came"]] == [2, 2]


def test_a_fault_ends_the_members_of_its_instance_and_no_other(user: CsubUser) -> None:
    write_settings(user, mig_mps_inside=True)
    user.script(
        "wild.sh",
        'echo "device=$CUDA_VISIBLE_DEVICES pipe=$CUDA_MPS_PIPE_DIRECTORY"; '
        "until [ -e go ]; do sleep 0.1; done; "
        "exec simgpu run --seconds 60 --fault illegal-address@0.5",
    )
    options = ("--share=mig=3g+3g", "--degree=4", *OPTIONS)
    job_id = user.submit("pack", *options, "wild.sh", *["train.sh"] * 3)
    with explained(user, job_id):
        user.wait_for_states(job_id, dict.fromkeys((1, 2, 3, 4), "RUNNING"))

        def clients(rows: dict[int, dict[str, object]]) -> bool:
            return all(rows[number]["is_mps_client"] for number in (2, 3, 4))

        user.wait_for_rows(job_id, clients, "clients of the daemons inside")
        places = read_places(user, job_id, 1, 2, 3, 4)
        (sharer,) = [n for n in (2, 3, 4) if places[n] == places[1]]
        others = [n for n in (2, 3, 4) if n != sharer]
        (user.home / "go").touch()
        user.wait_for_rows(job_id, lambda rows: rows[1]["state"] == "FAILED", "its end")
        rows = user.members(job_id)
        assert [rows[number]["state"] for number in others] == ["RUNNING"] * 2
        assert [rows[number]["starts"] for number in others] == [1, 1]
        (fault,) = journal(user, job_id, "mps_fault")
        assert sorted(fault["members"]) == sorted([1, sharer])
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert {rows[number]["state"] for number in others} == {"COMPLETED"}
        wait_for_epilog(user.sandbox, job_id)


def test_where_the_node_lets_no_mps_run_inside_they_take_turns(
    user: CsubUser, cluster: Sandbox
) -> None:
    write_settings(user, mig_mps_inside=True)
    user.script("short.sh", "simgpu run --seconds 0.5")
    with policy_of(cluster, "mig_mps_inside = false", instead_of="mig_mps_inside = true"):
        options = ("--share=mig=3g+3g", "--degree=4", *OPTIONS, "--array=1-4", "short.sh")
        job_id = user.submit(*options)
        with explained(user, job_id):
            assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}
            notes = " ".join(read_setup(user, job_id)["notes"])
            assert "lets no MPS run inside an instance" in notes
            assert not journal(user, job_id, "mps_daemon")
            wait_for_epilog(user.sandbox, job_id)


def test_a_layout_that_cannot_be_had_becomes_mps_in_one_instance_of_the_whole_gpu(
    user: CsubUser, cluster: Sandbox
) -> None:
    untouched = Untouched(user)
    with policy_of(cluster, 'mig_profiles = ["1g.10gb", "7g.80gb"]\n'):
        job_id = user.submit("--share=mig=3g+3g", *OPTIONS, "--array=1-2", "train.sh")
        with explained(user, job_id):
            rows = user.wait_for_states(job_id, dict.fromkeys((1, 2), "RUNNING"))
            assert {row["mode"] for row in rows.values()} == {"mps"}
            places = read_places(user, job_id, 1, 2)
            assert places[1] == places[2]
            device, pipe = places[1]
            assert device.startswith("MIG-")
            assert pipe
            setup = read_setup(user, job_id)
            assert setup["mode"] == "mps"
            assert "one instance has the whole GPU; no layout 3g+3g" in setup["reason"]
            (user.home / "end").touch()
            assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}
            wait_for_epilog(user.sandbox, job_id)
    untouched.check()


def test_more_members_than_instances_wait_and_fill_them_again(user: CsubUser) -> None:
    untouched = Untouched(user)
    user.script("short.sh", "simgpu run --seconds 0.5")
    job_id = user.submit("--share=mig=2g+2g+2g", *OPTIONS, "--array=1-7", "short.sh")
    with explained(user, job_id):
        rows = user.finish(job_id)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
        assert len(rows) == 7
        assert {row["degree"] for row in rows.values()} == {3}
        assert len({row["gpu_uuids"][0] for row in rows.values()}) == 3
        wait_for_epilog(user.sandbox, job_id)
    untouched.check()
