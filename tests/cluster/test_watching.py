"""Packs are watched: from steps counted inside members to the report. Nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.system.node_processes import list_processes, read_uid

from ..bed import CsubUser
from ..wait_until import wait_until
from .mps import explained, journal, kill, pack_directory, runner_pid, write_settings

pytestmark = pytest.mark.slurm

OPTIONS = ("--share=mps", "--gres=gpu:1", "-c1", "--mem=1G", "--time=10")

# Without PyTorch, so it says itself how far it is. It uses the simulated GPU through a child.
TRAIN = """\
import subprocess, sys, time
from slurm_colloc import progress

use = subprocess.Popen(["simgpu", "run", "--seconds=300", "--gpu-memory=2G", "--sm=20"])
steps, until = 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    time.sleep(0.02)
    steps += 1
    progress.step(samples=8)
use.kill()
print(f"counted {steps}")
"""


def write_training(user: CsubUser) -> None:
    (user.home / "train.py").write_text(TRAIN)
    user.script("train.sh", 'python3 "$HOME/train.py" "$1"')


def read_latest(user: CsubUser, job_id: str) -> dict[str, Any]:
    path = pack_directory(user, job_id) / "latest.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def wait_for_steps(user: CsubUser, job_id: str, count: int) -> None:
    """Wait until the monitor has seen so many members at work."""

    def works() -> bool:
        members = read_latest(user, job_id).get("members", {})
        return sum(bool(member["steps"]) for member in members.values()) == count

    with explained(user, job_id):
        wait_until(works, f"the monitor has seen {count} members at work")


def report(user: CsubUser, job_id: str) -> dict[str, Any]:
    (summary,) = json.loads(user.csub("report", "--json", job_id).stdout)
    return dict(summary)


def read_counted(user: CsubUser, name: str) -> int:
    (line,) = [line for line in user.output(name).splitlines() if line.startswith("counted ")]
    return int(line.split()[1])


def list_progress(user: CsubUser) -> list[str]:
    return [
        entry.name
        for entry in os.scandir("/dev/shm")
        if entry.name.startswith("csub-progress-") and entry.stat().st_uid == user.uid
    ]


def list_monitors(user: CsubUser) -> list[int]:
    found = []
    for process in list_processes():
        command = Path(f"/proc/{process.id.pid}/cmdline")
        if read_uid(process.id.pid) == user.uid and command.exists():
            words = command.read_bytes().split(b"\0")
            if b"slurm_colloc.monitor" in words:
                found.append(process.id.pid)
    return found


@pytest.mark.smoke
def test_what_members_print_is_what_the_report_says(mps_user: CsubUser) -> None:
    user = mps_user
    write_training(user)
    user.script("more.sh", 'python3 "$HOME/train.py" 20')
    user.script("less.sh", 'python3 "$HOME/train.py" 12')
    job_id = user.submit("pack", *OPTIONS, "more.sh", "less.sh")
    wait_for_steps(user, job_id, 2)
    top = user.csub("top", "--once").stdout
    assert f"{job_id}/1" in top
    assert "more.sh" in top
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    summary = report(user, job_id)
    assert summary["final"] is True
    # csub wait has waited for it.
    assert (pack_directory(user, job_id) / "report" / "summary.json").exists()
    for number in (1, 2):
        member = summary["members"][number - 1]
        counted = read_counted(user, f"slurm-{job_id}_{number}.out")
        assert (member["steps"], member["samples"]) == (counted, 8 * counted)
        assert member["progress"] == "api"
        assert member["gpu_memory_mb"]["peak"] >= 2048
        assert member["gpu_memory_mb"]["attribution"] == "per_process"
        assert member["slowdown"] is None
        assert member["cpu_s"] > 0
    # It was alone for eight seconds at the end: too short for a rate of its own.
    assert "unknown" in user.csub("report", job_id).stdout
    assert summary["setup"]["mode"] == "mps"
    assert summary["gpu"]["model"]
    assert list_progress(user) == []
    assert list_monitors(user) == []


def test_a_job_alone_makes_a_profile_that_its_next_run_finds(mps_user: CsubUser) -> None:
    user = mps_user
    write_training(user)
    user.script("same.sh", 'exec "$HOME/train.sh" 34')
    alone = user.submit(*OPTIONS[1:], "same.sh")
    assert user.finish(alone)[1]["state"] == "COMPLETED"
    first = report(user, alone)
    assert first["members"][0]["slowdown"] == 1
    assert first["gpu"]["model"]
    (profile,) = json.loads(user.csub("profile", "list", "--json").stdout)
    assert profile["gpu_model"] == first["gpu"]["model"]
    rate = first["members"][0]["rate"]["steps_per_s"]
    assert profile["steps_per_s"]["mean"] == pytest.approx(rate, rel=0.05)
    job_id = user.submit("pack", *OPTIONS, "same.sh", "same.sh")
    user.finish(job_id)
    second = report(user, job_id)
    for member in second["members"]:
        assert member["solo"]["source"] == "profile"
        assert member["slowdown"] > 0.5
    assert second["pack"]["stp"] > 0


def test_a_small_pack_is_not_watched_and_it_is_said_why(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("tell.sh", 'echo "path=$PYTHONPATH progress=$SLURM_COLLOC_PROGRESS"')
    options = [*OPTIONS[:3], "--mem=100M", "--time=10"]
    job_id = user.submit("pack", *options, "tell.sh", "tell.sh")
    user.finish(job_id)
    assert user.output(f"slurm-{job_id}_1.out") == "path= progress=\n"
    (event,) = journal(user, job_id, "not_watched")
    assert event["reason"].endswith(
        " MB of host memory, and the monitor would take 90 MB; packs with at least 1024 MB are "
        "watched"
    )
    assert event["reason"] in " ".join(user.csub("report", job_id).stdout.split())
    assert list_progress(user) == []


@pytest.mark.parametrize(
    ("settings", "option", "is_watched"),
    [
        ({"monitor": False}, (), False),
        ({"instrument": False}, (), True),
        ({}, ("--no-instrument",), True),
    ],
)
def test_members_keep_their_python_as_it_is(
    mps_user: CsubUser, settings: dict[str, Any], option: tuple[str, ...], is_watched: bool
) -> None:
    user = mps_user
    write_settings(user, **settings)
    user.script("tell.sh", 'echo "path=$PYTHONPATH progress=$SLURM_COLLOC_PROGRESS"; sleep 6')
    job_id = user.submit("pack", *OPTIONS, *option, "tell.sh", "tell.sh")
    user.finish(job_id)
    assert user.output(f"slurm-{job_id}_1.out") == "path= progress=\n"
    assert len(journal(user, job_id, "monitor")) == is_watched
    (member, _) = report(user, job_id)["members"]
    assert member["steps"] is None
    assert (member["cpu_s"] is not None) is is_watched


def test_the_users_own_path_stays_behind_ours(mps_user: CsubUser) -> None:
    user = mps_user
    user.extra["PYTHONPATH"] = "/one:/two"
    user.script("tell.sh", 'echo "$PYTHONPATH"')
    job_id = user.submit("pack", *OPTIONS, "tell.sh", "tell.sh")
    user.finish(job_id)
    ours, *others = user.output(f"slurm-{job_id}_1.out").strip().split(":")
    assert others == ["/one", "/two"]
    assert (Path(ours) / "sitecustomize.py").exists()


def test_a_killed_monitor_is_started_again(mps_user: CsubUser) -> None:
    user = mps_user
    write_training(user)
    user.script("long.sh", 'exec "$HOME/train.sh" 300')
    job_id = user.submit("pack", *OPTIONS, "long.sh", "long.sh")
    wait_for_steps(user, job_id, 2)
    (monitor,) = list_monitors(user)
    kill(monitor)
    wait_until(
        lambda: len(journal(user, job_id, "monitor")) == 2 and list_monitors(user),
        "it runs again",
    )
    assert [event["status"] for event in journal(user, job_id, "monitor_ended")] == [-9]
    user.csub("cancel", "--yes", job_id)
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"CANCELLED"}
    summary = report(user, job_id)
    # All that the first one had written, and what the second saw.
    assert all(member["steps"] > 0 for member in summary["members"])
    wait_until(lambda: list_monitors(user) == [], "no monitor is left")
    assert list_progress(user) == []


def test_of_a_killed_runner_no_monitor_stays_and_its_files_go_with_the_next(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    write_training(user)
    user.script(
        "long.sh", '"$HOME/train.sh" 300 & while [ ! -e over ]; do sleep 0.2; done; kill $!'
    )
    job_id = user.submit("pack", *OPTIONS, "--no-requeue", "long.sh", "long.sh")
    wait_for_steps(user, job_id, 2)
    pieces = pack_directory(user, job_id) / "report"
    wait_until(lambda: list(pieces.glob("members.*.parquet")), "a piece is written")
    kill(runner_pid(user, job_id), signal.SIGKILL)
    wait_until(lambda: list_monitors(user) == [], "no monitor is left")
    # What lives runs to its end.
    user.run(["touch", "over"])
    user.wait_for_states(job_id, "COMPLETED")
    assert len(list_progress(user)) == 1
    assert all(member["steps"] > 0 for member in report(user, job_id)["members"])
    user.script("short.sh", "true")
    user.finish(user.submit("pack", *OPTIONS, "short.sh", "short.sh"))
    assert list_progress(user) == []


def test_what_a_program_prints_is_its_progress_where_that_is_asked_for(mps_user: CsubUser) -> None:
    user = mps_user
    work = "for i in $(seq 0 20 600); do echo iteration $i of 600; sleep 0.4; done"
    user.script("solve.sh", work)
    (user.home / "below").mkdir()
    os.chown(user.home / "below", user.uid, user.gid)
    where = ("--chdir=below", "--output=solver.%a.log")
    regex = r"--progress-regex=iteration (?P<step>\d+) of"
    job_id = user.submit("pack", *OPTIONS, *where, regex, "solve.sh", "solve.sh")
    user.finish(job_id)
    for member in report(user, job_id)["members"]:
        assert (member["steps"], member["progress"]) == (600, "regex")
        assert member["samples"] is None
    told = user.csub("pack", *OPTIONS, "--progress-regex=(", "solve.sh", "solve.sh", check=False)
    assert told.returncode == 2
    assert "--progress-regex=(: it is not a regular expression of Python's" in told.stderr


def test_a_progress_regex_on_an_own_line_keeps_its_backslash_and_says_where_none_matched(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    work = "for i in $(seq 30); do echo step $i; sleep 0.4; done"
    for name, regex in (("good", r"step (?P<step>\d+)"), ("bad", r"Step (?P<step>\d+)")):
        (user.home / f"{name}.sh").write_text(
            f"#!/bin/bash\n#CSUB --progress-regex='{regex}'\n{work}\n"
        )
        user.run(["chmod", "+x", f"{name}.sh"], check=False)
    job_id = user.submit("pack", *OPTIONS, "good.sh", "bad.sh")
    user.finish(job_id)
    good, bad = report(user, job_id)["members"]
    assert (good["steps"], good["progress"], good["unmatched_lines"]) == (30, "regex", None)
    assert (bad["steps"], bad["unmatched_lines"]) == (None, 30)
    assert "--progress-regex matched none of 30 lines that it has printed" in bad["notes"]
    assert not any("--progress-regex" in note for note in good["notes"])


def test_results_that_members_print_or_report_are_in_the_report_best_first(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    report_it = (
        "from slurm_colloc import progress; progress.metric(acc=float(__import__('sys').argv[1]))"
    )
    for name, loss, acc in (("a.sh", "0.5", "0.75"), ("b.sh", "0.25", "0.5")):
        user.script(
            name,
            "#CSUB --metric=loss --metric='val (?P<top1>[0-9.]+)'\n"
            f'echo "loss: 9"; sleep 4; echo "loss: {loss}"; echo "val 0.{acc[2:]}1"\n'
            f'python3 -c "{report_it}" {acc}',
        )
    job_id = user.submit("pack", *OPTIONS, "a.sh", "b.sh")
    user.finish(job_id)
    members = report(user, job_id)["members"]
    found = [{name: one["last"] for name, one in m["metrics"].items()} for m in members]
    assert found == [
        {"loss": 0.5, "top1": 0.751, "acc": 0.75}, {"loss": 0.25, "top1": 0.51, "acc": 0.5},
    ]  # fmt: skip
    assert members[0]["metrics"]["acc"]["source"] == "python"
    assert members[0]["metrics"]["loss"]["greatest"] == 9.0
    lines = user.csub("report", "--csv", job_id).stdout.splitlines()
    assert lines[0].endswith(",metric.loss,metric.top1,metric.acc")
    assert [line.split(",")[0] for line in lines[1:]] == [f"{job_id}/2", f"{job_id}/1"]
    best = user.csub("report", "--csv", "--best=acc", job_id).stdout.splitlines()
    assert [line.split(",")[0] for line in best[1:]] == [f"{job_id}/1", f"{job_id}/2"]
    page = user.home / "page.html"
    user.csub("report", "--html", job_id, str(page))
    assert "smallest loss first" in page.read_text()
    assert user.name in page.read_text()
    for wrong, said in (
        ("(", "it is not a regular expression of Python's"),
        ("loss=.*", "it does not say which part is the number"),
    ):
        told = user.csub("pack", *OPTIONS, f"--metric={wrong}", "a.sh", "b.sh", check=False)
        assert told.returncode == 2
        assert said in told.stderr
        assert len(told.stderr.splitlines()) <= 2
        assert "Traceback" not in told.stderr


def test_a_site_with_dcgm_has_it_asked_on_the_node(mps_user: CsubUser) -> None:
    user = mps_user
    write_settings(user, activity_source="dcgm")
    write_training(user)
    job_id = user.submit(*OPTIONS, "train.sh", "60")
    log = pack_directory(user, job_id) / "monitor.log"
    with explained(user, job_id):
        wait_until(lambda: log.exists() and log.read_text(), "the monitor has something to say")
    # There is none here, and the pack goes on.
    assert log.read_text() == (
        "csub monitor: no activity by DCGM: dcgmi: [Errno 2] No such file or directory: 'dcgmi'\n"
    )
    wait_for_steps(user, job_id, 1)
    user.csub("cancel", "--yes", job_id)
