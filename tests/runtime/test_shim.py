"""The shims of a member as programs: whose they are, and what is left of the environment."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import MemberPlan
from slurm_colloc.runtime.path_shims import (
    SHIMMED,
    build_bash_variables,
    find_shims,
    give_shims,
    render_bash_env,
    write_shims,
)
from slurm_colloc.runtime.programs import member_commands
from slurm_colloc.slurm.real_command import find_real_command
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.pack_directory import MemberSpec
from slurm_colloc.store.runner_requests import (
    Action,
    Request,
    forget_request,
    list_requests,
)

LEAKS: dict[str, list[str | None]] = {
    "TMPDIR": ["/tmp/csub-4711-3-abc", None],
    "MASTER_PORT": ["12345", None],
    "OMP_NUM_THREADS": ["2", "7"],
    "SLURM_OVERLAP": ["1", None],
    "SLURM_CPU_BIND": ["mask_cpu:0x5", None],
}


class Inside:
    """A member of a pack with shims, before commands that say what they are given."""

    def __init__(self, base: Path) -> None:
        self.pack = base / "my pack"
        self.folder = self.pack / "members" / "0003"
        self.folder.mkdir(parents=True)
        (self.pack / "control").mkdir()
        self.write_spec(requeue=None)
        self.real = base / "real"
        self.real.mkdir()
        for name in SHIMMED:
            (self.real / name).write_text('#!/bin/sh\nprintf "%s|" real "$0" "$@"\n')
            (self.real / name).chmod(0o755)
        write_shims(self.pack, sys.executable)
        self.shims = find_shims(self.folder)
        self.environment = {
            "PATH": f"{self.shims}:{self.real}:/usr/bin:/bin",
            "HOME": str(base),
            "SLURM_JOB_ID": "4713",
            "SLURM_COLLOC_MEMBER": "4711/3",
            "SLURM_COLLOC_PACK": str(self.pack),
            "SLURM_COLLOC_START": str(self.folder / "run.1.1"),
            **{name: ours for name, (ours, _) in LEAKS.items() if ours},
        }
        known = {
            "job_id": "4713",
            "real_id": "4713",
            "member": "4711/3",
            "prefix": str(self.folder / "run.1.1"),
        }
        bash_env = str(self.folder / "bash_env")
        functions = build_bash_variables(self.environment, self.shims, bash_env)
        self.environment |= functions
        set_here = LEAKS | {name: [value, None] for name, value in functions.items()}
        self.environment["SLURM_COLLOC_SET"] = json.dumps(set_here)
        real = [str(self.real / name) for name in SHIMMED]
        text = render_bash_env(self.environment, "4713", self.shims, real)
        give_shims(self.folder, known, text)

    def write_spec(self, *, requeue: bool | None) -> None:
        """Write what a pack knows of the member."""
        job = Job(3, "a", "a.sh", (), "/", requeue=requeue)
        spec = MemberSpec(job, MemberPlan(0, 1, None, None), umask=0o022)
        write_json(self.folder / "spec.json", asdict(spec))

    def run(self, *argv: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the member's environment."""
        return self.run_in(self.environment | changes, *argv)

    def run_in(self, environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/usr/bin/env", *argv], env=environment, capture_output=True, text=True, check=False,
            timeout=30,
        )  # fmt: skip

    def run_script(self, shebang: str, body: str, **changes: str) -> str:
        """Run a script with the member's environment; what it prints."""
        script = self.pack / "script"
        script.write_text(f"#!{shebang}\n{body}\n")
        script.chmod(0o755)
        ended = self.run(str(script), **changes)
        return ended.stdout + ended.stderr

    def take_requests(self) -> list[Request]:
        requests = list_requests(self.pack)
        for request in requests:
            forget_request(request.path)
        return requests


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return Inside(tmp_path)


CANCEL = [Request(Action.CANCEL, 3, reason="scancel from inside")]


def test_a_shim_writes_no_bytecode_under_the_limits_of_a_script(inside: Inside) -> None:
    for name in SHIMMED:
        assert " -IBS " in Path(inside.shims, name).read_text()


def test_a_shim_hands_over_to_the_real_command_behind_it(inside: Inside) -> None:
    ended = inside.run("srun", "echo", "a b", "")
    assert ended.returncode == 0, ended.stderr
    words = ended.stdout.split("|")
    assert words[:4] == ["real", str(inside.real / "srun"), "--overlap", "--nodes=1"]
    assert words[-4:] == ["echo", "a b", "", ""]
    # So that the runner knows that there are steps to look for.
    assert (inside.folder / "run.1.1.steps").exists()


def test_what_is_not_the_members_own_goes_to_the_real_command_unchanged(inside: Inside) -> None:
    assert inside.run("scancel", "99").stdout.endswith("/scancel|99|")
    assert inside.run("scontrol", "show", "nodes").stdout.endswith("|show|nodes|")
    assert inside.run("squeue", "--json").stdout.endswith("/squeue|--json|")


def test_a_requeue_from_inside_becomes_a_request(inside: Inside) -> None:
    ended = inside.run("scontrol", "requeue", "4713")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    requests = [Request(Action.REQUEUE, 3, reason="scontrol requeue from inside")]
    assert inside.take_requests() == requests


def test_of_several_jobs_only_the_others_reach_slurm(inside: Inside) -> None:
    assert inside.run("scancel", "4713", "99").stdout.endswith("/scancel|99|")
    assert inside.take_requests() == CANCEL


def test_of_the_steps_of_its_job_only_a_member_s_own_reach_slurm(inside: Inside) -> None:
    rows = "4713.0|4711/1\\n4713.1|4711/3\\n4713.4|4711/3:python\\n"
    (inside.real / "squeue").write_text(f"#!/bin/sh\nprintf '{rows}'\n")
    assert inside.run("scancel", "4713.4").stdout.endswith("/scancel|4713.4|")
    for step in ("0", "1", "7"):
        ended = inside.run("scancel", f"4713.{step}")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == (
            f"csub: error: scancel: 4713.{step} is no step that this job has started: its steps "
            "are: 4713.4; others are of other jobs in its pack\n"
        )
    assert inside.take_requests() == []
    assert inside.run("scancel", "4713.batch").stdout == ""
    assert inside.take_requests() == CANCEL


def test_a_requeue_that_was_ruled_out_is_refused(inside: Inside) -> None:
    inside.write_spec(requeue=False)
    ended = inside.run("scontrol", "requeue", "4713,99")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--no-requeue" in ended.stderr
    assert inside.take_requests() == []


# -- identity ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIMMED)
def test_a_program_that_clears_its_environment_reaches_the_real_command_once(
    inside: Inside, name: str
) -> None:
    cleared = {"PATH": inside.environment["PATH"]}
    assert (
        inside.run_in(cleared, name, "--version").stdout == f"real|{inside.real}/{name}|--version|"
    )


@pytest.mark.parametrize("name", SHIMMED)
def test_a_program_that_clears_slurm_s_variables_reaches_the_real_command_once(
    inside: Inside, name: str
) -> None:
    kept = {key: text for key, text in inside.environment.items() if "SLURM" not in key}
    assert inside.run_in(kept, name, "-V").stdout == f"real|{inside.real}/{name}|-V|"


def test_shims_of_several_packs_before_each_other_end_at_the_real_command(
    inside: Inside, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Inside(tmp_path / "other")
    (tmp_path / "link").symlink_to(other.shims)
    copies = tmp_path / "copies"
    shutil.copytree(Path(inside.shims).resolve(), copies)
    path = f"{inside.shims}:{tmp_path}/link:{copies}:{other.shims}:{inside.real}:/usr/bin:/bin"
    assert inside.run("scancel", "99", PATH=path).stdout == f"real|{inside.real}/scancel|99|"


@pytest.mark.parametrize("command", [["scancel", "4800"], ["scancel", "4713"]])
def test_in_a_job_that_the_member_submitted_a_shim_is_the_real_command(
    inside: Inside, command: list[str]
) -> None:
    ended = inside.run(*command, SLURM_JOB_ID="4800")
    assert ended.stdout.endswith(f"/scancel|{command[1]}|")
    assert inside.take_requests() == []


def test_outside_of_any_job_a_shim_is_the_real_command(inside: Inside) -> None:
    outside = {"PATH": inside.environment["PATH"]}
    assert inside.run_in(outside, "scancel", "4713").stdout.endswith("/scancel|4713|")


def test_below_the_member_s_wrapper_a_cleared_environment_is_no_other_job(
    inside: Inside, tmp_path: Path
) -> None:
    # As runtime.step_command starts it; what it runs has nothing in its environment.
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text("import subprocess, sys; sys.exit(subprocess.run(sys.argv[2:]).returncode)")
    launch = str(inside.folder / "run.1.1.launch")
    shim = f"{inside.shims}/scancel"
    cleared = ["/usr/bin/env", "-i", f"PATH={inside.environment['PATH']}"]
    for call in ([shim, "4713"], [f"{inside.pack}/bin/scancel", "4713"]):
        ended = inside.run(sys.executable, str(wrapper), launch, *cleared, *call)
        assert (ended.stdout, ended.stderr) == ("", "")
        assert inside.take_requests() == CANCEL


def test_a_shim_without_a_real_command_says_so(inside: Inside) -> None:
    ended = inside.run(f"{inside.shims}/scancel", "4713", PATH=inside.shims)
    assert ended.returncode == 2
    assert ended.stderr == "csub: error: scancel: command not found in PATH behind csub's own\n"


def test_the_real_command_is_no_directory_and_not_the_shim_by_another_path(
    inside: Inside, tmp_path: Path
) -> None:
    (tmp_path / "wrong" / "srun").mkdir(parents=True)
    (tmp_path / "link").symlink_to(inside.shims)
    path = f"{tmp_path}/link::{tmp_path}/wrong:{tmp_path}/none:{inside.real}"
    assert find_real_command("srun", path) == f"{inside.real}/srun"
    assert find_real_command("sinfo", path) is None


# -- what jobs that a member submits see -------------------------------------------------------

SHOW = 'env -0 | tr "\\0" "\\n"'


def parse(text: str) -> dict[str, str]:
    return dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)


def assert_clean(seen: dict[str, str], inside: Inside) -> None:
    assert not [name for name in seen if name.startswith("SLURM_COLLOC")]
    # A site's profile may export others.
    assert not seen.keys() & build_bash_variables({}, "", "").keys()
    assert not seen.keys() & {"TMPDIR", "MASTER_PORT", "SLURM_OVERLAP", "SLURM_CPU_BIND"}
    assert seen["OMP_NUM_THREADS"] == "7"
    assert str(inside.pack) not in seen["PATH"]


def make_showing(inside: Inside, name: str) -> None:
    (inside.real / name).write_text(f"#!/bin/sh\n{SHOW}\n")


@pytest.mark.parametrize("job_id", ["4713", "4800"])
@pytest.mark.parametrize("name", ["sbatch", "salloc"])
def test_what_is_submitted_through_a_shim_sees_nothing_of_the_member(
    inside: Inside, name: str, job_id: str
) -> None:
    make_showing(inside, name)
    assert_clean(parse(inside.run(name, "x.sh", SLURM_JOB_ID=job_id).stdout), inside)


def test_what_the_member_has_set_since_is_its_own(inside: Inside) -> None:
    make_showing(inside, "sbatch")
    seen = parse(inside.run("sbatch", TMPDIR="/scratch/mine", OMP_NUM_THREADS="16").stdout)
    assert (seen["TMPDIR"], seen["OMP_NUM_THREADS"]) == ("/scratch/mine", "16")


@pytest.mark.parametrize("shebang", ["/bin/bash", "/bin/bash -l", "/bin/bash -eu"])
def test_bash_takes_everything_back_in_a_job_that_inherited_it(
    inside: Inside, shebang: str
) -> None:
    # As after `/usr/bin/sbatch`, which no shim has seen.
    told = inside.run_script(shebang, f"type -t scancel\n{SHOW}", SLURM_JOB_ID="4800")
    assert_clean(parse(told), inside)
    assert not told.startswith("function")


# -- bash, whatever becomes of PATH ------------------------------------------------------------

CANCELLING = {
    "by its name": "scancel $SLURM_JOB_ID",
    "after PATH was set": "export PATH=/usr/bin:/bin; scancel $SLURM_JOB_ID",
    "by its path": "REAL/scancel $SLURM_JOB_ID",
    "by Slurm's usual path": "/usr/bin/scancel $SLURM_JOB_ID",
    "in another bash": "export PATH=/usr/bin:/bin; bash -c 'scancel $SLURM_JOB_ID'",
    "by a program of that bash": "export PATH=/usr/bin:/bin; bash -c 'env scancel $SLURM_JOB_ID'",
    "in the background": "scancel $SLURM_JOB_ID & wait",
    "without the variable": "export PATH=/usr/bin:/bin; id=$SLURM_JOB_ID; scancel $id",
}


@pytest.mark.parametrize("shebang", ["/bin/bash", "/bin/bash -l", "/bin/bash -eu"])
@pytest.mark.parametrize("how", CANCELLING)
def test_bash_cancels_the_member_alone(inside: Inside, shebang: str, how: str) -> None:
    body = CANCELLING[how].replace("REAL", str(inside.real).replace(" ", "\\ "))
    assert "real|" not in inside.run_script(shebang, body)
    assert inside.take_requests() == CANCEL


def test_where_the_profile_sets_bash_env_functions_are_left(inside: Inside) -> None:
    body = "export PATH=/usr/bin:/bin; scancel $SLURM_JOB_ID"
    assert inside.run_script("/bin/bash", body, BASH_ENV="/dev/null") == ""
    assert inside.take_requests() == CANCEL


def test_srun_stays_a_program_so_that_it_can_be_waited_for_and_ended(inside: Inside) -> None:
    assert inside.run_script("/bin/bash -l", "type -t srun; type -t salloc") == "file\nfile\n"


def test_what_the_user_has_bash_read_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine=yes\n")
    (tmp_path / "b").mkdir()
    inside = Inside(tmp_path / "b")
    described = json.loads(inside.environment["SLURM_COLLOC_SET"])
    described["BASH_ENV"][1] = "$BASE/mine"
    environment = inside.environment | {"SLURM_COLLOC_SET": json.dumps(described)}
    text = render_bash_env(environment, "4713", inside.shims, [])
    (inside.folder / "bash_env").write_text(text)
    told = inside.run_script("/bin/bash", 'echo "$mine ${csub_bash_env-unset}"', BASE=str(tmp_path))
    assert told == "yes unset\n"


def test_functions_of_a_pack_that_is_gone_are_the_real_commands(inside: Inside) -> None:
    script = f"export PATH={inside.real}:/usr/bin:/bin; scancel 99"
    Path(inside.shims).unlink()
    for job_id in ("4800", ""):
        assert inside.run_script("/bin/bash", script, SLURM_JOB_ID=job_id).endswith("/scancel|99|")


@pytest.mark.parametrize("bash_env", ["read", "not read"])
def test_shims_that_cannot_be_seen_are_not_taken_for_gone_in_the_own_job(
    inside: Inside, bash_env: str
) -> None:
    """Slurm's scancel would end the whole pack."""
    script = f"export PATH={inside.real}:/usr/bin:/bin; scancel $SLURM_JOB_ID"
    Path(inside.shims).unlink()
    # As on a file system that fails.
    Path(inside.shims).symlink_to("bin")
    changes = {} if bash_env == "read" else {"BASH_ENV": "/dev/null"}
    said = inside.run_script("/bin/bash", script, **changes)
    assert "real|" not in said
    assert "Too many levels of symbolic links" in said


# -- a file system that fails ------------------------------------------------------------------


def call(inside: Inside, monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int:
    """Act as a shim in this process, where it can be seen what it would have become."""

    def become(real: str, *_: object) -> None:
        raise AssertionError(f"it became {real}")

    monkeypatch.setattr(os, "environ", inside.environment)
    monkeypatch.setattr(os, "execve", become)
    return member_commands.main(f"{inside.shims}/{name}", arguments)


@pytest.mark.parametrize("arguments", [["scancel", "4713"], ["scontrol", "requeue", "4713"]])
def test_a_member_that_cannot_be_told_is_not_taken_for_the_whole_pack(
    inside: Inside,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.setattr(member_commands, "_PATIENCE_S", 0.0)
    known = inside.folder / "inside"
    known.unlink()
    # As a file system that fails: it is there, and cannot be read.
    known.symlink_to("inside")
    assert call(inside, monkeypatch, *arguments) == 1
    assert capsys.readouterr().err == (
        f"csub: error: {arguments[0]}: it cannot be told which member calls it: {known}: Too many "
        "levels of symbolic links; nothing was done\n"
    )
    with pytest.raises(AssertionError, match=r"it became .*/squeue"):
        call(inside, monkeypatch, "squeue")


def test_a_file_system_that_fails_for_a_moment_is_asked_again(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [errno.ESTALE, errno.EIO, errno.ETIMEDOUT]
    opened = open

    def fail(path: str, *words: object, **named: object) -> object:
        if str(path).endswith("/inside") and failures:
            raise OSError(failures.pop(), "", path)
        return opened(path, *words, **named)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", fail)
    assert call(inside, monkeypatch, "scancel", "4713") == 0
    assert inside.take_requests() == CANCEL
