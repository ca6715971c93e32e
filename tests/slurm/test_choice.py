"""Which way to Slurm is taken, and how pyslurm is tried before anybody imports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import SlurmUnreachable, UsageProblem
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.choose_access import describe_access, open_slurm
from slurm_colloc.slurm.pyslurm_backend import (
    FOREIGN_JOBS_MAX,
    JOB_FIELDS,
    PyslurmAccess,
    PyslurmStatus,
    parse_release,
    render_duration,
)
from slurm_colloc.slurm.slurm_commands import SlurmAccess

from .conftest import RECORDED, build_library

FAKE = """
import os, sys
class PyslurmError(Exception): pass
class Job: {fields}
class Jobs: pass
class slurmctld:
    class Config:
        @staticmethod
        def load():
            return type("C", (), {{"version": "{slurm}"}})
with open({marks!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
{more}
"""


class Machine:
    """A folder that is first on the import path, where a pyslurm may be put."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = Settings(state_dir=str(folder / "state"))

    @property
    def imports(self) -> list[int]:
        marks = self.folder / "imports"
        return [int(line) for line in marks.read_text().split()] if marks.exists() else []

    def install(self, version: str, *, slurm: str = "25.11.7", more: str = "") -> None:
        site = self.folder / "site"
        fields = "; ".join(f"{name} = None" for name in JOB_FIELDS)
        text = FAKE.format(
            fields=fields, slurm=slurm, marks=str(self.folder / "imports"), more=more
        )
        (site / "pyslurm.py").write_text(text)
        info = site / f"pyslurm-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {version}\n"
        )

    def install_slurm(self, version: str) -> None:
        sinfo = self.folder / "bin" / "sinfo"
        sinfo.write_text(f"#!/bin/sh\necho slurm-wlm {version}\n")
        sinfo.chmod(0o755)

    def wants(self, choice: str) -> Settings:
        return Settings(state_dir=self.settings.state_dir, slurm_access=choice)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    for name in ("site", "bin"):
        (tmp_path / name).mkdir()
    kept = [path for path in sys.path if not (Path(path) / "pyslurm").is_dir()]
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *kept])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.delenv("SLURM_COLLOC_SLURM_ACCESS", raising=False)
    (tmp_path / "slurm.conf").write_text("ClusterName=test\n")
    real = sys.modules.pop("pyslurm", None)
    yield Machine(tmp_path)
    # What was imported here is a fake.
    sys.modules.pop("pyslurm", None)
    if real is not None:
        sys.modules["pyslurm"] = real


def test_without_pyslurm_the_commands_are_used_and_nothing_is_started(machine: Machine) -> None:
    assert describe_access(machine.settings) == "commands (pyslurm is not installed)"
    assert type(open_slurm(machine.settings, asks_often=True)) is SlurmAccess
    assert not (machine.folder / "state").exists()


def test_a_matching_pyslurm_is_used_where_jobs_are_followed(machine: Machine) -> None:
    machine.install("25.11.2")
    assert describe_access(machine.settings).startswith("pyslurm 25.11.2")
    assert isinstance(open_slurm(machine.settings, asks_often=True), PyslurmAccess)
    assert describe_access(machine.wants("pyslurm")) == "pyslurm 25.11.2"
    assert isinstance(open_slurm(machine.wants("pyslurm")), PyslurmAccess)
    assert describe_access(machine.wants("commands")) == "commands"
    assert type(open_slurm(machine.wants("commands"), asks_often=True)) is SlurmAccess


def test_a_call_that_asks_once_does_not_look_for_pyslurm(machine: Machine) -> None:
    machine.install("25.11.2")
    assert type(open_slurm(machine.settings)) is SlurmAccess
    assert machine.imports == []


def test_pyslurm_is_tried_in_a_child_process_once(machine: Machine) -> None:
    machine.install("24.11.0", slurm="25.11.7")
    wanted = "commands (pyslurm 24.11.0 does not match Slurm 25.11.7)"
    assert describe_access(machine.settings) == wanted
    assert describe_access(machine.settings) == wanted
    assert type(open_slurm(machine.settings, asks_often=True)) is SlurmAccess
    assert len(machine.imports) == 1
    assert os.getpid() not in machine.imports
    # All of the state is for its owner alone.
    assert (machine.folder / "state" / "pyslurm.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("changed", ["pyslurm", "configuration", "memory", "kind", "age"])
def test_it_is_tried_again_when_something_has_changed(machine: Machine, changed: str) -> None:
    machine.install("24.11.0", slurm="25.11.7")
    describe_access(machine.settings)
    memory = machine.folder / "state" / "pyslurm.json"
    if changed == "pyslurm":
        machine.install("24.11.0", slurm="24.11.5")
    elif changed == "configuration":
        (machine.folder / "slurm.conf").write_text("ClusterName=other\n")
    elif changed == "memory":
        memory.write_text("{")
    elif changed == "kind":
        kept = json.loads(memory.read_text())
        memory.write_text(json.dumps({**kept, "finding": {**kept["finding"], "slurm": 25}}))
    else:
        kept = json.loads(memory.read_text())
        memory.write_text(json.dumps({**kept, "time": time.time() - 2 * 86400}))
    describe_access(machine.settings)
    assert len(machine.imports) == 2


def test_an_import_that_ends_the_process_ends_only_the_child(machine: Machine) -> None:
    fatal = 'print("fatal: Could not establish a configuration source", file=sys.stderr)'
    machine.install("25.11.2", more=f"{fatal}; os._exit(1)")
    machine.install_slurm("25.11.7")
    assert describe_access(machine.settings) == (
        "commands (pyslurm 25.11.2 cannot be imported: "
        "fatal: Could not establish a configuration source)"
    )
    # It may be mended at any time, so it is not remembered.
    machine.install("25.11.2")
    assert describe_access(machine.settings).startswith("pyslurm 25.11.2")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("raise ImportError('libslurm.so.44: cannot open')", "cannot be loaded: libslurm.so.44"),
        ("del Job.array_tasks_waiting", "lacks what csub needs"),
        ("slurmctld.Config.load = lambda: 1 / 0", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_pyslurm_that_does_not_work_is_named_with_the_reason(
    machine: Machine, more: str, problem: str
) -> None:
    machine.install("25.11.2", more=more)
    machine.install_slurm("25.11.7")
    assert f"commands (pyslurm 25.11.2 {problem}" in describe_access(machine.settings)


def test_a_pyslurm_that_gets_no_answer_from_another_release_does_not_match(
    machine: Machine,
) -> None:
    machine.install(
        "25.11.2", more="def load(): raise PyslurmError('x')\nslurmctld.Config.load = load"
    )
    machine.install_slurm("22.05.8")
    wanted = "commands (pyslurm 25.11.2 does not match Slurm 22.05.8)"
    assert describe_access(machine.settings) == wanted


def test_a_demand_for_pyslurm_that_cannot_be_met_is_an_error(machine: Machine) -> None:
    wanted = machine.wants("pyslurm")
    with pytest.raises(SlurmUnreachable, match="pyslurm is not installed"):
        open_slurm(wanted)
    assert describe_access(wanted) == "none (pyslurm is not installed)"


def test_the_variable_goes_before_the_setting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_COLLOC_SLURM_ACCESS", "commands")
    assert describe_access(machine.wants("pyslurm")) == "commands"
    monkeypatch.setenv("SLURM_COLLOC_SLURM_ACCESS", "rest")
    with pytest.raises(UsageProblem, match="SLURM_COLLOC_SLURM_ACCESS=rest"):
        open_slurm(machine.settings)


def test_many_jobs_of_others_are_left_to_squeue(monkeypatch: pytest.MonkeyPatch) -> None:
    row = dict.fromkeys(JOB_FIELDS)
    rows = [{**row, "id": number, "state": "RUNNING"} for number in range(FOREIGN_JOBS_MAX + 2)]
    library = build_library(rows)
    loaded = library.Jobs.load()
    for number in range(1, FOREIGN_JOBS_MAX + 2):
        loaded[number].user_id = os.getuid() + 1
    slurm = PyslurmAccess(library)
    assert list(slurm.list_jobs()) == ["0"]
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SlurmUnreachable, match="squeue is not installed"):
        slurm.list_jobs()


def test_the_first_task_of_an_array_is_known_though_pyslurm_gives_it_no_number() -> None:
    row = {**dict.fromkeys(JOB_FIELDS), "array_id": 6}
    rows = [
        {**row, "id": 6, "array_tasks_waiting": "2-3", "state": "PENDING"},
        {**row, "id": 7, "state": "RUNNING", "allocated_nodes": "n1"},
        {**row, "id": 8, "array_task_id": 1, "state": "RUNNING", "allocated_nodes": "n1"},
        # The last record of an array has the array's own number: one that ran, and what is left
        # where all were cancelled before.
        {**row, "id": 9, "array_id": 9, "state": "CANCELLED", "allocated_nodes": "n1"},
        {**row, "id": 10, "array_id": 10, "state": "CANCELLED"},
    ]
    listed = PyslurmAccess(build_library(rows)).list_jobs()
    assert set(listed) == {"6_0", "6_1", "6_2", "6_3", "9_0", "10"}
    assert listed["6_0"].state == "RUNNING"


def test_an_error_of_pyslurm_is_explained_by_squeue(monkeypatch: pytest.MonkeyPatch) -> None:
    library = build_library([])

    def refuse() -> None:
        raise library.PyslurmError("Protocol version has changed")

    library.Jobs.load = refuse
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SlurmUnreachable, match="squeue is not installed"):
        PyslurmAccess(library).list_jobs()


def test_users_of_libslurm_find_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    library = build_library([])
    load = library.Jobs.load

    def look_and_load() -> Any:
        seen.append(os.environ["SLURM_BITSTR_LEN"])
        return load()

    library.Jobs.load = look_and_load
    for before in (None, "64"):
        if before:
            monkeypatch.setenv("SLURM_BITSTR_LEN", before)
        PyslurmAccess(library).list_jobs()
        assert os.environ.get("SLURM_BITSTR_LEN") == before
    assert seen == ["0", "0"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (62, "1:02"), (7200, "2:00:00"), (93784, "1-02:03:04"), (-1, "INVALID")],
)
def test_durations_are_written_as_squeue_writes_them(seconds: int, text: str) -> None:
    assert render_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "release"),
    [("25.11.2", (25, 11)), ("22.5.1", (22, 5)), ("22.05.8", (22, 5)), ("", ()), ("x.y", ())],
)
def test_releases_are_read_from_versions(text: str, release: tuple[int, ...]) -> None:
    assert parse_release(text) == release


def test_a_finding_without_a_version_of_slurm_is_not_usable() -> None:
    assert not PyslurmStatus(pyslurm="25.11.2").usable
    assert PyslurmStatus(pyslurm="25.11.2", slurm="25.11.7").usable


def test_every_release_of_the_recordings_is_complete() -> None:
    folders = sorted(folder.name for folder in RECORDED.iterdir())
    assert folders == ["22.05", "24.11", "25.11", "26.05"]
    files = {name: {path.name for path in (RECORDED / name).glob("*.txt")} for name in folders}
    assert len({frozenset(names) for names in files.values()}) == 1


def test_the_way_to_slurm_imports_nothing_of_pyslurm() -> None:
    code = "import sys, slurm_colloc.slurm.choose_access; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "slurm_colloc.slurm.choose_access" in loaded
    assert not {"pyslurm", "slurm_colloc.slurm.pyslurm_backend", "importlib.metadata"} & set(loaded)
