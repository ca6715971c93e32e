"""Qualities of service, read from sacctmgr and scontrol.

Where these tests run nothing is accounted, so the answers of an accounting database are written
after sacctmgr(1) of 22.05; its refusal and scontrol's answer are their own.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.qos import Qos, QosTable
from slurm_colloc.slurm.qos import parse_defaults, parse_partitions, parse_qos, read_qos
from slurm_colloc.store.qos import keep_qos, read_kept_qos
from slurm_colloc.submission.qos import look_up_max_wall_s

QOS = """\
normal|1-00:00:00|
short|02:00:00|DenyOnLimit
long|7-00:00:00|DenyOnLimit,OverPartQOS
free||
part_gpu|12:00:00|
odd|when it is done|
broken|1
"""
ASSOC = """\
lab||short
lab|gpu|long
other||
"""
PARTITIONS = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES "
    "QoS=part_gpu DefaultTime=NONE DisableRootJobs=NO MaxNodes=UNLIMITED MaxTime=7-00:00:00\n"
    "PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO "
    "QoS=N/A DefaultTime=NONE DisableRootJobs=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED\n"
)
HOUR = 3600
TABLE = QosTable(parse_qos(QOS), parse_defaults(ASSOC), *parse_partitions(PARTITIONS))
REFUSED = (
    "You are not running a supported accounting_storage plugin\n"
    "Only 'accounting_storage/slurmdbd' is supported."
)


def test_each_qos_is_read_and_what_is_no_line_left_out() -> None:
    assert parse_qos(QOS) == {
        "normal": Qos(24 * HOUR),
        "short": Qos(2 * HOUR),
        "long": Qos(7 * 24 * HOUR, over_partition=True),
        "free": Qos(None),
        "part_gpu": Qos(12 * HOUR),
        "odd": Qos(None),
    }
    assert parse_partitions(PARTITIONS) == ({"gpu": "part_gpu"}, "gpu")
    assert parse_defaults(ASSOC) == (
        ("lab", "", "short"), ("lab", "gpu", "long"), ("other", "", "")
    )  # fmt: skip


@given(st.text())
def test_whatever_is_printed_is_read_or_left_out(text: str) -> None:
    for qos in parse_qos(text).values():
        assert qos.max_wall_s is None or qos.max_wall_s > 0
    parse_defaults(text)
    parse_partitions(text)


@pytest.mark.parametrize(
    ("qos", "account", "partition", "hours"),
    [
        # The partition's own counts first, unless the job's says otherwise.
        ("short", None, "gpu", 12),
        ("long", None, "gpu", 7 * 24),
        ("short", None, "cpu", 2),
        ("free", None, "cpu", None),
        ("free", None, "gpu", 12),
        ("nobody-knows", None, "cpu", None),
        # Without a partition that of the cluster's default, of several the shortest.
        ("short", None, None, 12),
        ("short", None, "gpu,cpu", 2),
        ("short,normal", None, "cpu", 2),
        # The user's own: of the account, there of the partition, else what Slurm gives.
        (None, "lab", "cpu", 2),
        (None, "lab", "gpu", 7 * 24),
        (None, "other", "cpu", 24),
        (None, "unheard-of", "cpu", 24),
        # Of two accounts nobody knows which it will be.
        (None, None, "cpu", None),
    ],
)
def test_the_limit_that_holds(
    qos: str | None, account: str | None, partition: str | None, hours: float | None
) -> None:
    expected = None if hours is None else hours * HOUR
    assert TABLE.find_max_wall_s(qos, account, partition) == expected


class Commands:
    """sacctmgr and scontrol that answer what is written here, and note that they were asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        self.put("sacctmgr", f"case \"$*\" in *assoc*) echo '{ASSOC}';; *) echo '{QOS}';; esac")
        self.put("scontrol", f"echo '{PARTITIONS}'")
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def put(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self.folder}/asked\n{body}\n')
        path.chmod(0o755)

    @property
    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(tmp_path / "bin", monkeypatch)


def test_slurm_is_asked_once_in_an_hour(commands: Commands, tmp_path: Path) -> None:
    root = tmp_path / "state"
    for _ in range(2):
        found = look_up_max_wall_s({"qos": "short", "partition": "cpu"}, root, "c")
        assert found == (2 * HOUR, "")
        assert len(commands.asked) == 3
    assert read_kept_qos(root, "c") == TABLE
    assert read_kept_qos(root, "d") is None, "another cluster has its own"
    assert look_up_max_wall_s({"qos": "long"}, root, "d") == (7 * 24 * HOUR, "")
    assert len(commands.asked) == 6


def test_a_slurm_without_accounting_changes_nothing(commands: Commands, tmp_path: Path) -> None:
    commands.put("sacctmgr", f'echo "{REFUSED}" >&2; exit 1')
    for _ in range(2):
        found = look_up_max_wall_s({"qos": "short"}, tmp_path / "state", "c")
        assert found == (None, ""), "where nothing is accounted there is no QoS"
        assert len(commands.asked) == 1
    assert read_kept_qos(tmp_path / "state", "c") == QosTable()


def test_no_answer_is_no_limit_for_a_minute_at_most(commands: Commands, tmp_path: Path) -> None:
    answers = (commands.folder / "sacctmgr").read_text().split("\n", 2)[2]
    commands.put("sacctmgr", 'echo "sacctmgr: error: Connection refused" >&2; exit 1')

    why = "Slurm's controller does not answer: Connection refused"

    def look(seconds: float) -> tuple[int | None, str]:
        group = {"qos": "short", "partition": "cpu"}
        return look_up_max_wall_s(group, tmp_path / "state", "c", now=6000.0 + seconds)

    for seconds in (0.0, 30.0, 59.9):
        assert look(seconds) == (None, why)
        assert len(commands.asked) == 1
    assert look(60.0) == (None, why)
    assert len(commands.asked) == 2
    commands.put("sacctmgr", answers)
    assert look(120.0) == (2 * HOUR, "")
    assert look(180.0) == (2 * HOUR, "")
    assert len(commands.asked) == 5


def test_no_more_is_asked_where_no_qos_has_a_limit(commands: Commands) -> None:
    commands.put("sacctmgr", "echo 'normal||'")
    assert read_qos() == QosTable({"normal": Qos()})
    assert len(commands.asked) == 1


def test_who_gives_no_answer_is_left_alone(commands: Commands) -> None:
    commands.put("sacctmgr", "exec sleep 30")
    assert "no answer within 0.1 s" in read_qos(timeout_s=0.1).unknown


@pytest.mark.parametrize(
    "changes",
    [
        {"made_at": time.time() - 2 * HOUR},
        {"made_at": "then"},
        {"known": {"a": [-5, False]}},
        {"known": {"a": ["1h", False]}},
        {"known": [1]},
        {"defaults": [["a"]]},
        {"partitions": None},
        {"schema": 99},
    ],
)
def test_what_is_old_or_damaged_is_asked_again(tmp_path: Path, changes: dict[str, object]) -> None:
    keep_qos(tmp_path, "c", TABLE)
    assert read_kept_qos(tmp_path, "c") == TABLE
    path = tmp_path / "waits" / "qos.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert read_kept_qos(tmp_path, "c") is None


def test_what_is_kept_is_private(tmp_path: Path) -> None:
    root = tmp_path / "state" / "slurm_colloc"
    keep_qos(root, "c", TABLE)
    for path in (root, *root.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_state_that_cannot_be_written_costs_a_question(tmp_path: Path) -> None:
    (tmp_path / "waits").write_text("in the way")
    keep_qos(tmp_path, "c", TABLE)
    assert read_kept_qos(tmp_path, "c") is None
