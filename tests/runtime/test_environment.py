from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.job import ArrayTask, Job
from slurm_colloc.model.plan import MemberPlan
from slurm_colloc.runtime.member_environment import (
    STEP_SCRUB,
    MemberContext,
    build_step_environment,
    compose_environment,
    compute_added_by_slurm,
    compute_own_resources,
    parse_pairs,
)
from slurm_colloc.store.pack_directory import build_environment_block, parse_environment_block

JOB = Job(3, "train", "train.sh", (), "/home/ada", cpus=2, gpus=1)
PLAN = MemberPlan(0, 2, 500, None)
PLACE = MemberContext(
    array_id="4711", job_id="1795491552", member="4711/3", pack="/state/p",
    run="/state/p/members/0003/run.1.1",
    shims="/state/p/members/0003/bin", cpus=(2, 3), starts=0, tmpdir="/tmp/csub-4711-3",
    port=12345, shared=True,
)  # fmt: skip
CAPTURED = {"PATH": "/usr/bin", "HOME": "/home/ada", "MINE": "1"}
# What a pack's batch script finds besides what sbatch was given.
ADDED = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_CPUS_ON_NODE": "8",
    "SLURM_JOB_CPUS_PER_NODE": "8",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_NTASKS": "1",
    "SLURM_MEM_PER_NODE": "9000",
    "SLURM_ARRAY_JOB_ID": "4711",
    "SLURM_ARRAY_TASK_ID": "0",
    "SLURM_ARRAY_TASK_COUNT": "2",
    "SLURM_JOB_NAME": "train+3",
    "SLURM_JOB_GPUS": "0",
    "CUDA_VISIBLE_DEVICES": "0",
    "TMPDIR": "/tmp",
    "SITE_PROLOG_SET": "yes",
}


def compose(
    job: Job = JOB,
    place: MemberContext = PLACE,
    captured: dict[str, str] = CAPTURED,
    added: dict[str, str] = ADDED,
    plan: MemberPlan = PLAN,
) -> dict[str, str]:
    alone = compose_environment(captured, added, job, plan, place)
    return alone | compute_own_resources(captured, added, alone, plan, place)


def ask(**shape: str) -> Job:
    pairs = tuple((name.replace("_", "-"), value) for name, value in shape.items())
    return dataclasses.replace(JOB, shape=pairs)


def test_what_only_newer_releases_set_speaks_of_the_member_too() -> None:
    newer = {
        **ADDED,
        "SLURM_TRES_PER_TASK": "cpu=8",
        "SLURM_JOB_START_TIME": "1000",
        "SLURM_JOB_END_TIME": "9000",
    }
    place = dataclasses.replace(PLACE, started_at=2000)
    limited = dataclasses.replace(PLAN, wall_limit_s=600)
    found = compose(ask(cpus_per_task="2"), place=place, added=newer, plan=limited)
    assert found["SLURM_TRES_PER_TASK"] == "cpu=2"
    assert (found["SLURM_JOB_START_TIME"], found["SLURM_JOB_END_TIME"]) == ("2000", "2600")
    # Without a limit of its own, and where the pack ends before its own, the pack's end is its.
    for plan in (PLAN, dataclasses.replace(PLAN, wall_limit_s=90_000)):
        found = compose(place=place, added=newer, plan=plan)
        assert found["SLURM_JOB_END_TIME"] == "9000"
        assert "SLURM_TRES_PER_TASK" not in found
    assert not {name for name in compose(place=place, plan=limited) if name.endswith("_TIME")}


def test_a_member_sees_its_own_size_and_not_the_packs() -> None:
    found = compose(ask(cpus_per_task="2", mem="500M"))
    assert found["SLURM_CPUS_ON_NODE"] == found["SLURM_JOB_CPUS_PER_NODE"] == "2"
    assert found["SLURM_CPUS_PER_TASK"] == "2"
    assert found["SLURM_MEM_PER_NODE"] == "500"
    assert found["SLURM_TASKS_PER_NODE"] == "1"
    assert found["SLURM_JOB_NAME"] == "train"
    assert found["SLURM_JOB_ID"] == found["SLURM_JOBID"] == "1795491552"
    assert not any(name.startswith("SLURM_ARRAY") for name in found)
    assert "SLURM_NTASKS" not in found


def test_what_sbatch_sets_only_where_it_was_asked_for_is_set_only_then() -> None:
    names = {"SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_GPUS", "SLURM_OPEN_MODE"}
    assert names.isdisjoint(compose())
    found = compose(ask(cpus_per_task="2", ntasks="1", gpus="1", open_mode="append"))
    assert names <= found.keys()


def test_what_the_site_and_slurm_added_reaches_every_member() -> None:
    found = compose()
    assert found["SITE_PROLOG_SET"] == "yes"
    assert found["CUDA_VISIBLE_DEVICES"] == found["SLURM_JOB_GPUS"] == "0"


def test_a_task_of_an_array_sees_the_users_own_array() -> None:
    found = compose(dataclasses.replace(JOB, array_task=ArrayTask(7, 4, 1, 9, 2)))
    assert {name: value for name, value in found.items() if name.startswith("SLURM_ARRAY")} == {
        "SLURM_ARRAY_JOB_ID": "4711",
        "SLURM_ARRAY_TASK_ID": "7",
        "SLURM_ARRAY_TASK_COUNT": "4",
        "SLURM_ARRAY_TASK_MIN": "1",
        "SLURM_ARRAY_TASK_MAX": "9",
        "SLURM_ARRAY_TASK_STEP": "2",
    }


OWN = {
    "TMPDIR": "/tmp/csub-4711-3",
    "MASTER_PORT": "12345",
    "PET_MASTER_PORT": "12345",
    "OMP_NUM_THREADS": "2",
}


def test_what_neighbours_would_fight_for_is_a_members_own() -> None:
    found = compose()
    assert {name: found[name] for name in OWN} == OWN


@pytest.mark.parametrize("name", OWN)
def test_what_the_user_set_stays(name: str) -> None:
    found = compose(captured={**CAPTURED, name: "mine"})
    assert found[name] == "mine"
    others = {other: value for other, value in OWN.items() if other != name}
    assert {other: found[other] for other in others} == others


def test_a_lone_job_sees_what_slurm_set_for_it() -> None:
    added = {name: value for name, value in ADDED.items() if "ARRAY" not in name}
    lone = dataclasses.replace(
        PLACE, job_id="4711", shared=False, shims="", tmpdir="", port=None, cpus=()
    )
    found = compose(place=lone, added=added)
    expected = {
        **CAPTURED, **added, "SLURM_JOB_NAME": "train",
        "SLURM_COLLOC_MEMBER": "4711/3", "SLURM_COLLOC_NAME": "4711_3",
        "SLURM_COLLOC_CHECKPOINT": "4711_3",
    }  # fmt: skip
    assert found == expected


def test_the_shims_stand_before_the_users_own_path() -> None:
    assert compose()["PATH"] == "/state/p/members/0003/bin:/usr/bin"
    assert compose(captured={})["PATH"] == "/state/p/members/0003/bin:/usr/local/bin:/usr/bin:/bin"


def test_an_srun_by_its_absolute_path_stays_on_the_members_cpus() -> None:
    found = compose()
    assert found["SLURM_OVERLAP"] == "1"
    assert found["SLURM_CPU_BIND"] == "mask_cpu:0xc"
    assert "SLURM_CPU_BIND" not in compose(place=dataclasses.replace(PLACE, cpus=()))


@pytest.mark.parametrize(
    ("export", "expected"),
    [(None, None), ("ALL", None), ("all", None), ("NONE", "NONE"), ("NIL", "NIL"),
     ("ALL,X=1", "ALL,X=1"), ("HOME", "HOME")],
)  # fmt: skip
def test_the_export_of_a_job_is_that_of_its_steps_where_sbatch_says_so(
    export: str | None, expected: str | None
) -> None:
    job = dataclasses.replace(JOB, export=export)
    lone = dataclasses.replace(PLACE, shared=False, shims="", tmpdir="", port=None, cpus=())
    for place in (PLACE, lone):
        assert compose(job, place).get("SLURM_EXPORT_ENV") == expected


def test_a_start_after_a_requeue_says_so() -> None:
    assert "SLURM_RESTART_COUNT" not in compose()
    assert compose(place=dataclasses.replace(PLACE, starts=2))["SLURM_RESTART_COUNT"] == "2"


def test_only_what_slurm_changed_or_added_counts_as_added() -> None:
    sent = {"PATH": "/usr/bin", "HOME": "/home/ada"}
    batch = {**sent, "HOME": "/nfs/ada", "SLURM_JOB_ID": "1", "SHLVL": "1", "PWD": "/", "_": "x"}
    assert compute_added_by_slurm(batch, sent) == {"HOME": "/nfs/ada", "SLURM_JOB_ID": "1"}


def test_nothing_that_srun_would_misread_reaches_a_step() -> None:
    environment = dict.fromkeys(STEP_SCRUB, "1") | {"SLURM_JOB_ID": "1", "PATH": "/bin"}
    assert build_step_environment(environment) == {"SLURM_JOB_ID": "1", "PATH": "/bin"}


def test_composing_changes_nothing_that_it_was_given() -> None:
    captured, added = dict(CAPTURED), dict(ADDED)
    compose(captured=captured, added=added)
    assert (captured, added) == (CAPTURED, ADDED)


@given(
    pairs=st.dictionaries(
        st.binary(min_size=1).filter(lambda name: not set(name) & set(b"=\0")),
        st.binary().filter(lambda value: 0 not in value),
    )
)
def test_every_byte_survives(pairs: dict[bytes, bytes]) -> None:
    texts = parse_pairs(parse_environment_block(build_environment_block(pairs)).items())
    assert {
        name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
        for name, value in texts.items()
    } == pairs
