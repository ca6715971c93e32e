"""Starting members: what each is given, and what runs it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.job import Job
from slurm_colloc.runtime import start_member
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.programs.member_commands import OwnMember
from slurm_colloc.runtime.start_member import PORTS
from slurm_colloc.runtime.step_command import build_srun_argv, build_wrapper_argv
from slurm_colloc.store.member_states import GpuUse, HomeRecord, write_held

from ..wait_until import wait_until
from .stepped_runner import SteppedRunner

SRUN = """#!/bin/sh
for word; do printf '%s\\n' "$word"; done >"$ASKED"
cat "$(eval echo \\${$#})" >"$ASKED.launch"
"""


def write_to(folder: Path) -> Callable[[Job], Job]:
    """Let members write into a folder that is there."""
    return lambda job: dataclasses.replace(job, directory=str(folder), arguments=("a b",))


def start(bed: SteppedRunner, number: int, place: int = 0) -> Member:
    """Start a member; it is not waited for."""
    (member,) = bed.adopt(number)
    assert bed.parts.starter.start(member, bed.members.places[place])
    return member


def start_by_srun(
    build_bed: Callable[..., SteppedRunner],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    **changes: Any,
) -> tuple[SteppedRunner, list[str], dict[str, Any]]:
    """Start the first member as a step; what srun was called with, and the launch file."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "srun").write_text(SRUN)
    (programs / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    bed = build_bed(launcher="srun", change=write_to(tmp_path), **changes)
    asked = tmp_path / "asked"
    environment = {**bed.allocation.environment, "ASKED": str(asked), "SLURM_CPUS_PER_TASK": "4"}
    # The mapping is the starter's own.
    bed.allocation.environment.update(environment)  # type: ignore[attr-defined]
    member = start(bed, 1)
    process = member.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, "srun has ended")
    words = asked.read_text().splitlines()
    return bed, words, json.loads(Path(f"{asked}.launch").read_text())


def test_a_member_is_a_step_beside_others(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, words, launch = start_by_srun(build_bed, tmp_path, monkeypatch)
    member = bed.members.by_number[1]
    assert member.prefix == str(bed.folder(1) / "run.1.1")
    wrapper = build_wrapper_argv(words[-5], f"{member.prefix}.launch")
    assert words == build_srun_argv("7/1", 100, wrapper)[1:]
    assert launch["argv"] == [str(bed.folder(1) / "script"), "a b"]
    assert (launch["directory"], launch["umask"], launch["is_step"]) == (str(tmp_path), 0o022, True)
    assert (launch["prefix"], launch["kill_wait_s"]) == (member.prefix, 30.0)
    assert launch["shares_cgroup"] is False


def test_its_environment_is_the_submission_s_with_what_is_its_own(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, _, launch = start_by_srun(build_bed, tmp_path, monkeypatch)
    environment = dict(launch["environment"])
    assert environment["HOME"] == "/home/ada"
    assert environment["SECRET"].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert environment["SLURM_COLLOC_MEMBER"] == "7/1"
    assert environment["PATH"].split(":")[0] == str(bed.folder(1) / "bin")
    assert int(environment["MASTER_PORT"]) in PORTS
    assert environment["TMPDIR"] == bed.members.by_number[1].tmpdir == launch["own_tmpdir"]
    assert re.fullmatch("/tmp/cs[0-9a-f]{6}", environment["TMPDIR"])


def test_names_of_sockets_fit_below_its_directory_where_the_site_s_is_long(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(prefix="csub-site", dir="/tmp") as site:
        assert len(site) == 22
        bed = build_bed(change=write_to(tmp_path))
        bed.parts.starter._added["TMPDIR"] = site
        made = Path(bed.parts.starter._make_tmpdir())
        assert str(made.parent) == site
        assert made.stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{made}/".ljust(len(str(made)) + 68, "s"))


def test_a_directory_that_is_there_is_no_member_s(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter((f"{tmp_path}/taken", f"{tmp_path}/free"))
    (tmp_path / "taken").mkdir()
    monkeypatch.setattr(start_member, "_name_directory", lambda _: next(names))
    bed = build_bed(change=write_to(tmp_path))
    assert start(bed, 1).tmpdir == f"{tmp_path}/free"


@pytest.mark.parametrize("name", ["", *sorted(start_member._OF_MPS)])
def test_no_daemon_that_is_not_its_own_gets_a_member_without_mps(
    build_bed: Callable[..., SteppedRunner],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    bed = build_bed(change=write_to(tmp_path))
    monkeypatch.setattr(bed.parts.gpu_mode, "place", lambda *_: (GpuUse("timeslice"), {}))
    if name:
        bed.parts.starter._added[name] = "/theirs"
    member = start(bed, 1)
    environment = dict(json.loads(Path(f"{member.prefix}.launch").read_text())["environment"])
    found = environment.get("CUDA_MPS_PIPE_DIRECTORY")
    if name:
        assert environment[name] == "/theirs"
        assert found in (None, "/theirs")
    else:
        assert found == f"{member.tmpdir}/mps"
        assert not os.path.lexists(found)


def test_a_member_runs_as_a_plain_process_and_writes_where_sbatch_would(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path
) -> None:
    bed = build_bed(change=write_to(tmp_path))
    member = start(bed, 2)
    process = member.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, "it has ended")
    bed.parts.starts.collect()
    bed.parts.ends.collect()
    assert (bed.read(2).state.value, bed.read(2).step) == ("COMPLETED", None)
    assert (tmp_path / "slurm-7_2.out").read_text() == "hello\n"
    assert member.outputs == ((str(tmp_path / "slurm-7_2.out"), 0),)


def test_of_an_output_that_is_there_only_what_comes_is_the_member_s(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path
) -> None:
    (tmp_path / "slurm-7_1.out").write_text("before\n")
    bed = build_bed(change=write_to(tmp_path))
    assert start(bed, 1).outputs == ((str(tmp_path / "slurm-7_1.out"), 7),)


def test_a_member_that_is_held_at_the_last_moment_is_not_started(bed: SteppedRunner) -> None:
    (member,) = bed.adopt(1)
    write_held(bed.pack, 1)
    assert not bed.parts.starter.start(member, bed.members.places[0])
    assert member.process is None
    # csub looks for this file before it says that a member is held.
    assert Path(f"{member.prefix}.launch").exists()


def test_each_start_has_files_of_its_own(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path
) -> None:
    bed = build_bed(change=write_to(tmp_path), attempt=3)
    (member,) = bed.adopt(1)
    member.record = dataclasses.replace(member.record, starts=2)
    assert bed.parts.starter.start(member, bed.members.places[0])
    assert member.prefix.endswith("/run.3.3")


def test_neighbours_get_ports_of_their_own_and_none_that_is_taken(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path
) -> None:
    # Where the first one looks: see Starter._choose_port.
    first = PORTS[(7 * 97 + 1) % len(PORTS)]
    with socket.socket() as taken:
        taken.bind(("", first))
        bed = build_bed(change=write_to(tmp_path), members=2)
        write_held(bed.pack, 1)
        ports = []
        for number in (1, 2):
            (member,) = bed.adopt(number)
            write_held(bed.pack, number)
            bed.parts.starter.start(member, bed.members.places[0])
            launch = json.loads(Path(f"{member.prefix}.launch").read_text())
            ports.append(int(dict(launch["environment"])["MASTER_PORT"]))
    assert first not in ports
    assert len(set(ports)) == 2


@pytest.mark.parametrize(
    ("launcher", "allowed"), [("auto", True), ("srun", False), ("process", False)]
)
def test_only_where_nobody_chose_a_launcher_another_is_taken(
    build_bed: Callable[..., SteppedRunner],
    capfd: pytest.CaptureFixture[str],
    launcher: str,
    allowed: bool,
) -> None:
    bed = build_bed(launcher=launcher)
    (member,) = bed.adopt(1)
    member.launcher = bed.parts.starter.launcher
    assert bed.parts.starter.fall_back(member, "no slots") is allowed
    # A second one that was started as a step too may try again, and nothing more is said.
    assert bed.parts.starter.fall_back(member, "no slots") is allowed
    said = capfd.readouterr().err
    assert said.count("job steps do not work here (no slots)") == int(allowed)
    assert bed.parts.starter.launcher == ("process" if allowed else launcher)


def test_one_of_another_submission_sees_its_own_submission(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path
) -> None:
    bed = build_bed(change=write_to(tmp_path))
    batch = {**bed.allocation.environment, "SLURM_SUBMIT_DIR": "/here", "SLURM_SUBMIT_HOST": "h1"}
    bed.allocation.environment.update(batch)  # type: ignore[attr-defined]
    bed.parts.starter._added.update(batch)
    (member,) = bed.adopt(2)
    member.home = HomeRecord("9", 5, "t.0", 1.5, "/there", "h2")
    script = bed.folder(2) / "script"
    script.unlink()
    script.write_text(
        "#!/bin/sh\necho $SLURM_COLLOC_MEMBER $SLURM_COLLOC_NAME $SLURM_SUBMIT_DIR "
        "$SLURM_SUBMIT_HOST\n"
    )
    script.chmod(0o700)
    assert bed.parts.starter.start(member, bed.members.places[0])
    process = member.process
    assert process is not None
    wait_until(lambda: process.poll() is not None, "it has ended")
    assert (tmp_path / "slurm-9_5.out").read_text() == "9/5 9_5 /there h2\n"
    # What asks its runner for something names it as the pack does.
    own = OwnMember(str(bed.folder(2)), {"job_id": "7", "real_id": "7", "member": "9/5"})
    assert own.number == 2


def test_plain_processes_of_a_pack_share_a_memory_group(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path
) -> None:
    bed = build_bed(change=write_to(tmp_path))
    (member,) = bed.adopt(1)
    write_held(bed.pack, 1)
    bed.parts.starter.start(member, bed.members.places[0])
    assert json.loads(Path(f"{member.prefix}.launch").read_text())["shares_cgroup"] is True


def test_ports_do_not_run_out_in_a_pack_of_many(
    build_bed: Callable[..., SteppedRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_member, "PORTS", range(12000, 12008))
    starter = build_bed(change=write_to(tmp_path)).parts.starter
    ports = [starter._choose_port(number) for number in range(1, 100)]
    assert all(first != second for first, second in itertools.pairwise(ports))
    # One that starts again and again takes one.
    assert len({starter._choose_port(100) for _ in range(100)}) == 1


@pytest.mark.parametrize(
    # The mode that is asked for, whether the site appends, starts before; whether it is emptied.
    "case",
    [
        (None, False, 0, True), (None, False, 1, False), (None, True, 0, False),
        ("append", False, 0, False), ("truncate", True, 0, True), ("truncate", True, 1, True),
    ],
)  # fmt: skip
def test_output_is_emptied_by_a_first_start_or_where_the_user_says_so(
    build_bed: Callable[..., SteppedRunner],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str | None, bool, int, bool],
) -> None:
    mode, site_appends, starts, truncates = case

    def change(job: Job) -> Job:
        job = dataclasses.replace(job, directory=str(tmp_path))
        return dataclasses.replace(
            job, truncate_output=mode == "truncate", asks_open_mode=mode is not None
        )

    bed = build_bed(change=change)
    monkeypatch.setattr(bed.parts.starter, "site_appends", site_appends)
    (member,) = bed.adopt(1)
    member.record = dataclasses.replace(member.record, starts=starts)
    assert bed.parts.starter.start(member, bed.members.places[0])
    assert member.process is not None
    launch = json.loads(Path(f"{member.prefix}.launch").read_text())
    assert launch["truncate"] is truncates
