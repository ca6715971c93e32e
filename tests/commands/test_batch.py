"""csub batch: the rows of tables as jobs, on a fake Slurm."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from ..wait_until import wait_until
from .refusals import list_jobs

SHARE = ("--gres=gpu:1", "--time=5", "--share=timeslice", "--mem=100M", "-c1")


def show(user: CsubUser, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(user.csub(*words, "--json").stdout)
    return rows


def batch(user: CsubUser, *words: str) -> str:
    return user.csub("batch", "--parsable", *SHARE, *words).stdout.strip()


def list_all(user: CsubUser) -> list[dict[str, Any]]:
    return show(user, "queue", "--all")


def test_a_row_is_a_job_and_its_columns_are_options_and_parameters(user: CsubUser) -> None:
    user.script("train.sh", 'echo "$SLURM_JOB_NAME $*"')
    (user.home / "jobs.csv").write_text(
        "script,arguments,lr,job-name,time,requeue\n"
        "train.sh,--lr {lr},0.1,first,3,yes\n"
        "train.sh,--rate {lr},0.2,,,no\n"
    )
    job_id = batch(user, "jobs.csv")
    user.finish(job_id)
    assert user.csub("logs", f"{job_id}/1").stdout == "first --lr 0.1\n"
    assert user.csub("logs", f"{job_id}/2").stdout == "train.sh --rate 0.2\n"
    first, second = show(user, "queue", "--all", job_id)
    assert (first["parameters"], second["parameters"]) == ({"lr": "0.1"}, {"lr": "0.2"})
    assert first["wall_limit_s"] < second["wall_limit_s"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jobs.jsonl", '{"command": "echo {n}", "n": 1}\n\n{"command": "echo {n}", "n": 2}\n'),
        ("jobs.yaml", "command: echo {n}\njobs:\n- {n: 1}\n- {n: 2}\n"),
        ("jobs.toml", 'command = "echo {n}"\n[[job]]\nn = 1\n[[job]]\nn = 2\n'),
        ("commands", "# two\necho 1\n\necho 2\n"),
        ("tasks.txt", "#DISBATCH PREFIX ( echo \n#DISBATCH SUFFIX )\n1\n2\n"),
    ],
)
def test_tables_of_every_format_and_lists_of_commands(user: CsubUser, name: str, text: str) -> None:
    (user.home / name).write_text(text)
    job_id = batch(user, name)
    user.finish(job_id)
    assert [user.csub("logs", f"{job_id}/{n}").stdout for n in (1, 2)] == ["1\n", "2\n"]


def test_commands_come_by_standard_input_and_braces_in_them_are_theirs(user: CsubUser) -> None:
    command = """echo '{a} {{b}} {"c": {"d": 1}}' | awk '{print}'\n"""
    sent = user.run(["csub", "batch", "--parsable", *SHARE, "-"], stdin=command)
    user.finish(sent.stdout.strip())
    assert user.csub("logs", "last").stdout == '{a} {{b}} {"c": {"d": 1}}\n'


def test_resume_submits_what_is_not_done(user: CsubUser, slurm: FakeSlurm) -> None:
    table = user.home / "jobs.csv"
    table.write_text("command,n\ntest {n} != 2,1\ntest {n} != 2,2\ntest {n} != 2,1\n")
    first = batch(user, "--resume", "jobs.csv")
    user.finish(first)
    # Rows are known by what stands in them, wherever that is.
    table.write_text(
        "n,command\n3,test {n} != 2\n2,test {n} != 2\n1,test {n} != 2\n1,test {n} != 2\n"
    )
    slurm.pause()
    again = user.csub("batch", *SHARE, "--resume", "jobs.csv")
    assert "jobs.csv: 4 rows, 2 done, 0 under way" in again.stderr
    new = [row for row in list_all(user) if not row["member"].startswith(f"{first}/")]
    assert [row["parameters"]["n"] for row in new] == ["3", "2"]
    none = user.csub("batch", *SHARE, "--resume", "jobs.csv")
    assert none.stdout == ""
    assert "2 done, 2 under way" in none.stderr
    assert len(list_all(user)) == 5
    slurm.go_on()
    user.csub("cancel", "all")


def test_another_table_has_rows_of_its_own(user: CsubUser) -> None:
    for name in ("a.csv", "b.csv"):
        (user.home / name).write_text("command\ntrue\n")
        user.finish(batch(user, "--resume", name))
    assert len(list_all(user)) == 2
    (user.home / "link.csv").symlink_to("a.csv")
    assert batch(user, "--resume", "link.csv") == ""


def test_watched_tables_grow_and_a_half_written_row_waits(user: CsubUser) -> None:
    table = user.home / "jobs.csv"
    table.write_text("command\ntrue\n")
    watching = user.start(["csub", "batch", *SHARE, "--watch", "jobs.csv"])
    try:
        wait_until(lambda: len(list_all(user)) == 1, "the first row is submitted")
        with table.open("a") as file:
            file.write("echo on")
            file.flush()
            os.utime(table)
            file.write("e\n")
        wait_until(
            lambda: [bool(row["slurm_job_id"]) for row in list_all(user)] == [True, True],
            "the second row is submitted",
        )
    finally:
        watching.send_signal(signal.SIGINT)
        _, told = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert "no longer watching; the jobs go on" in told
    assert {row["arguments"][0] for row in list_all(user)} == {"true", "echo one"}


KILLING = """
import os, signal, subprocess, sys
sys.argv = ["csub", *sys.argv[3:]]
left = int({count})
def count():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
def dying(call):
    def run(*args, **kwargs):
        count()
        made = call(*args, **kwargs)
        # A program that was started goes on without csub.
        if call is Popen:
            count()
        return made
    return run
Popen = subprocess.Popen
for name in ("rename", "mkdir", "link", "replace", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
subprocess.Popen = dying(Popen)
from slurm_colloc.__main__ import main
main()
"""


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.long)])
def test_a_resumed_table_submits_each_row_once_wherever_csub_was_killed(
    user: CsubUser, slurm: FakeSlurm, step: int
) -> None:
    """It is killed before each change of a file, and before and after each start of a program."""
    killed = 0
    for count in range(1, 400, step):
        name = f"jobs{count}.csv"
        (user.home / name).write_text(
            f"command,gres\ntrue {count} a,gpu:1\ntrue {count} b,gpu:1\ntrue {count} c,gpu:0\n"
        )
        words = ["batch", "--time=5", "--mem=100M", "--share=timeslice", "--resume", name]
        code = KILLING.replace("{count}", str(count))
        ended = subprocess.run(
            [sys.executable, "-c", code, "", "", *words],
            env=user.environment, cwd=user.home, capture_output=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        resumed = user.csub(*words, check=False)
        assert resumed.returncode == 0, resumed.stderr
        rows = [row for row in list_all(user) if row["arguments"][0].startswith(f"true {count} ")]
        assert sorted(row["arguments"][0][-1] for row in rows) == ["a", "b", "c"], count
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        killed += 1
        user.csub("cancel", "all")
    else:
        pytest.fail("csub never came to its end")
    print(f"{killed} kills")
    assert killed > 40 // step
    # Slurm has two jobs of each call at the most: none was submitted twice.
    assert len(slurm.look()) <= 2 * (killed + 1)


RADT = """\
Experiment,Workload,Name,Status,Run,Devices,Collocation,File,Listeners,Params
0,1,no sharing,,,0,-,src/train.py,smi+top,--batch-size 128
0,2,shared gpu 1,,,0,-,src/train.py,smi+top,--batch-size 128
0,2,shared gpu 2,,,0,-,src/train.py,smi+top,--fail 3
0,3,MPS shared gpu 1,,,0,MPS,src/train.py,smi+top,--batch-size 128
0,3,MPS shared gpu 2,,,0,MPS,src/train.py,smi+top,--batch-size 128
0,4,MIG shared gpu 1,,,2,3g.20gb,src/train.py,smi+top,--batch-size 128
0,4,MIG shared gpu 2,,,2,3g.20gb,src/train.py,smi+top,--batch-size 128
"""


def test_radts_table_is_taken_as_it_is(user: CsubUser, slurm: FakeSlurm) -> None:
    folder = user.home / "csv"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "train.py").write_text("import sys; sys.exit(3 * ('--fail' in sys.argv))\n")
    (folder / "experiment.csv").write_text(RADT)
    options = ("--time=5", "--mem=100M", "-c1")
    ended = user.csub("batch", *options, "--wait", "csv/experiment.csv", check=False)
    assert ended.returncode == 3, ended
    rows = list_all(user)
    assert len({row["member"].partition("/")[0] for row in rows}) == 4
    assert [row["share"] for row in rows] == [
        "auto", "timeslice", "timeslice", "mps", "mps", "mig=3g.20gb+3g.20gb",
        "mig=3g.20gb+3g.20gb",
    ]  # fmt: skip
    with (folder / "experiment.status.csv").open() as file:
        status = list(csv.DictReader(file))
    assert [row["Status"] for row in status] == [
        "COMPLETED", "COMPLETED", "FAILED(3)", *(["COMPLETED"] * 4),
    ]  # fmt: skip
    assert all(row["Run"] for row in status)
    assert (folder / "experiment.csv").read_text() == RADT
    before = len(slurm.look())
    user.csub("batch", *options, "--resume", "--wait", "csv/experiment.csv", check=False)
    assert len(slurm.look()) == before + 1


def test_radts_column_of_collocation_is_checked_and_overruled(user: CsubUser) -> None:
    row = "0,4,a,,,2,3g.20gb,train.py,smi+top,--batch-size 128\n"
    other = "0,4,b,,,2,MIQ,train.py,smi+top,--batch-size 128\n"
    (user.home / "mig.csv").write_text(RADT.splitlines()[0] + "\n" + row + other)
    refused = user.csub("batch", "mig.csv", check=False)
    assert refused.returncode == 2
    assert "mig.csv:2, column File: there is no file train.py here: it is named" in refused.stderr
    (user.home / "train.py").write_text("")
    refused = user.csub("batch", "mig.csv", check=False)
    assert refused.returncode == 2
    assert "mig.csv:2, column Collocation: 3g.20gb is a MIG device, and other" in refused.stderr
    assert list_jobs(user) == []
    dry = user.csub("batch", "--time=5", "--share=mps", "--dry-run", "mig.csv")
    assert "python train.py --batch-size 128" in dry.stdout


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("script,time\ntrain.sh,abc\n", "jobs.csv:2, column time: --time=abc: "),
        ("script,mem\ntrain.sh,1G\ntrain.sh,lots\n", "jobs.csv:3, column mem: --mem=lots: "),
        ("script,no-pause\ntrain.sh,maybe\n", "column no-pause: 'maybe' is neither yes nor no"),
        ("script,mem,mem-per-cpu\ntrain.sh,1G,1G\n", "exclude each other"),
        ("script,command\ntrain.sh,true\n", "jobs.csv:2: a row needs either a script or a command"),
        ("time\n5\n", "jobs.csv:2: a row needs either a script or a command"),
        ("command,arguments\ntrue,x\n", "arguments belong to a script"),
        ("script,tiem\ntrain.sh,5\n", "no placeholder takes the parameter tiem"),
        ("script,wait\ntrain.sh,yes\n", "--wait applies to a whole call, not to a row"),
        ("script,array\ntrain.sh,1-3\n", "--array applies to a whole call, not to a row"),
        ("script\nno.sh\n", "jobs.csv:2, column script: cannot read the script no.sh"),
        ("script,arguments\ntrain.sh,'a\n", 'jobs.csv:2, column arguments: "\'a": No closing'),
        ("script,gpu-mem,gpu_mem\ntrain.sh,1G,2G\n", "columns gpu-mem and gpu_mem mean the same"),
        ("script,name,job-name\ntrain.sh,a,b\n", "jobs.csv:2: the columns name and job-name mean"),
        ("script,args,arguments\ntrain.sh,a,b\n", "the columns args and arguments mean the same"),
        ("script,uid\ntrain.sh,5\n", "column uid: csub does not support --uid"),
        ("script,export-file\ntrain.sh,no\n", "column export-file: --export-file=no: No such"),
        ("script,mem,mem-per-gpu\ntrain.sh,,1X\n", "column mem-per-gpu: --mem-per-gpu=1X: "),
    ],
)
def test_a_wrong_cell_is_named_and_nothing_is_submitted(
    user: CsubUser, text: str, sentence: str
) -> None:
    user.script("train.sh", "exit 0")
    (user.home / "jobs.csv").write_text(text)
    refused = user.csub("batch", *SHARE[:-2], "jobs.csv", check=False)
    assert refused.returncode == 2, refused
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list_jobs(user) == []


def test_rows_that_cannot_share_are_said_so_once(user: CsubUser) -> None:
    (user.home / "jobs.csv").write_text("command,time\ntrue,3\nfalse,60\n")
    told = user.csub("batch", *SHARE, "--dry-run", "jobs.csv").stdout
    assert told.count("groups: jobs share a pack only if") == 1
    assert "2 groups: " in told


def test_rows_are_said_of_one_table(user: CsubUser) -> None:
    assert "no table was given" in user.csub("batch", "-t5", check=False).stderr
    assert "takes one table" in user.csub("batch", "a.csv", "b.csv", check=False).stderr
    told = user.csub("batch", "--resume", "-", check=False).stderr
    assert "need a file, and not standard input" in told
    (user.home / "tasks").write_text("#DISBATCH BARRIER\ntrue\n")
    assert "tasks:1: #DISBATCH BARRIER" in user.csub("batch", "tasks", check=False).stderr


def test_two_users_of_one_table_have_rows_of_their_own(
    user: CsubUser, slurm: FakeSlurm, tmp_path: Path
) -> None:
    home = tmp_path / "other"
    home.mkdir()
    other = dataclasses.replace(user, home=home)
    table = tmp_path / "jobs.csv"
    table.write_text("command\ntrue\nfalse\n")
    for one in (user, other, user, other):
        one.csub("batch", *SHARE, "--resume", str(table))
        one.csub("wait", "all", check=False)
    # The good row once each, the failed one twice each.
    assert [len(list_all(one)) for one in (user, other)] == [3, 3]
    assert len(slurm.look()) == 4


def test_what_sbatch_refuses_is_told_with_row_and_column(user: CsubUser) -> None:
    table = "command,partition,time\nsleep 600,,3\ntrue,nowhere,5\n"
    (user.home / "jobs.csv").write_text(table)
    for words in ((), ("--dry-run",)):
        refused = user.csub("batch", *SHARE, *words, "jobs.csv", check=False)
        assert refused.returncode == 4
        assert "csub: error: jobs.csv:3, column partition: sbatch: " in refused.stderr
        assert "jobs.csv:2" not in refused.stderr
        # A job that is cancelled ends some time later.
        wait_until(lambda: not list_jobs(user), "the end of the first row's job")
