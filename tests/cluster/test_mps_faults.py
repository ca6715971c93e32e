"""Faults on the GPU under MPS: whom they hit, who runs again, and whose they were."""

from __future__ import annotations

import json
import re

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import (
    OPTIONS,
    Untouched,
    changed_gpus,
    explained,
    journal,
    list_starts,
    pack_directory,
    require_cgroups,
    shorten_waits,
    submit_pack,
    wait_for_clients,
)

pytestmark = pytest.mark.slurm

HELLO = (
    'echo "start restart=${SLURM_RESTART_COUNT:-0} pipe=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:+mps}"'
)
UNTIL_END = "until [ -e end ]; do sleep 0.1; done"
ILLEGAL = "CUDA error: an illegal memory access was encountered"


def test_a_member_that_fails_by_itself_is_nothing_to_its_neighbours(mps_user: CsubUser) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("fail.sh", 'simgpu run --seconds 60 --fault "$1"')
    user.script("good.sh", f"{HELLO}; simgpu run --seconds 300 & pid=$!; {UNTIL_END}; kill $pid")
    kinds = ("sigkill-itself", "segfault", "device-assert", "exit=3")
    job_id = user.submit(
        "pack", "--degree=6", *OPTIONS, "good.sh", *(f"fail.sh {kind}@0.5" for kind in kinds)
    )
    with explained(user, job_id):
        rows = user.wait_for_states(
            job_id, {1: "RUNNING", 2: "FAILED", 3: "FAILED", 4: "FAILED", 5: "FAILED"}
        )
        ends = {
            number: ((row["exit_code"]["code"], row["exit_code"]["signal"]), row["cause"])
            for number, row in rows.items()
            if number > 1
        }
        assert ends == {
            # A shell ends with 128 and the signal of its last command.
            2: ((137, 0), "exit code"),
            3: ((139, 0), "exit code"),
            4: ((1, 0), "CUDA fault"),
            5: ((3, 0), "exit code"),
        }
        assert rows[4]["evidence"] == [
            "its output: torch.AcceleratorError: CUDA error: device-side assert triggered"
        ]
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert [row["starts"] for row in rows.values()] == [1] * 5
        assert (rows[1]["state"], rows[1]["mode"]) == ("COMPLETED", "mps")
        assert journal(user, job_id, "mps_fault", "requeue", "mps_culprit") == []
    untouched.check()


@pytest.mark.smoke
def test_after_a_fault_its_victims_finish_and_its_culprit_is_named_and_must_prove_itself(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("good.sh", f"{HELLO}; simgpu run --seconds 2.5 && echo done")
    # Its exit code is 0 whatever has become of its program.
    user.script("hide.sh", f"{HELLO}; simgpu run --seconds 2.5; echo done")
    user.script(
        "bad.sh", f'{HELLO}; [ -e fixed ] || fault="--fault $1@1.2"; simgpu run --seconds 2 $fault'
    )
    pack = ("good.sh", "bad.sh illegal-address", "hide.sh")
    job_id = submit_pack(user, *pack)
    with explained(user, job_id):
        rows = user.finish(job_id)
        assert {n: (row["state"], row["starts"], row["mode"]) for n, row in rows.items()} == {
            1: ("COMPLETED", 2, "timeslice"),
            2: ("FAILED", 2, "timeslice"),
            3: ("COMPLETED", 2, "timeslice"),
        }
        assert rows[2]["cause"] == "MPS fault: culprit"
        assert rows[2]["reason"] == (
            "exit code 1: its fault on the GPU came again when it ran apart from its neighbours"
        )
        for number, row in rows.items():
            # The output goes on where it was.
            assert list_starts(user, job_id, number) == [
                "start restart=0 pipe=mps",
                "start restart=1 pipe=",
            ]
            assert row["evidence"][0].startswith("MPS server: ")
            assert "encountered a fatal GPU error" in row["evidence"][0]
            assert row["evidence"][1] == f"its output: torch.AcceleratorError: {ILLEGAL}"
            assert (f"the fault was that of member {job_id}/2" in row["evidence"]) is (number != 2)
        again = journal(user, job_id, "requeue")
        assert {event["member"] for event in again} == {1, 2, 3}
        assert {event["reason"] for event in again} == {
            (
                "a fault on the GPU hit members 1, 2, 3, and MPS does not say whose it was; "
                "it runs again apart from MPS"
            )
        }
        shown = user.csub("show", f"{job_id}/2").stdout
        assert "End:         MPS fault: culprit" in shown
        assert "Evidence:    MPS server: " in shown
        explanation = user.csub("explain", f"{job_id}/2").stdout
        assert "MPS fault: culprit" in explanation
        [log] = (pack_directory(user, job_id) / "mps").iterdir()
        assert "The following client process have a sticky error set:" in log.read_text()

    # Its signature is barred, that of its neighbours and of other arguments is not.
    [path] = (user.state / "faults").iterdir()
    assert json.loads(path.read_text())["member"] == f"{job_id}/2"
    (user.home / "fixed").touch()
    said = user.csub("pack", *OPTIONS, *pack)
    together = said.stdout.split()[3]
    alone = f"{together}/2"
    assert said.stdout == f"Submitted batch job {together}\n"
    assert said.stderr.startswith(
        "csub: bad.sh runs alone: its fault on the GPU ended all clients of MPS when it ran as "
        f"{job_id}/2; it shares again once it has succeeded alone\n"
    )
    assert f"csub: members {alone[:-2]}/1-{alone[:-2]}/3 in 2 packs, " in said.stderr
    assert "it shares again once it has succeeded alone" in user.csub("show", alone).stdout
    assert user.csub("pack", *OPTIONS, "--dry-run", "bad.sh other", "good.sh").stderr == ""
    with explained(user, alone):
        [row] = user.finish(alone).values()
        assert (row["state"], row["mode"]) == ("COMPLETED", "exclusive")
        assert list((user.state / "faults").iterdir()) == []
    said = user.csub("pack", "--dry-run", *OPTIONS, *pack)
    assert said.stderr == ""
    assert "Pack of members 1-3: mps or timeslice, degree 3" in said.stdout
    user.finish(together)
    untouched.check()


def test_the_fault_of_the_only_client_is_its_own(mps_user: CsubUser) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("bad.sh", f"{HELLO}; exec simgpu run --seconds 60 --fault illegal-address@0.5")
    user.script("idle.sh", f"{HELLO}; {UNTIL_END}")
    job_id = submit_pack(user, "bad.sh", "idle.sh")
    with explained(user, job_id):
        rows = user.wait_for_states(job_id, {1: "FAILED", 2: "RUNNING"})
        assert (rows[1]["starts"], rows[1]["cause"]) == (1, "MPS fault: culprit")
        assert rows[1]["reason"] == (
            "exit code 1: its fault on the GPU, as the only client of the MPS server"
        )
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert (rows[2]["state"], rows[2]["starts"], rows[2]["evidence"]) == ("COMPLETED", 1, [])
    # One that cannot join anybody is told of as well.
    said = user.csub(*OPTIONS, "bad.sh")
    assert "csub: bad.sh runs alone: its fault on the GPU ended all clients of MPS" in said.stderr
    again = said.stdout.split()[3]
    [row] = user.finish(again).values()
    assert (row["state"], row["cause"]) == ("FAILED", "CUDA fault")
    assert row["evidence"] == [f"its output: torch.AcceleratorError: {ILLEGAL}"]
    # It has not proved itself, and by time slices it would hit nobody.
    assert "runs alone" in user.csub("pack", "--dry-run", *OPTIONS, "bad.sh", "idle.sh").stderr
    sliced = user.csub("pack", "--dry-run", "--share=timeslice", *OPTIONS, "bad.sh", "idle.sh")
    assert sliced.stderr == ""
    untouched.check()


def test_without_leave_to_requeue_nothing_runs_again_and_nobody_is_blamed(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("good.sh", f"{HELLO}; exec simgpu run --seconds 60")
    user.script("bad.sh", f"{HELLO}; exec simgpu run --seconds 60 --fault illegal-address@1")
    job_id = submit_pack(user, "good.sh", "bad.sh", options=("--no-requeue", *OPTIONS[1:]))
    with explained(user, job_id):
        rows = user.finish(job_id)
        for number, row in rows.items():
            assert (row["state"], row["starts"]) == ("FAILED", 1)
            assert row["cause"] == "MPS fault: culprit or victim"
            assert row["reason"] == (
                "exit code 1: a fault on the GPU hit members 1, 2, and MPS does not say whose it "
                "was; it may not be requeued"
            )
            assert list_starts(user, job_id, number) == ["start restart=0 pipe=mps"]
            assert "culprit or victim" in user.csub("explain", f"{job_id}/{number}").stdout
        assert not (user.state / "faults").exists()
    untouched.check()


def test_a_victim_that_hangs_is_ended_and_nobody_starts_before_the_server_is_mended(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    shorten_waits(user, fault_grace_s=2.0)
    # Stopped, it keeps its dead context.
    user.script(
        "hang.sh",
        f"{HELLO}\n"
        'if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then\n'
        f"    simgpu run --seconds 60 & pid=$!; {UNTIL_END}; kill -STOP $pid; touch stopped; wait\n"
        "fi\n"
        "exec simgpu run --seconds 0.5",
    )
    user.script(
        "bad.sh",
        f"{HELLO}; until [ -e stopped ]; do sleep 0.1; done\n"
        "exec simgpu run --seconds 60 --fault illegal-address@0.5",
    )
    user.script("late.sh", f"{HELLO}; exec simgpu run --seconds 0.5")
    job_id = user.submit(
        "pack", "--degree=2", "--pack-size=3", *OPTIONS, "hang.sh", "bad.sh", "late.sh"
    )
    with explained(user, job_id):
        wait_for_clients(user, job_id, 1)
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert (rows[1]["state"], rows[1]["starts"]) == ("COMPLETED", 2)
        assert (rows[2]["state"], rows[2]["cause"]) == ("FAILED", "MPS fault: culprit")
        events = journal(user, job_id)
        [ended] = [e for e in events if e["event"] == "terminate"]
        assert (ended["member"], ended["reason"]) == (1, "stuck after a fault on the GPU")
        # The third had a place from the moment of the fault, and a server only now.
        assert (rows[3]["state"], rows[3]["starts"], rows[3]["mode"]) == ("COMPLETED", 1, "mps")
        assert rows[3]["is_mps_client"] is True
        assert rows[3]["started_at"] > ended["at"]
        [again] = [e for e in events if e["event"] == "requeue" and e["member"] == 1]
        assert re.match("a fault on the GPU hit members 1, 2, ", again["reason"])
    untouched.check()


def test_what_restarts_have_taught_outlives_a_requeue_of_the_pack(mps_user: CsubUser) -> None:
    user = mps_user
    require_cgroups(user)
    untouched = Untouched(user)
    # Without MPS it waits, so that the pack can be requeued while it is known what has hit it.
    user.script(
        "good.sh",
        f'{HELLO}; if [ -z "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" ]; then {UNTIL_END}; exit; fi\n'
        "exec simgpu run --seconds 60",
    )
    user.script("bad.sh", f"{HELLO}; exec simgpu run --seconds 60 --fault illegal-address@1")
    job_id = submit_pack(user, "good.sh", "bad.sh")
    with explained(user, job_id):
        user.wait_for_states(job_id, {1: "RUNNING", 2: "FAILED"})
        user.run(["scontrol", "requeue", job_id])
        wait_until(lambda: len(list_starts(user, job_id, 1)) == 3, "the pack has started again")
        (user.home / "end").touch()
        rows = user.finish(job_id)
        assert list_starts(user, job_id, 1) == [
            "start restart=0 pipe=mps",
            "start restart=1 pipe=",
            "start restart=2 pipe=",
        ]
        assert len(list_starts(user, job_id, 2)) == 2
        assert (rows[1]["state"], rows[2]["state"]) == ("COMPLETED", "FAILED")
        assert f"the fault was that of member {job_id}/2" in rows[1]["evidence"]
    untouched.check()


def test_on_a_gpu_for_one_process_who_was_hit_runs_alone_under_mps(
    mps_user: CsubUser, mps_cluster: Sandbox
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("good.sh", f"{HELLO}; exec simgpu run --seconds 1.5")
    user.script("bad.sh", f"{HELLO}; exec simgpu run --seconds 60 --fault illegal-address@1")
    # Apart from MPS it would find the GPU taken by the server.
    with changed_gpus(mps_cluster, compute_mode=3):
        job_id = submit_pack(user, "good.sh", "bad.sh")
        with explained(user, job_id):
            rows = user.finish(job_id)
            assert (rows[1]["state"], rows[1]["starts"], rows[1]["mode"]) == ("COMPLETED", 2, "mps")
            assert (rows[2]["state"], rows[2]["cause"]) == ("FAILED", "MPS fault: culprit")
            assert {event["reason"] for event in journal(user, job_id, "requeue")} == {
                (
                    "a fault on the GPU hit members 1, 2, and MPS does not say whose it was; "
                    "it runs again alone"
                )
            }
            spans = sorted((row["started_at"], row["ended_at"]) for row in rows.values())
            assert spans[0][1] <= spans[1][0]
    untouched.check()
