"""Reports of packs to the site: dropped, collected with distrust, summed up, exported."""

from __future__ import annotations

import base64
import dataclasses
import functools
import gzip
import json
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slurm_colloc.administration.fleet_spool import (
    FILES_OF_USER_MOST,
    PATIENCE_S,
    SECONDS_OF_USER,
    Collection,
    collect,
    remove_done,
)
from slurm_colloc.administration.fleet_sums import (
    FleetPack,
    build_blob,
    compare_gpus,
    keep,
    may_replace,
    read_days,
    sum_fleet,
)
from slurm_colloc.errors import StateError
from slurm_colloc.model.fleet_record import FleetRecord, build_mapping, parse_fleet_record
from slurm_colloc.slurm.accounting import AccountedJob, parse_accounts
from slurm_colloc.store.atomic_files import drop_file

from ..calls import UserWithoutSlurm
from ..report.generated import T0, Truth, make_pack

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = 54321, 54322
"""Users without a name."""

GPU = "GPU-11111111-2222-3333-4444-55555555555{}"

RECORD = FleetRecord(
    job_id="4711", cluster="here", attempt=1, node="node1", gpu_model="NVIDIA H200",
    gpu_uuid=GPU.format(0), gpu_memory_mb=143771.0, mode="mps", gpus=1, started_at=T0,
    ended_at=T0 + 3600, members=4, failed=1, wasted_share=0.25, saved_s=5400.0, slowdown=1.3,
    slowdown_of=2, energy_j=1.8e6, saved_kwh=0.4, sm_active=0.6, utilization=0.9,
    gpu_memory_used_mb=40000.0,
    cpus=8, cpu_s=20000.0, host_memory_mb=16000.0, rates=(("a" * 32, 20.0),),
)  # fmt: skip
JOB = AccountedJob(
    "4711", "4711", "here", os.geteuid(), "ada", "physics", "gpu", T0 - 10, T0 + 3610, "node1", 1,
    8, 32768.0, "",
)  # fmt: skip


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "spool"
    path.mkdir()
    path.chmod(0o1733)
    return path


def drop(spool: Path, value: Any = None, **changes: Any) -> None:
    found = build_mapping(dataclasses.replace(RECORD, **changes)) if value is None else value
    drop_file(spool, json.dumps(found).encode())


def ask(*jobs: AccountedJob) -> Any:
    def answer(_ids: Sequence[str]) -> Mapping[str, AccountedJob]:
        return {job.job_id: job for job in jobs}

    return answer


def test_what_was_dropped_is_kept_once_and_gone_from_the_spool(spool: Path, tmp_path: Path) -> None:
    drop(spool)
    drop(spool, attempt=2, members=3)
    found = collect(str(spool), ask(JOB))
    assert (len(found.accepted), found.rejected.total(), found.waiting) == (2, 0, 0)
    store = str(tmp_path / "store")
    keep(store, found.accepted)
    keep(store, found.accepted)
    assert remove_done(str(spool), found.done) == []
    assert list(spool.iterdir()) == []
    (pack,) = read_days(store)
    assert (pack.user, pack.account, pack.partition) == ("ada", "physics", "gpu")
    assert pack.record.members == 3, "the last attempt counts"
    assert pack.day == "2023-11-14"
    (row,) = sum_fleet([pack])
    assert row.gpu_s == 3600
    assert row.wasted_s == 900
    assert read_days(store, since="2024-01-01") == []
    # A day that a full disk cut short, or that somebody has spoilt.
    with (Path(store) / "days" / "2023-11-14.jsonl").open("ab") as file:
        file.write(b'{"user": "x", "pack": {}}\n[1]\n\xff\n{"user"')
    assert len(read_days(store)) == 1


@pytest.mark.parametrize(
    ("changes", "job", "reason"),
    [
        ({}, {"uid": 12345}, "owner"),
        ({}, {"uid": None}, "owner"),
        ({"node": "node2"}, {}, "node"),
        ({"gpus": 2}, {}, "gpus"),
        ({"gpu_set": 1}, {}, "gpus"),
        ({"cluster": "there"}, {}, "cluster"),
        ({"started_at": T0 - 4000}, {}, "time"),
        ({"ended_at": T0 + 9000}, {}, "time"),
        ({}, {"started_at": None, "ended_at": T0}, "time"),
    ],
)
def test_a_report_that_slurm_contradicts_is_refused(
    spool: Path, changes: dict[str, Any], job: dict[str, Any], reason: str
) -> None:
    drop(spool, **changes)
    found = collect(str(spool), ask(dataclasses.replace(JOB, **job)))
    assert found.accepted == []
    assert dict(found.rejected) == {reason: 1}
    assert len(found.done) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "x"}, {"schema": 2}, {"job_id": "1;rm -rf /"}, {"job_id": 4711}, {"node": "a b"},
        {"gpu_model": "\x1b[31m"}, {"gpu_uuid": "../../x"}, {"mode": "=1+1"}, {"gpus": -1},
        {"gpus": 10**30}, {"gpu_set": -1}, {"gpu_set": 64}, {"members": -1},
        {"members": True}, {"failed": 99}, {"energy_j": 1e30},
        {"ended_at": T0 - 1}, {"ended_at": "now"}, {"slowdown": -1.0}, {"slowdown_of": 0},
        {"slowdown_of": 5}, {"saved_s": 1e12},
        {"rates": [["a" * 32, 0.0]]}, {"rates": [["b", 1.0]]}, {"rates": {"a": 1}},
        {"rates": [["a" * 32, 1.0]] * 100}, {"cluster": None}, {"started_at": None},
    ],
)  # fmt: skip
def test_content_out_of_bounds_is_refused(spool: Path, change: dict[str, Any]) -> None:
    drop(spool, {**build_mapping(RECORD), **change})
    assert dict(collect(str(spool), ask(JOB)).rejected) == {"content": 1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "content"), (b"[" * 20_000, "content"), (b"\xff\xfe", "content"),
        (b'{"kind": NaN}', "content"), (b"1" * 6000, "content"), (b" " * 40_000, "size"),
        (b'{"kind":"slurm_colloc.fleet","kind":"x"}', "content"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused(spool: Path, data: bytes, reason: str) -> None:
    drop_file(spool, data)
    assert dict(collect(str(spool), ask(JOB)).rejected) == {reason: 1}


def test_links_pipes_and_directories_are_refused_and_not_followed(
    spool: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim.json"
    victim.write_text(json.dumps(build_mapping(RECORD)))
    (spool / "a.json").symlink_to(victim)
    os.link(victim, spool / "b.json")
    os.mkfifo(spool / "c.json")
    (spool / "d.json").mkdir()
    (spool / "e.txt").write_text("x")
    (spool / ".new.f.json").write_text("half")
    # A whole report can be read by its collector; root reads all.
    (spool / "g.json").write_text("{}")
    (spool / "g.json").chmod(0)
    found = collect(str(spool), ask(JOB))
    assert found.accepted == []
    unreadable = "content" if os.geteuid() == 0 else "mode"
    assert dict(found.rejected) == {"kind": 3, "links": 1, "name": 1, unreadable: 1}
    assert remove_done(str(spool), found.done) == []
    assert [entry.name for entry in spool.iterdir()] == [".new.f.json"], "it is being written"
    assert victim.exists()
    (spool / "d.json").mkdir()
    (spool / "d.json" / "inner").write_text("x")
    assert remove_done(str(spool), ["d.json", "gone.json"]) == ["d.json"]
    shutil.rmtree(spool / "d.json")
    found = collect(str(spool), ask(), now=time.time() + 2 * PATIENCE_S)
    assert found.done == [".new.f.json"]


def test_a_report_waits_for_the_accounting_for_a_day(spool: Path) -> None:
    drop(spool)
    running = dataclasses.replace(JOB, ended_at=None)
    for jobs in ((), (running,)):
        found = collect(str(spool), ask(*jobs))
        assert (found.waiting, found.done) == (1, [])
    # Who sets a file's time back is believed no sooner.
    (path,) = spool.iterdir()
    os.utime(path, (0, 0))
    assert collect(str(spool), ask()).waiting == 1
    later = time.time() + 2 * PATIENCE_S
    found = collect(str(spool), ask(), now=later)
    assert dict(found.rejected) == {"unknown job": 1}
    # What it says of its end is compared with Slurm's word, so that comes first.
    assert collect(str(spool), ask(running), now=later).waiting == 1

    def fails(_ids: Sequence[str]) -> Mapping[str, AccountedJob]:
        raise StateError("sacct failed")

    with pytest.raises(StateError):
        collect(str(spool), fails)
    assert len(list(spool.iterdir())) == 1


def test_one_user_does_not_keep_others_waiting(spool: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("slurm_colloc.administration.fleet_spool.FILES_OF_USER_MOST", 3)
    for _ in range(5):
        drop(spool)
    found = collect(str(spool), ask(JOB))
    assert (len(found.accepted), found.waiting) == (3, 2)
    assert FILES_OF_USER_MOST > 100
    for path in spool.iterdir():
        path.unlink()
    for number in range(5):
        drop_file(spool, b"nothing")
        (spool / f"link{number}.json").symlink_to("/etc/passwd")
    found = collect(str(spool), ask(JOB))
    assert (found.rejected.total(), found.waiting) == (3, 7), "refused ones have a bound, too"


def test_a_user_s_files_cost_a_run_no_more_than_their_time(spool: Path) -> None:
    for _ in range(6):
        drop(spool)
    spent_s = 0.0

    def clock() -> float:
        # Each look costs a third of what all files of one user may.
        nonlocal spent_s
        spent_s += SECONDS_OF_USER / 3
        return spent_s

    found = collect(str(spool), ask(JOB), clock=clock)
    assert (len(found.accepted), found.waiting, dict(found.rejected)) == (3, 3, {})
    remove_done(str(spool), found.done)
    found = collect(str(spool), ask(JOB))
    assert (len(found.accepted), found.waiting) == (3, 0)


def test_what_a_user_has_too_much_of_is_met_once(spool: Path, monkeypatch: Any) -> None:
    module = "slurm_colloc.administration.fleet_spool"
    for name, value in (("FILES_OF_USER_MOST", 2), ("WAITING_OF_USER_MOST", 3), ("FILES_MOST", 4)):
        monkeypatch.setattr(f"{module}.{name}", value)
    for number in range(12):
        drop(spool) if number % 2 else drop_file(spool, b"nothing")
    for number in range(40):
        (spool / f".new.{number}.json").touch()
    files = len(list(spool.iterdir()))
    found = collect(str(spool), ask(JOB))
    assert found.rejected["too many"] > 30
    remove_done(str(spool), found.done)
    left = len(list(spool.iterdir()))
    assert left == files - len(found.done) <= 2 + 3 + 2
    # The rest is read in its turn.
    for _ in range(4):
        found = collect(str(spool), ask(JOB))
        remove_done(str(spool), found.done)
    assert [path for path in spool.iterdir() if not path.name.startswith(".new.")] == []


def test_a_job_that_has_no_gpu_by_slurm_waits_a_day_and_is_told(spool: Path) -> None:
    drop(spool)
    without = dataclasses.replace(JOB, gpus=0)
    found = collect(str(spool), ask(without))
    assert (found.waiting, found.uncounted, found.done) == (1, 1, [])
    found = collect(str(spool), ask(without), now=time.time() + 2 * PATIENCE_S)
    assert dict(found.rejected) == {"gpus": 1}


def test_a_pack_without_a_gpu_has_no_gpu_time(spool: Path) -> None:
    unknown = {"gpu_uuid": None, "gpu_model": None, "saved_s": None, "energy_j": None}
    drop(spool, gpus=0, saved_kwh=None, **unknown)
    found = collect(str(spool), ask(dataclasses.replace(JOB, gpus=0)))
    assert [entry.record.gpu_s for entry in found.accepted] == [0.0]


def test_packs_on_the_gpu_sets_of_a_job_count_within_the_job_s_gpus(
    spool: Path, tmp_path: Path
) -> None:
    job = dataclasses.replace(JOB, gpus=3)
    drop(spool, gpus=1, gpu_set=0)
    drop(spool, gpus=1, gpu_set=1)
    found = collect(str(spool), ask(job))
    store = str(tmp_path / "store")
    keep(store, found.accepted)
    (row,) = sum_fleet(read_days(store))
    assert (row.packs, row.members, row.gpu_s) == (2, 8, 7200)
    assert build_blob(found.accepted[0].record, job) == "", "it is one of several"
    # A third set cannot have three GPUs more.
    drop(spool, gpus=3, gpu_set=2)
    keep(store, collect(str(spool), ask(job)).accepted)
    (row,) = sum_fleet(read_days(store))
    assert row.gpu_s == 7200


def test_sums_of_what_no_pack_knows_are_unknown() -> None:
    unknown = dataclasses.replace(RECORD, saved_s=None, energy_j=None, saved_kwh=None)
    pack = FleetPack("2023-11-14", "ada", "a", "gpu", "1", unknown, "north", 1)
    (row,) = sum_fleet([pack])
    assert (row.saved_s, row.energy_j, row.saved_kwh) == (None, None, None)
    (row,) = sum_fleet([pack, dataclasses.replace(pack, record=RECORD)])
    assert (row.saved_s, row.energy_j, row.saved_kwh) == (5400.0, 1.8e6, 0.4)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="acts as other users")
def test_users_neither_list_nor_read_nor_remove_what_others_drop(tmp_path: Path) -> None:
    spool = Path(tempfile.mkdtemp(prefix="csub-spool-", dir="/var/tmp"))
    try:
        spool.chmod(0o1733)
        text = json.dumps(build_mapping(RECORD)).encode()
        assert as_user(FIRST, lambda: drop_file(spool, text)) == 0
        (path,) = spool.iterdir()
        assert path.stat().st_uid == FIRST
        for act in (
            lambda: os.listdir(spool),  # noqa: PTH208
            path.unlink,
            lambda: path.rename(spool / "x"),
            lambda: path.write_text("x"),
        ):
            assert as_user(SECOND, act) == 1
            assert path.read_bytes() == text
        found = collect(str(spool), ask(JOB))
        assert dict(found.rejected) == {"owner": 1}, "it is not of the job's owner"
        owned = dataclasses.replace(JOB, uid=FIRST)
        assert len(collect(str(spool), ask(owned)).accepted) == 1
    finally:
        shutil.rmtree(spool)
    assert tmp_path.exists()


def as_user(uid: int, act: Callable[[], object]) -> int:
    """Do something as another user: 0 where it could be done, 1 where it was refused."""
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            act()
            status = 0
        except PermissionError:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_spool_that_lets_users_remove_others_files_is_refused(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    with pytest.raises(StateError, match="cannot write into"):
        drop_file(spool, b"x")
    spool.mkdir()
    spool.chmod(0o777)
    with pytest.raises(StateError, match="1733"):
        drop_file(spool, b"x")
    assert list(spool.iterdir()) == []
    spool.chmod(0o1733)
    drop_file(spool, b"x")
    (path,) = spool.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert re.fullmatch(r"[0-9a-f]{32}\.json", path.name)


def test_a_slow_gpu_is_told_where_several_jobs_of_several_users_say_so() -> None:
    def make(user: str, gpu: int, rates: list[tuple[str, float]]) -> FleetPack:
        record = dataclasses.replace(RECORD, gpu_uuid=GPU.format(gpu), node=f"node{gpu}",
                                     rates=tuple((s * 32, r) for s, r in rates))  # fmt: skip
        return FleetPack("2023-11-14", user, "a", "gpu", f"{user}{gpu}", record, "north", 1)

    jobs = [("a", 20.0), ("b", 5.0), ("c", 100.0)]
    slow = [(s, 0.8 * r) for s, r in jobs]
    packs = [make("ada", 0, jobs), make("ada", 1, jobs), make("ada", 2, slow)]
    # One user alone tells of the third GPU.
    first = compare_gpus(packs)[0]
    assert (first.node, round(first.rate or 0.0, 2), first.users) == ("node2", 0.8, 1)
    assert not first.is_slow
    # Another has run one job there, which was as fast as elsewhere; and the same job as ada's.
    ada = [make("ada", 0, jobs), make("ada", 2, [(s, 1.0) for s, _ in jobs])]
    ben = [make("ben", 0, [*jobs, ("d", 3.0)]), make("ben", 2, [("d", 3.0)])]
    first, *_ = compare_gpus([*ada, *ben])
    assert (first.jobs, first.users, first.slow_for, first.is_slow) == (4, 2, 1, False)
    ben = [make("ben", 0, jobs), make("ben", 1, jobs), make("ben", 2, slow[:1])]
    first = compare_gpus([*packs, *ben])[0]
    assert (first.jobs, first.users, first.is_slow) == (4, 2, True)
    assert compare_gpus([make("ada", 0, jobs)]) == [], "there is nothing to compare it with"


def test_a_throttled_gpu_is_slow_where_two_users_say_so() -> None:
    def make(user: str, gpu: int, share: float | None) -> FleetPack:
        record = dataclasses.replace(RECORD, gpu_uuid=GPU.format(gpu), node=f"node{gpu}",
                                     throttled_share=share, rates=())  # fmt: skip
        assert parse_fleet_record(json.loads(json.dumps(build_mapping(record)))) == record
        return FleetPack("2023-11-14", user, "a", "gpu", f"{user}{gpu}", record, "north", 1)

    ada = [make("ada", 0, 0.2), make("ada", 1, 0.0), make("ada", 2, None)]
    (pace,) = compare_gpus(ada)
    assert (pace.node, pace.rate, pace.throttled, pace.is_slow) == ("node0", None, 0.2, False)
    (pace,) = compare_gpus([*ada, make("ben", 0, 0.1)])
    assert pace.throttled == pytest.approx(0.15)
    assert pace.is_slow


def test_sacct_s_lines_are_read_with_whatever_a_site_writes_into_comments() -> None:
    text = (
        "4711_2|4713|here|1000|ada|physics|gpu|1700000000|1700003600|node1|billing=8,cpu=8,"
        "gres/gpu:h200=1,gres/gpu=1,mem=32G,node=1|JS1:abc|d\n"
        "4712|4712|here|x|ada|p|g|1|2|n||\n4714|4714|here|1000|ada|physics|gpu|1700000000|Unknown|n||\n"
    )
    found = parse_accounts(text)
    job = found["4711_2"]
    assert (job.uid, job.gpus, job.cpus, job.memory_mb) == (1000, 1, 8, 32768.0)
    assert job.admin_comment == "JS1:abc|d"
    assert "4712" not in found
    # An owner whom this machine knows by name; sacct's number is 0, or another one.
    line = "1|1|here|{}|{}|a|p|1|2|n||".format
    nobody = pwd.getpwnam("nobody").pw_uid
    assert parse_accounts(line(0, "nobody"))["1"].uid == nobody
    assert parse_accounts(line(nobody, "nobody"))["1"].uid == nobody
    assert parse_accounts(line(4321, "nobody"))["1"].uid is None
    assert parse_accounts(line(0, "no-such-user"))["1"].uid is None
    assert found["4714"].ended_at is None


def test_a_comment_is_in_jobstats_form_and_never_over_another_s() -> None:
    blob = build_blob(RECORD, JOB)
    assert blob.startswith("JS1:")
    value = json.loads(gzip.decompress(base64.b64decode(blob[4:])))
    # What jobstats.py reads of it.
    node = value["nodes"]["node1"]
    assert (node["cpus"], node["total_time"]) == (8, 20000.0)
    assert node["total_memory"] == 32768 << 20
    assert node["gpu_utilization"] == {"0": 90.0}
    assert node["gpu_total_memory"]["0"] == 143771 << 20
    assert (value["total_time"], value["gpus"]) == (3620, 1)
    assert may_replace("")
    assert may_replace(blob)
    theirs = "JS1:" + base64.b64encode(gzip.compress(b'{"nodes":{},"gpus":1}')).decode()
    for other in (theirs, "a note of the site's", "JS1:Short", "JS1:None", "JS1:!!", blob + "x"):
        assert not may_replace(other), other
    bomb = (
        "JS1:" + base64.b64encode(gzip.compress(b'{"slurm_colloc":1,"a":"' + b"x" * 10**7)).decode()
    )
    assert not may_replace(bomb)
    assert build_blob(dataclasses.replace(RECORD, utilization=None), JOB) == ""
    assert build_blob(RECORD, dataclasses.replace(JOB, memory_mb=None)) == ""


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """sacct and sacctmgr that answer from files."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sacct").write_text(f"#!/bin/sh\ncat {tmp_path}/accounts\n")
    (folder / "sacctmgr").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    uid = os.geteuid() or 0
    ada = pwd.getpwuid(uid).pw_name
    (tmp_path / "accounts").write_text(
        f"4711|4711|here|{uid}|{ada}|physics|gpu|{int(T0) - 10}|{int(T0) + 3610}|node1|cpu=8,"
        "mem=32G,gres/gpu=1|\n"
        f"4712|4712|here|{uid}|{ada}|physics|gpu|{int(T0) - 10}|{int(T0) + 3610}|node1|cpu=8,"
        "mem=32G,gres/gpu=1|somebody else's\n"
    )
    return folder


def test_the_command_collects_sums_up_and_exports(spool: Path, tmp_path: Path, slurm: Path) -> None:
    drop(spool)
    drop(spool, job_id="4712", failed=0, wasted_share=0.0, gpu_uuid=GPU.format(1))
    drop_file(spool, b"nothing")
    user = UserWithoutSlurm(tmp_path, PATH=f"{slurm}:{os.defpath}")
    csub = functools.partial(user.csub, "admin", "fleet")
    store, prom = str(tmp_path / "store"), tmp_path / "fleet.prom"
    where = ("--spool", str(spool), "--store", store)
    dry = csub("collect", *where, "--dry-run")
    assert dry.stdout == (
        "2 reports would be kept, 1 refused (1 by content), 0 wait for Slurm's accounting\n"
    )
    assert len(list(spool.iterdir())) == 3
    assert csub("collect", *where, "--metrics", "x.txt").returncode == 2
    done = csub("collect", *where, "--metrics", str(prom), "--admin-comment")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 comments written" in done.stdout
    (said,) = (tmp_path / "said").read_text().splitlines()
    assert said.startswith("-i modify job where jobid=4711 set admincomment=JS1:")
    assert list(spool.iterdir()) == []

    table = csub("table", "--store", store, "--since", "999w")
    assert table.stdout.splitlines()[0].split()[:3] == ["DAY", "ACCOUNT", "PARTITION"]
    assert table.stdout.splitlines()[1].split()[:9] == [
        "2023-11-14", "physics", "gpu", "2", "8", "1", "2.0", "3.0", "0.2",
    ]  # fmt: skip
    (row,) = json.loads(csub("table", "--store", store, "--since=999w", "--json").stdout)["rows"]
    assert row["gpu_hours"] == 2.0
    gpus = json.loads(csub("gpus", "--store", store, "--since=999w", "--json").stdout)["gpus"]
    assert [gpu["normalised_rate"] for gpu in gpus] == [1.0, 1.0]
    assert csub("table", "--store", store, "--since", "x").returncode == 2

    families = {f.name: f for f in text_string_to_metric_families(prom.read_text())}
    (sample,) = families["slurm_colloc_fleet_gpu_seconds"].samples
    assert sample.labels == {"account": "physics", "partition": "gpu"}
    assert sample.value == 7200
    (refused,) = families["slurm_colloc_fleet_refused_reports"].samples
    assert (refused.labels, refused.value) == ({"reason": "content"}, 1)

    (slurm / "sacct").write_text(
        "#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2; exit 1\n"
    )
    drop(spool)
    failed = csub("collect", *where)
    assert failed.returncode == 4
    assert len(failed.stderr.splitlines()) == 1
    assert len(list(spool.iterdir())) == 1, "it waits"


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    text = (ROOT / "site-config" / "grafana-dashboard.json").read_text()
    dashboard = json.loads(text)
    asked = set(re.findall(r"slurm_colloc_fleet_[a-z_]+", text))
    source = (ROOT / "slurm_colloc/administration/fleet_sums.py").read_text()
    for name in asked:
        assert f'"{name.removeprefix("slurm_colloc_fleet_")}"' in source, name
    assert len(dashboard["panels"]) >= 6
    assert all(panel["targets"] for panel in dashboard["panels"])
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


def test_a_pack_that_has_ended_reports_itself(spool: Path, tmp_path: Path) -> None:
    user = UserWithoutSlurm(tmp_path)
    settings = user.home / ".config" / "slurm_colloc" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'fleet_spool = "{spool}"\n')
    truths = [Truth(1, 0, 120, lambda at: 20 if at < 60 else 12), Truth(2, 60, 120, lambda _: 9)]
    pack = make_pack(user.state, truths, names=["secret", "name"], failed=[2])
    write = functools.partial(user.csub, "report", "--write", str(pack))
    done = write()
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = spool.iterdir()
    text = path.read_text()
    assert "secret" not in text
    assert "/tmp" not in text
    record = parse_fleet_record(json.loads(text))
    assert (record.job_id, record.members, record.failed, record.node) == ("4711", 2, 1, "node1")
    assert record.gpu_s == pytest.approx(120, rel=0.01)
    assert record.wasted_share == pytest.approx(1 / 3, rel=0.02)
    ((_, rate),) = record.rates
    assert rate == pytest.approx(20, rel=0.02)
    # A spool that is not there costs no summary.
    settings.write_text(f'fleet_spool = "{spool}/gone"\n')
    done = write()
    assert done.returncode == 0
    assert "was not reported to the site" in done.stderr


def test_a_collection_counts_by_reason() -> None:
    found = Collection()
    found.reject("a", "size")
    found.reject("b", "size")
    assert (found.rejected.total(), found.done) == (2, ["a", "b"])
