"""Qualities of service, read from sacctmgr and scontrol.

Where these tests run nothing is accounted, so the answers of an accounting database are written
after those that tests/accounting gets of a real one.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.plan import Association, Qos, QosTable
from slurm_colloc.slurm.accounting import parse_associations, parse_partitions, parse_qos, read_qos
from slurm_colloc.store.kept_answers import keep, read_kept
from slurm_colloc.submission.plan.target_nodes import look_up_max_wall_s

QOS = """\
normal|1-00:00:00|||||
short|02:00:00|DenyOnLimit|4|20|cpu=64,gres/gpu=8|gres/gpu=2
long|7-00:00:00|DenyOnLimit,OverPartQOS||||
free||||||
part_gpu|12:00:00|||||
lift|9-00:00:00|DenyOnLimit,PartitionTimeLimit||||
odd|when it is done|||||
broken|1
"""
ASSOC = """\
c|lab|lab||short|normal,short|||||
c|lab|lab|gpu|long|long,short|||||
c|lab|other|||normal,short|01:00:00|3||gres/gpu=6,gres/gpu:a100=2|many
c|lab|one|||short|||||
d|far|far|||long|||||
c|lab|||||00:00:00||||
"""
PARTITIONS = (
    "PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES "
    "QoS=part_gpu DefaultTime=NONE DisableRootJobs=NO MaxNodes=UNLIMITED MaxTime=7-00:00:00\n"
    "PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO "
    "QoS=N/A DefaultTime=NONE DisableRootJobs=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED\n"
)
HOUR = 3600
TABLE = QosTable(parse_qos(QOS), parse_associations(ASSOC, "c"), *parse_partitions(PARTITIONS))
REFUSED = (
    "You are not running a supported accounting_storage plugin\n"
    "Only 'accounting_storage/slurmdbd' is supported."
)


def test_each_qos_is_read_and_what_is_no_line_left_out() -> None:
    assert parse_qos(QOS) == {
        "normal": Qos(24 * HOUR),
        "short": Qos(2 * HOUR, jobs_at_once=4, gpus_at_once=8, gpus_per_job=2),
        "long": Qos(7 * 24 * HOUR, over_partition=True),
        "free": Qos(None),
        "part_gpu": Qos(12 * HOUR),
        "lift": Qos(9 * 24 * HOUR, over_max_time=True),
        "odd": Qos(None),
    }
    assert parse_partitions(PARTITIONS) == ({"gpu": "part_gpu"}, "gpu")
    assert parse_associations(ASSOC, "C") == (
        Association("lab", "", is_default=True, qos="short"),
        Association("lab", "gpu", is_default=True, qos="long"),
        Association("other", max_wall_s=HOUR, jobs_at_once=3, gpus_at_once=6),
        Association("one", qos="short"),
    )
    assert [row.account for row in parse_associations(ASSOC)] == [
        "lab",
        "lab",
        "other",
        "one",
        "far",
    ]


def mix_lines(text: str, bars: int) -> st.SearchStrategy[str]:
    """Lines with what stands in one of these lines and what stands in others."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == bars]
    fields = (st.sampled_from(sorted(set(column))) for column in zip(*rows, strict=True))
    return st.lists(st.tuples(*fields).map("|".join), max_size=20).map("\n".join)


@given(st.text() | mix_lines(QOS, 6) | mix_lines(ASSOC, 10))
def test_whatever_is_printed_is_read_or_left_out(text: str) -> None:
    for qos in parse_qos(text).values():
        assert qos.max_wall_s is None or qos.max_wall_s > 0
    for row in parse_associations(text):
        assert row.max_wall_s is None or row.max_wall_s > 0
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
        # Slurm keeps names of accounts and QoS in small letters and takes any.
        ("SHORT", "LAB", "cpu", 2),
        # The user's own: of the account, there of the partition, else what Slurm gives.
        (None, "lab", "cpu", 2),
        (None, "lab", "gpu", 7 * 24),
        (None, "other", "cpu", 24),
        (None, "one", "cpu", 2),
        (None, "unheard-of", "cpu", 24),
        # Of several accounts the default one counts.
        (None, None, "cpu", 2),
        (None, None, "gpu", 7 * 24),
        # Where no QoS has a limit, the association's counts.
        ("free", "other", "cpu", 1),
        ("short", "other", "cpu", 2),
        ("free", "other", "gpu", 12),
    ],
)
def test_the_limit_that_holds(
    qos: str | None, account: str | None, partition: str | None, hours: float | None
) -> None:
    expected = None if hours is None else hours * HOUR
    assert TABLE.find_max_wall_s(qos, account, partition) == expected


def test_of_several_accounts_without_a_default_nobody_knows_which_it_will_be() -> None:
    rows = tuple(dataclasses.replace(row, is_default=False) for row in TABLE.associations)
    table = dataclasses.replace(TABLE, associations=rows)
    assert table.find_max_wall_s(None, None, "cpu") is None
    assert table.find_max_wall_s("short", None, "cpu") == 2 * HOUR


class Commands:
    """sacctmgr and scontrol that answer what is written here, and note that they were asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        self.put("sacctmgr", f"case \"$*\" in *withassoc*) echo '{ASSOC}';; *) echo '{QOS}';; esac")
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
    assert read_kept(root, "qos", "c", QosTable) == TABLE
    assert read_kept(root, "qos", "d", QosTable) is None, "another cluster has its own"
    assert look_up_max_wall_s({"qos": "long"}, root, "d") == (7 * 24 * HOUR, "")
    assert len(commands.asked) == 6


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("qos", "days"),
    [("lift", 9), ("LIFT", 9), ("long", 7), ("lift,long", 7), (None, 1), ("free", 7)],
)
def test_a_qos_may_lift_maxtime_of_the_partition(
    tmp_path: Path, qos: str | None, days: int
) -> None:
    group = {"partition": "cpu", "account": "other", **({"qos": qos} if qos else {})}
    week = 7 * 24 * HOUR
    found = look_up_max_wall_s(group, tmp_path / "state", "c", max_time_s=week)
    # The account's own hour counts where the QoS has no limit.
    assert found == (HOUR if qos == "free" else days * 24 * HOUR, "")


def test_a_slurm_without_accounting_changes_nothing(commands: Commands, tmp_path: Path) -> None:
    commands.put("sacctmgr", f'echo "{REFUSED}" >&2; exit 1')
    for _ in range(2):
        found = look_up_max_wall_s({"qos": "short"}, tmp_path / "state", "c")
        assert found == (None, ""), "where nothing is accounted there is no QoS"
        assert len(commands.asked) == 1
    assert read_kept(tmp_path / "state", "qos", "c", QosTable) == QosTable()


def test_no_answer_is_no_limit_for_a_minute_at_most(commands: Commands, tmp_path: Path) -> None:
    answers = (commands.folder / "sacctmgr").read_text().split("\n", 2)[2]
    commands.put("sacctmgr", 'echo "sacctmgr: error: Connection refused" >&2; exit 1')

    why = "Slurm's accounting does not answer: Connection refused"

    def look(seconds: float) -> tuple[int | None, str]:
        group = {"qos": "short", "partition": "cpu"}
        return look_up_max_wall_s(group, tmp_path / "state", "c", now=6000.0 + seconds)

    for seconds in (0.0, 30.0, 59.9):
        assert look(seconds) == (None, why)
        assert len(commands.asked) == 1
    assert look(60.0) == (None, why)
    assert len(commands.asked) == 2
    commands.put("sacctmgr", answers.replace("END", ""))
    assert look(120.0) == (2 * HOUR, "")
    assert look(180.0) == (2 * HOUR, "")
    assert len(commands.asked) == 5


def test_no_more_is_asked_where_nothing_has_a_limit(commands: Commands) -> None:
    answers = (
        "case \"$*\" in *withassoc*) echo 'c|lab|lab|||normal|END||||';; "
        "*) echo 'normal||||||';; esac"
    )
    commands.put("sacctmgr", answers)
    assert read_qos(cluster="c") == QosTable({"normal": Qos()})
    assert len(commands.asked) == 2
    commands.put("sacctmgr", answers.replace("END", "01:00:00"))
    assert read_qos(cluster="c").find_max_wall_s(None, None, None) == HOUR


def test_who_gives_no_answer_is_left_alone(commands: Commands) -> None:
    commands.put("sacctmgr", "exec sleep 30")
    assert "no answer within 0.1 s" in read_qos(timeout_s=0.1).unknown


@pytest.mark.parametrize(
    "changes",
    [
        {"made_at": time.time() - 2 * HOUR},
        {"made_at": "then"},
        {"answer": {"known": [["a", {"max_wall_s": "1h"}]]}},
        {"answer": {"known": [["a", {"max_wall_s": 60.5}]]}},
        {"answer": {"known": [1]}},
        {"answer": {"known": {"a": {}}}},
        {"answer": {"associations": [{"partition": "gpu"}]}},
        {"answer": {"associations": [{"account": "a", "max_wall_s": True}]}},
        {"answer": {"partitions": None}},
        {"answer": None},
        {"schema": 99},
    ],
)
def test_what_is_old_or_damaged_is_asked_again(tmp_path: Path, changes: dict[str, object]) -> None:
    keep(tmp_path, "qos", "c", TABLE)
    assert read_kept(tmp_path, "qos", "c", QosTable) == TABLE
    path = tmp_path / "waits" / "qos.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert read_kept(tmp_path, "qos", "c", QosTable) is None


def test_what_is_kept_is_private(tmp_path: Path) -> None:
    root = tmp_path / "state" / "slurm_colloc"
    keep(root, "qos", "c", TABLE)
    for path in (root, *root.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_state_that_cannot_be_written_costs_a_question(tmp_path: Path) -> None:
    (tmp_path / "waits").write_text("in the way")
    keep(tmp_path, "qos", "c", TABLE)
    assert read_kept(tmp_path, "qos", "c", QosTable) is None
