"""srun, scontrol and scancel inside a member: what they become."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import MemberPlan
from slurm_colloc.runtime.launch.path_shims import SHIMMED, find_real_command, write_shims
from slurm_colloc.runtime.programs.shim import (
    own_job_ids,
    rewrite_srun,
    translate_scancel,
    translate_scontrol,
)
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.pack.pack_records import MemberSpec, build_spec_mapping
from slurm_colloc.store.pack.runner_requests import Action, Request, list_requests

INSIDE = {
    "PATH": "/bin",
    "SLURM_JOB_ID": "4713",
    "SLURM_JOBID": "4713",
    "SLURM_ARRAY_JOB_ID": "4711",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_COLLOC_MEMBER": "4711/3",
    "SLURM_COLLOC_PACK": "/state/packs/p",
    "SLURM_COLLOC_CPUS": "0,2",
    "SLURM_COLLOC_HOST_MEMORY_MB": "500",
    "SLURM_OVERLAP": "1",
    "SLURM_CPU_BIND": "mask_cpu:0x5",
}
RECIPE = ["--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=mask_cpu:0x5", "--mem=500"]


def rewrite(*arguments: str, **changes: str) -> tuple[list[str], dict[str, str]]:
    rewritten, environment = rewrite_srun(arguments, {**INSIDE, **changes})
    assert rewritten is not None
    return rewritten, environment


@pytest.mark.parametrize(
    "arguments",
    [
        ["python", "x.py"],
        ["--exact", "python", "x.py"],
        ["--gpus=1", "--gpu-bind=none", "python", "x.py"],
        ["--gres=gpu:1", "--exclusive", "python", "x.py"],
        ["-G", "1", "--mem-per-cpu=9G", "python", "x.py"],
        ["--gpus-per-task=1", "--threads-per-core=1", "--hint=nomultithread", "python", "x.py"],
    ],
)
def test_a_step_starts_beside_the_neighbours_on_the_members_cpus(arguments: list[str]) -> None:
    rewritten, environment = rewrite(*arguments)
    # Nothing is put before the command: it sees all that it needs.
    assert rewritten == [*RECIPE, "--job-name=4711/3:python", "python", "x.py"]
    assert "SLURM_OVERLAP" not in environment
    assert "SLURM_CPU_BIND" not in environment


def test_what_the_user_asks_for_wins_where_it_harms_nobody() -> None:
    rewritten, _ = rewrite(
        "-n", "2", "-N1", "--cpu-bind=none", "--label", "--output=a b", "-J", "eval", "x", "-n", "9"
    )
    assert "--ntasks=1" not in rewritten
    assert rewritten.count("--cpu-bind=none") == 1
    assert not any(word.startswith("--cpu-bind=mask") for word in rewritten)
    assert {"--ntasks=2", "--nodes=1", "--label", "--output=a b"} <= set(rewritten)
    assert "--job-name=4711/3:eval" in rewritten
    assert rewritten[-3:] == ["x", "-n", "9"]


def test_the_cpus_asked_for_are_seen_inside_the_step_only() -> None:
    rewritten, environment = rewrite("-c", "2", "x")
    assert "SLURM_CPUS_PER_TASK=2" in rewritten
    assert not any("cpus-per-task" in word for word in rewritten)
    assert "SLURM_CPUS_PER_TASK" not in environment


def test_a_member_that_is_not_bound_binds_no_step() -> None:
    rewritten, _ = rewrite("x", SLURM_COLLOC_CPUS="")
    assert "--cpu-bind=none" in rewritten


@pytest.mark.parametrize(
    "arguments",
    [["--jobid=99", "x"], ["-p", "gpu", "x"], ["-A", "lab", "x"], ["--qos=high", "x"]],
)
def test_an_srun_for_another_job_stays_as_it_is(arguments: list[str]) -> None:
    assert rewrite_srun(arguments, INSIDE)[0] is None


def test_an_srun_into_the_own_job_is_the_members() -> None:
    assert rewrite("--jobid=4713", "x")[0][:5] == RECIPE


def test_what_srun_does_not_know_is_told() -> None:
    with pytest.raises(UsageProblem, match="--no-such-option is no srun option"):
        rewrite_srun(["--no-such-option", "x"], INSIDE)


def test_the_ids_by_which_a_script_means_itself() -> None:
    assert own_job_ids(INSIDE) == {"4713", "4711_3", "4711/3"}
    assert own_job_ids({"SLURM_JOB_ID": "4713"}) == {"4713"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["requeue", "4713"], Request(Action.REQUEUE, 3, reason="scontrol requeue from inside")),
        (["requeue", "4711_3"], Request(Action.REQUEUE, 3, reason="scontrol requeue from inside")),
        (
            ["-Q", "REQUEUE", "JobId=4713"],
            Request(Action.REQUEUE, 3, reason="scontrol requeue from inside"),
        ),
        (["requeue", "99"], None),
        (["requeue", "4711_4"], None),
        (["requeue", "4711"], None),
        (["show", "job", "4713"], None),
        (["hold", "4713"], None),
        ([], None),
    ],
)
def test_scontrol(arguments: list[str], expected: Request | None) -> None:
    assert translate_scontrol(arguments, INSIDE) == expected


def test_a_requeue_on_hold_is_refused_for_one_member() -> None:
    with pytest.raises(UsageProblem, match="requeuehold cannot be done for one member"):
        translate_scontrol(["requeuehold", "4713"], INSIDE)


CANCEL = Request(Action.CANCEL, 3, reason="scancel from inside")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["4713"], CANCEL),
        (["4711_3"], CANCEL),
        (["-Q", "4713", "4711_3"], CANCEL),
        (["-s", "TERM", "4713"], CANCEL),
        (["--signal=SIGKILL", "4713"], CANCEL),
        (["-s", "USR1", "4713"],
         Request(Action.SIGNAL, 3, signal.SIGUSR1, steps_only=True, reason="scancel -s")),
        (["-sUSR1", "--batch", "4713"],
         Request(Action.SIGNAL, 3, signal.SIGUSR1, reason="scancel -s")),
        (["4713", "--signal=12", "-f"],
         Request(Action.SIGNAL, 3, signal.SIGUSR2, reason="scancel -s")),
        (["4713", "99"], None),
        (["4713.1"], None),
        (["4711"], None),
        (["4711_4"], None),
        (["--user=ada"], None),
        (["--name=x", "4713"], None),
        ([], None),
    ],
)  # fmt: skip
def test_scancel(arguments: list[str], expected: Request | None) -> None:
    assert translate_scancel(arguments, INSIDE) == expected


@pytest.mark.parametrize("arguments", [["-s", "NOISE", "4713"], ["4713", "-s"]])
def test_a_signal_that_does_not_exist_is_told(arguments: list[str]) -> None:
    with pytest.raises(UsageProblem, match="scancel: there is no signal"):
        translate_scancel(arguments, INSIDE)


# -- the shims as programs ---------------------------------------------------------------------


@pytest.fixture
def inside(tmp_path: Path) -> dict[str, str]:
    """The environment of a member whose pack has shims, before commands that say what they are."""
    pack = tmp_path / "my pack"
    (pack / "control").mkdir(parents=True)
    write_spec(pack, requeue=None)
    shims = write_shims(pack, sys.executable)
    real = tmp_path / "real"
    real.mkdir()
    for name in SHIMMED:
        (real / name).write_text('#!/bin/sh\nprintf "%s|" real "$0" "$@"\n')
        (real / name).chmod(0o755)
    return {
        **INSIDE,
        "PATH": f"{shims}:{real}:{os.defpath}",
        "SLURM_COLLOC_PACK": str(pack),
        "SLURM_COLLOC_RUN": str(pack / "run.1.1"),
    }


def write_spec(pack: Path, *, requeue: bool | None) -> None:
    """Write what a pack knows of member 3."""
    job = Job(3, "a", "a.sh", (), "/", requeue=requeue)
    folder = pack / "members" / "0003"
    folder.mkdir(parents=True, exist_ok=True)
    spec = MemberSpec(job, MemberPlan(0, 1, None, None), umask=0o022)
    write_json(folder / "spec.json", build_spec_mapping(spec))


def run(environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/usr/bin/env", *argv], env=environment, capture_output=True, text=True, check=False
    )


def test_a_shim_writes_no_bytecode_under_the_limits_of_a_script(inside: dict[str, str]) -> None:
    shims = Path(inside["PATH"].split(":")[0])
    for name in SHIMMED:
        assert f" -IB -m slurm_colloc.runtime.programs.shim {name} " in (shims / name).read_text()


def test_a_shim_hands_over_to_the_real_command_behind_it(inside: dict[str, str]) -> None:
    ended = run(inside, "srun", "echo", "a b", "")
    assert ended.returncode == 0, ended.stderr
    words = ended.stdout.split("|")
    assert words[:4] == [
        "real",
        f"{Path(inside['SLURM_COLLOC_PACK']).parent}/real/srun",
        *RECIPE[:2],
    ]
    assert words[-4:] == ["echo", "a b", "", ""]
    # So that the runner knows that there are steps to look for.
    assert Path(f"{inside['SLURM_COLLOC_RUN']}.steps").exists()


def test_what_is_not_the_members_own_goes_to_the_real_command_unchanged(
    inside: dict[str, str],
) -> None:
    assert run(inside, "scancel", "99").stdout.endswith("/scancel|99|")
    assert run(inside, "scontrol", "show", "job", "4713").stdout.endswith("|show|job|4713|")


def test_a_requeue_from_inside_becomes_a_request(inside: dict[str, str]) -> None:
    ended = run(inside, "scontrol", "requeue", "4713")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert list_requests(inside["SLURM_COLLOC_PACK"]) == [
        Request(Action.REQUEUE, 3, reason="scontrol requeue from inside")
    ]


def test_a_requeue_that_was_ruled_out_is_refused(inside: dict[str, str]) -> None:
    write_spec(Path(inside["SLURM_COLLOC_PACK"]), requeue=False)
    ended = run(inside, "scontrol", "requeue", "4713")
    assert ended.returncode == 2
    assert "--no-requeue" in ended.stderr
    assert list_requests(inside["SLURM_COLLOC_PACK"]) == []


def test_outside_of_a_pack_a_shim_is_the_real_command(inside: dict[str, str]) -> None:
    outside = {"PATH": inside["PATH"], "SLURM_COLLOC_PACK": inside["SLURM_COLLOC_PACK"]}
    assert run(outside, "scancel", "4713").stdout.endswith("/scancel|4713|")


def test_a_shim_without_a_real_command_says_so(inside: dict[str, str]) -> None:
    shims = inside["PATH"].split(":")[0]
    ended = run({**inside, "PATH": shims}, f"{shims}/scancel", "4713")
    assert ended.returncode == 2
    assert ended.stderr == ("csub: error: scancel: command not found in PATH behind csub's own\n")


def test_the_real_command_is_no_directory_and_not_the_shim_by_another_path(tmp_path: Path) -> None:
    shims, real = tmp_path / "shims", tmp_path / "real"
    for folder in (shims, real, tmp_path / "wrong" / "srun"):
        folder.mkdir(parents=True)
    for folder in (shims, real):
        (folder / "srun").write_text("#!/bin/sh\n")
        (folder / "srun").chmod(0o755)
    (tmp_path / "link").symlink_to(shims)
    path = f"{tmp_path}/link::{tmp_path}/wrong:{tmp_path}/none:{real}"
    assert find_real_command("srun", path, str(shims)) == f"{real}/srun"
    assert find_real_command("scancel", path, str(shims)) is None
