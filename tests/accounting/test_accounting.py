"""What csub makes of a real accounting: waits in the queue, and how long jobs may run by QoS."""

from __future__ import annotations

import datetime
import json
import os
import pwd
import signal
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.administration.fleet_spool import collect
from slurm_colloc.administration.fleet_sums import build_blob
from slurm_colloc.cli.admin_fleet import write_comment, write_comments
from slurm_colloc.errors import NodeError
from slurm_colloc.model.fleet_record import FleetRecord, build_mapping
from slurm_colloc.model.plan import LEAST_JOBS
from slurm_colloc.slurm.accounting import read_accounts, set_admin_comment
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, can_reach_checkout, user_of
from ..cluster.conftest import accounts
from ..wait_until import wait_until
from .accounting_sandbox import Accounting, running_accounting

__all__ = ["accounts"]

pytestmark = pytest.mark.slurm

HOUR, DAY = 60, 24 * 60
GPU_JOBS = 20
ZONE = "America/St_Johns"
"""Not the machine's, and not even whole hours away."""
CONF = (
    "PartitionName=parted Nodes=ALL State=UP MaxTime=7-0 DefaultTime=60 QoS=part",
    "PartitionName=brief Nodes=ALL State=UP MaxTime=60 DefaultTime=10",
)
QOS = (
    "short MaxWall=2:00:00",
    "long MaxWall=1-0",
    "deny MaxWall=30 Flags=DenyOnLimit",
    "part MaxWall=10:00:00",
    "over MaxWall=5-0 Flags=OverPartQOS",
    "lift MaxWall=12:00:00 Flags=PartitionTimeLimit",
    "free",
    "few GrpJobs=1",
    "single MaxJobsPU=1",
)


def list_names(accounts: tuple[str, ...]) -> list[str]:
    """The users that tests can act as."""
    if os.geteuid() == 0 and can_reach_checkout(accounts[0]):
        return list(accounts)
    return [pwd.getpwuid(os.geteuid()).pw_name]


@pytest.fixture(scope="module")
def bed(accounts: tuple[str, ...]) -> Iterator[tuple[Accounting, Sandbox]]:
    first, *others = list_names(accounts)
    told = [
        *(f"add qos {qos}" for qos in QOS),
        # Another cluster has the same user, account and database.
        "add cluster elsewhere",
        "add account lab cluster=sandbox,elsewhere MaxWall=5:00:00",
        "add account other cluster=sandbox",
        f"add user {first} account=lab qos=short,deny,over,lift,free,few,single defaultqos=short",
        f"add user {first} account=other cluster=sandbox qos=long",
        f"modify user {first} where cluster=elsewhere set defaultqos=deny",
        *(f"add user {name} account=other cluster=sandbox" for name in others),
    ]
    with running_accounting(prepare=told, conf=CONF) as found:
        yield found


@pytest.fixture(scope="module")
def user(bed: tuple[Accounting, Sandbox], accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(bed[1], list_names(accounts)[0]) as somebody:
        somebody.extra["TZ"] = ZONE
        yield somebody


def sbatch(user: CsubUser, *options: str, command: str = "true") -> str:
    argv = ["sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}"]
    return user.run(argv).stdout.strip()


def plan(user: CsubUser, *options: str, time: str = "30") -> dict[str, Any]:
    script = user.script("job.sh", "true", directives="#SBATCH --gres=gpu:1")
    words = ("--no-pause", "--array=1-3", f"--time={time}", *options, str(script))
    found: dict[str, Any] = json.loads(user.csub("plan", "--json", *words).stdout)
    return found


def forget(user: CsubUser) -> None:
    for path in (user.state / "waits").glob("*.json"):
        path.unlink()


def wait_for(user: CsubUser, job_id: str, state: str, reason: str = "None") -> None:
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T %r"]
    wanted = f"{state} {reason}"
    wait_until(lambda: user.run(argv).stdout.strip() == wanted, f"{job_id}: {wanted}")


def read_waits(user: CsubUser, job_ids: set[str]) -> list[float]:
    """Waits by sacct's own words for times, which are those of the user's zone."""
    argv = ["sacct", "-X", "-n", "-P", "--starttime=now-1days", "--format=JobID,Eligible,Start"]
    rows = [line.split("|") for line in user.run(argv).stdout.splitlines()]
    return [
        (
            datetime.datetime.fromisoformat(start) - datetime.datetime.fromisoformat(eligible)
        ).total_seconds()
        for job_id, eligible, start in rows
        if job_ids & {job_id, job_id.partition("_")[0]}
    ]


def test_the_queue_is_as_sacct_has_seen_it(user: CsubUser) -> None:
    assert plan(user)["queue_unknown"] == "0 jobs in sacct"
    forget(user)
    gpu, quick = ("--gres=gpu:1", "--time=20"), "sleep 0.2"
    # The second starts after the first, by the limit of the QoS: no wait in the queue.
    kept = sbatch(user, "--qos=few", *gpu, "--array=1-2", command="sleep 1")
    counted = {sbatch(user, *gpu, f"--array=1-{GPU_JOBS - 1}", command=quick)}
    sbatch(user, "--time=20")
    dropped = [sbatch(user, *gpu, "--hold"), sbatch(user, *gpu, "--begin=now+1hour")]
    # Its dependency's time counts as no wait.
    counted.add(sbatch(user, *gpu, f"--dependency=afterany:{kept}", command=quick))
    user.run(["scancel", *dropped])

    def is_over() -> bool:
        return not user.run(["squeue", "--noheader", "-u", user.name]).stdout.strip()

    wait_until(is_over, "all jobs to end")

    # slurmctld sends its records a moment later, so its first answer is not kept.
    def is_known() -> bool:
        forget(user)
        (pack,) = plan(user)["packs"]
        return pack["queue"] is not None and pack["queue"]["jobs"] == GPU_JOBS + 1

    wait_until(is_known, f"the records of {GPU_JOBS + 1} jobs that waited for GPUs alone")
    waits = sorted(read_waits(user, {*counted, f"{kept}_1"}))
    assert len(waits) == GPU_JOBS + 1 > LEAST_JOBS
    assert waits[-1] > 0, "four GPUs for all of them"
    queue = plan(user)["packs"][0]["queue"]
    assert queue["of"] == "1 GPU and at most 1 h"
    assert queue["median_s"] == pytest.approx(statistics.median(waits))
    nine = statistics.quantiles(waits, n=10, method="inclusive")[-1]
    assert queue["p90_s"] == pytest.approx(nine)


# Of each the longest time that Slurm lets a job run, in minutes, and what it says to a longer one.
OF_QOS, OF_ACCOUNT = "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit"
LIMITS = {
    # The default QoS of the default account of this cluster.
    (): (2 * HOUR, OF_QOS),
    ("--qos=SHORT", "--account=Lab"): (2 * HOUR, OF_QOS),
    # Without a default it is the only one there is.
    ("--account=other",): (DAY, OF_QOS),
    ("--qos=deny",): (30, "refused"),
    ("--qos=free",): (5 * HOUR, OF_ACCOUNT),
    ("--qos=short", "--partition=parted"): (10 * HOUR, OF_QOS),
    ("--qos=over", "--partition=parted"): (5 * DAY, OF_QOS),
    ("--qos=free", "--partition=brief"): (HOUR, "PartitionTimeLimit"),
    ("--qos=lift", "--partition=brief"): (12 * HOUR, OF_QOS),
}


def test_a_pack_asks_for_what_slurm_lets_run(user: CsubUser) -> None:
    fits, longer = [], {}
    for options, (minutes, why) in LIMITS.items():
        # Stretched by 1.5 it would be longer than Slurm allows.
        (pack,) = plan(user, *options, time=str(minutes))["packs"]
        assert (options, pack["time_limit_s"]) == (options, 60 * minutes)
        fits.append(sbatch(user, *options, f"--time={minutes}"))
        if why == "refused":
            argv = ["sbatch", *options, f"--time={minutes + 1}", "--wrap=true"]
            refused = user.run(argv, check=False)
            assert refused.returncode != 0
            assert OF_QOS in refused.stderr
        else:
            longer[options] = sbatch(user, *options, f"--time={minutes + 1}")
    for job_id in fits:
        wait_for(user, job_id, "COMPLETED")
    for options, job_id in longer.items():
        wait_for(user, job_id, "PENDING", LIMITS[options][1])
    user.run(["scancel", *longer.values()])


def test_a_pack_has_more_gpus_where_one_job_may_run(user: CsubUser) -> None:
    forget(user)
    (usual,) = plan(user)["packs"]
    assert usual["slurm_job"] is None
    words = ("--no-pause", "--qos=single", "--array=1-12", "--time=30", "job.sh")
    found = json.loads(user.csub("plan", "--json", *words).stdout)
    assert len({pack["slurm_job"] for pack in found["packs"]}) == 1
    assert found["figures"]["gpus"] == len(found["packs"]) == 2
    told = "a pack has 2 GPUs: QoS or account let one Slurm job run at once"
    assert any(reason.startswith(told) for reason in found["reasons"])


def test_a_job_over_its_qos_keeps_no_other_from_starting(user: CsubUser) -> None:
    directives = "#SBATCH --gres=gpu:1 --qos=short --time="
    over = user.script("over.sh", "true", directives=f"{directives}3:00:00")
    within = user.script("within.sh", "true", directives=f"{directives}30:00")
    done = user.csub("pack", "--parsable", "--no-pause", str(over), str(within), str(within))
    (job_id,) = done.stdout.split()
    members = user.members(job_id)
    assert [member["name"] for member in members.values()] == ["over.sh", "within.sh", "within.sh"]
    first, second, third = (str(member["slurm_job_id"]) for member in members.values())
    assert first != second == third
    wait_for(user, first, "PENDING", OF_QOS)
    wait_for(user, second, "COMPLETED")
    user.csub("cancel", job_id)


def test_an_accounting_that_is_silent_or_gone_is_told(
    bed: tuple[Accounting, Sandbox], user: CsubUser
) -> None:
    accounting, _ = bed
    forget(user)
    os.kill(accounting.slurmdbd_pid, signal.SIGSTOP)
    try:
        silent = plan(user)
    finally:
        os.kill(accounting.slurmdbd_pid, signal.SIGCONT)
    assert silent["queue_unknown"] == "sacct gave no answer within 2 s"
    assert silent["reasons"] == [
        "how long a job may run by its QoS is not known: sacctmgr gave no answer within 2 s"
    ]
    forget(user)
    accounting.stop_slurmdbd()
    gone = plan(user)
    assert gone["queue_unknown"].startswith("Slurm's accounting does not answer: ")
    assert gone["reasons"][0].startswith(
        "how long a job may run by its QoS is not known: Slurm's accounting does not answer: "
    )
    assert [pack["queue"] for pack in gone["packs"]] == [None]
    accounting.start_slurmdbd()
    forget(user)
    assert plan(user, time="100")["packs"][0]["time_limit_s"] == 7200


def test_who_may_see_only_their_own_jobs_has_an_estimate_of_those(
    bed: tuple[Accounting, Sandbox], accounts: tuple[str, ...]
) -> None:
    accounting, sandbox = bed
    names = list_names(accounts)
    if len(names) < 2:
        pytest.skip("a second user needs root and a checkout that ordinary users can read")
    accounting.stop_slurmdbd()
    accounting.start_slurmdbd("PrivateData=accounts,jobs,usage,users")
    with user_of(sandbox, names[1]) as other:
        # It has no QoS of its own, and so no limit but MaxTime.
        found = plan(other, time="6-0")
        assert found["queue_unknown"] == "0 jobs in sacct"
        assert found["packs"][0]["time_limit_s"] == 60 * 7 * DAY
    with user_of(sandbox, names[0]) as user:
        found = plan(user, time="100")
        assert found["packs"][0]["queue"]["jobs"] >= LEAST_JOBS
        assert found["packs"][0]["time_limit_s"] == 7200


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users")
def test_reports_are_compared_with_the_accounting_and_comments_kept(
    user: CsubUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--account=other", "--qos=long", "--gres=gpu:1", "--time=20", "--mem=64")
    job_id = sbatch(user, *asked, command="sleep 4")
    client = user.environment
    jobs = wait_until(
        lambda: {
            name: job
            for name, job in read_accounts([job_id], environment=client).items()
            if job.ended_at is not None
        },
        "sacct to know the end",
    )
    job = jobs[job_id]
    assert (job.uid, job.user, job.account, job.gpus) == (user.uid, user.name, "other", 1)
    assert job.partition
    assert job.cpus >= 1
    assert job.memory_mb == 64
    record = FleetRecord(
        job_id=job_id, cluster="sandbox", attempt=1, node=job.nodes, gpu_model=None, gpu_uuid=None,
        gpu_memory_mb=1000.0, mode="mps", gpus=1, started_at=job.started_at or 0.0,
        ended_at=job.ended_at or 0.0, members=1, failed=0, wasted_share=0.0, saved_s=None,
        slowdown=None, slowdown_of=0, energy_j=None, saved_kwh=None, sm_active=None,
        utilization=0.5,
        gpu_memory_used_mb=500.0, cpus=1, cpu_s=1.0, host_memory_mb=10.0,
    )  # fmt: skip
    for name, uid in (("a.json", user.uid), ("b.json", user.uid + 1)):
        (tmp_path / name).write_text(json.dumps(build_mapping(record)))
        os.chown(tmp_path / name, uid, uid)
    found = collect(str(tmp_path), lambda ids: read_accounts(ids, environment=client))
    assert [entry.job.user for entry in found.accepted] == [user.name]
    assert dict(found.rejected) == {"owner": 1}

    # sacctmgr of 22.05 makes a comment lower case, which would be no base64 any more: then it is
    # taken away again, and told.
    for name, value in {**client, "USER": "root", "LOGNAME": "root", "HOME": "/root"}.items():
        monkeypatch.setenv(name, value)
    blob = build_blob(record, job)
    told = ""
    try:
        write_comment(job, blob)
    except NodeError as problem:
        told = str(problem)
    assert read_accounts([job_id])[job_id].admin_comment == ("" if "lower case" in told else blob)
    set_admin_comment(job.raw_id, "a note")
    assert write_comments(found.accepted) == 0
    assert read_accounts([job_id])[job_id].admin_comment == "a note"
