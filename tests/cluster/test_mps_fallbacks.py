"""Where MPS cannot be had: what happens instead, who is told, and who refuses it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser
from .mps import (
    OPTIONS,
    TELL,
    Untouched,
    changed_gpus,
    explained,
    journal,
    pack_directory,
    read_setup,
    shorten_waits,
    simulation_of,
    submit_each,
    submit_pack,
)

pytestmark = pytest.mark.slurm


@contextmanager
def nvml_faults(cluster: Sandbox, *words: str) -> Iterator[None]:
    """NVML misbehaves for a while."""
    path = simulation_of(cluster) / "faults"
    path.write_text(" ".join(words))
    path.chmod(0o644)
    try:
        yield
    finally:
        path.unlink()


def expect_fallback(user: CsubUser, jobs: dict[str, str], reason: str) -> None:
    """A fallback is told to a user who asks, and refused to one who wants MPS and nothing else."""
    for share, job_id in jobs.items():
        with explained(user, job_id):
            rows = user.finish(job_id)
            setup = read_setup(user, job_id)
            shown = user.csub("show", job_id).stdout
            log = (pack_directory(user, job_id) / "pack.log").read_text()
            assert reason in setup["reason"]
            if share.endswith("!"):
                said = f"{share} was asked for, and {setup['reason']}"
                for number, row in rows.items():
                    assert (row["state"], row["reason"]) == ("FAILED", said)
                    assert (row["cause"], row["starts"]) == ("not started", 0)
                    assert said in user.csub("why", f"{job_id}/{number}").stdout
                assert f"Sharing:  none ({setup['reason']})" in shown
                continue
            for number, row in rows.items():
                assert (row["state"], row["mode"]) == ("COMPLETED", "timeslice")
                for name in ("thread_percentage", "gpu_memory_limit_mb", "is_mps_client"):
                    assert row[name] is None
                output = user.output(f"slurm-{job_id}_{number}.out")
                assert re.match("pipe=/tmp/cs[0-9a-f]{6}/mps ", output)
            assert f"Sharing:  timeslice, {len(rows)} at the same time ({setup['reason']})" in shown
            said = f"csub: members share the GPU by time slices: {setup['reason']}\n"
            # Who asked for MPS finds it in the pack's log as well.
            assert (said in log) is (share == "mps")


@pytest.mark.smoke
def test_without_the_mps_programs_members_share_by_time_slices(mps_user: CsubUser) -> None:
    user = mps_user
    untouched = Untouched(user)
    own = simulation_of(user.sandbox) / "bin"
    path = ":".join(word for word in user.environment["PATH"].split(":") if word != str(own))
    user.extra["PATH"] = path
    jobs = submit_each(user, "auto", "mps", "mps!")
    del user.extra["PATH"]
    expect_fallback(user, jobs, "nvidia-cuda-mps-control")
    untouched.check()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("absent",), "the pack's GPU is not known: "),
        # Nothing but CUDA can tell that there is no such GPU.
        (
            ("lie=uuid",),
            "the MPS daemon ended at once with exit status 100: CUDA finds none of the GPUs",
        ),
        (("hang=30",), "the pack's GPU is not known: NVML gave no answer within 1.5 s"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_nvml_that_is_absent_lies_or_hangs(
    mps_user: CsubUser, mps_cluster: Sandbox, words: tuple[str, ...], reason: str
) -> None:
    user = mps_user
    untouched = Untouched(user)
    if words[0].startswith("hang"):
        shorten_waits(user, nvml_s=1.5)
    with nvml_faults(mps_cluster, *words):
        expect_fallback(user, submit_each(user, "auto", "mps!"), reason)
    untouched.check()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"capability": "3.0"}, "has compute capability 3.0, MPS needs 3.5 or more"),
        ({"compute_mode": 2}, "is in compute mode PROHIBITED"),
    ],
    ids=["old", "prohibited"],
)
def test_a_gpu_that_does_not_take_mps(
    mps_user: CsubUser, mps_cluster: Sandbox, changes: dict[str, Any], reason: str
) -> None:
    user = mps_user
    with changed_gpus(mps_cluster, **changes):
        expect_fallback(user, submit_each(user, "auto", "mps!"), reason)


def test_more_members_at_once_than_mps_takes_clients(
    mps_user: CsubUser, mps_cluster: Sandbox
) -> None:
    user = mps_user
    user.script("tell.sh", TELL)
    with changed_gpus(mps_cluster, capability="6.0"):
        job_id = user.submit("--array=1-17", "--degree=17", "--share=mps!", *OPTIONS, "tell.sh")
        expect_fallback(user, {"mps!": job_id}, "17 members at once are more than 16 MPS clients")


def test_a_gpu_for_one_process_at_a_time_is_shared_through_mps(
    mps_user: CsubUser, mps_cluster: Sandbox
) -> None:
    user = mps_user
    untouched = Untouched(user)
    user.script("train.sh", "exec simgpu run --seconds 0.5")
    own = simulation_of(user.sandbox) / "bin"
    with changed_gpus(mps_cluster, compute_mode=3):
        shared = submit_pack(user, "train.sh", "train.sh")
        with explained(user, shared):
            rows = user.finish(shared)
            assert {(row["state"], row["mode"]) for row in rows.values()} == {("COMPLETED", "mps")}
        # Where no server comes up, they take turns.
        broken = user.home / "broken"
        broken.mkdir()
        (broken / "nvidia-cuda-mps-control").symlink_to(own / "nvidia-cuda-mps-control")
        (broken / "nvidia-cuda-mps-server").write_text("#!/bin/sh\nexit 1\n")
        (broken / "nvidia-cuda-mps-server").chmod(0o755)
        user.extra["PATH"] = f"{broken}:{user.environment['PATH']}"
        turns = submit_pack(user, "train.sh", "train.sh")
        with explained(user, turns):
            rows = user.finish(turns)
            assert {(r["state"], r["mode"]) for r in rows.values()} == {("COMPLETED", "timeslice")}
            setup = read_setup(user, turns)
            assert setup["notes"] == [
                "the GPU is in compute mode EXCLUSIVE_PROCESS: without MPS one member at a time"
            ]
            assert "MPS server" in setup["reason"]
            first, second = sorted((row["started_at"], row["ended_at"]) for row in rows.values())
            assert first[1] <= second[0]
    untouched.check()


def test_members_that_must_not_run_twice_start_only_once_the_server_works(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    untouched = Untouched(user)
    broken = user.home / "broken"
    broken.mkdir()
    own = simulation_of(user.sandbox) / "bin"
    (broken / "nvidia-cuda-mps-control").symlink_to(own / "nvidia-cuda-mps-control")
    (broken / "nvidia-cuda-mps-server").write_text("#!/bin/sh\nexit 1\n")
    (broken / "nvidia-cuda-mps-server").chmod(0o755)
    user.extra["PATH"] = f"{broken}:{user.environment['PATH']}"
    user.script("train.sh", "echo ran; exec simgpu run --seconds 0.2")
    options = ("--no-requeue", *OPTIONS[1:])
    jobs = {
        share: submit_pack(user, f"--share={share}", "train.sh", "train.sh", options=options)
        for share in ("auto", "mps!")
    }
    for share, job_id in jobs.items():
        with explained(user, job_id):
            rows = user.finish(job_id)
            for number, row in rows.items():
                output = user.output(f"slurm-{job_id}_{number}.out")
                if share == "auto":
                    assert (row["state"], row["mode"], output) == (
                        "COMPLETED",
                        "timeslice",
                        "ran\n",
                    )
                else:
                    assert (row["state"], row["starts"], output) == ("FAILED", 0, "")
                    assert "mps! was asked for, and the MPS server" in row["reason"]
            assert journal(user, job_id, "requeue") == []
    untouched.check()
