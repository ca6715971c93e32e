"""A job by itself that asks for more than it needs, so that others can join it while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ..bed import CsubUser, administrate, running_sandbox, user_of
from ..wait_until import wait_until
from .joins import block, list_packs, read_field
from .test_joining import on_terminal, read_log

pytestmark = pytest.mark.slurm

OPTIONS = "#SBATCH --gres=gpu:1 --cpus-per-task=2 --mem=200M --time=10"
BODY = 'echo "up $1"; until [ -e "go" ]; do sleep 0.05; done; echo "out $1"'
REFUSAL = "asks for nothing for jobs that join while it runs: "


@pytest.fixture
def script(small: CsubUser) -> CsubUser:
    """The user of one GPU with 16 CPUs, with a script that runs until it may end."""
    small.script("train.sh", BODY, directives=OPTIONS)
    return small


def submit(user: CsubUser, *words: str) -> str:
    """Submit on a terminal; the job's id."""
    return on_terminal(user, *words).split()[3]


def join(user: CsubUser, word: str) -> str:
    """Submit where the id is captured, so that it joins; the member as which it has."""
    number = user.csub("--join", "--parsable", "train.sh", word).stdout.strip()
    return user.find_address(number)


def let_go(user: CsubUser, job_id: str) -> None:
    """Let all jobs end, and wait for it."""
    user.run(["touch", "go"])
    user.finish(job_id)


def read_reasons(user: CsubUser, job_id: str) -> list[str]:
    """Why a pack looks as it does."""
    reasons: list[str] = json.loads((list_packs(user)[job_id] / "pack.json").read_text())["reasons"]
    return reasons


@pytest.mark.smoke
def test_a_job_is_opened_on_a_terminal_and_the_next_one_joins_it_while_it_runs(
    script: CsubUser,
) -> None:
    told = on_terminal(script, "train.sh", "a")
    job_id = told.split()[3]
    head = f"Submitted batch job {job_id} (member {job_id}/1 in 1 pack"
    assert told.strip() == f"{head}, mps or timeslice)"
    wait_until(lambda: "up a" in script.output(f"slurm-{job_id}.out"), "the first runs")
    cpus, limit = read_field(script, job_id, "%C %l").split()
    # Its ten minutes stretched by half, a minute each to start and to be measured, and twice that.
    assert (cpus, limit) == ("16", "34:00")
    assert "Open:     for 7 more jobs" in script.csub("show", job_id).stdout
    assert "open for 7 more jobs while it runs" in script.csub("why", f"{job_id}/1").stdout
    joined = on_terminal(script, "train.sh", "b")
    (number,) = script.list_joined(job_id)
    head = f"Submitted batch job {number} ({job_id}/2, joined the running pack of {job_id}/1"
    assert head in joined
    wait_until(lambda: "up b" in script.output(f"slurm-{number}.out"), "the second runs")
    assert "Open:     for 6 more jobs" in script.csub("show", job_id).stdout
    let_go(script, job_id)
    assert [row["state"] for row in script.members(job_id).values()] == ["COMPLETED"] * 2
    assert script.output(f"slurm-{job_id}.out") == "up a\nout a\n"
    assert script.output(f"slurm-{number}.out") == "up b\nout b\n"
    wait_until(lambda: read_field(script, job_id, "%T") == "COMPLETED", "the GPU is given back")
    (summary,) = json.loads(script.csub("report", "--json", job_id).stdout)
    opened = summary["open"]
    assert (opened["for"], opened["joined"]) == (7, 1)
    assert 0 < opened["cpu_hours"]["used"] < opened["cpu_hours"]["asked"]
    memory = opened["host_memory_gb_hours"]
    assert 0 < memory["used"] < memory["asked"]
    assert "CPU hours asked for" in script.csub("report", job_id).stdout


def test_a_job_that_is_joined_while_it_waits_stays_open(script: CsubUser) -> None:
    (blocker,) = block(script)
    job_id = script.csub("--open=4", "--parsable", "train.sh", "a").stdout.strip()
    assert join(script, "b") == f"{job_id}/2"
    assert read_field(script, job_id, "%T %C") == "PENDING 8"
    script.run(["scancel", blocker])
    wait_until(lambda: "up b" in read_log(script, job_id), "both run")
    assert join(script, "c") == f"{job_id}/3"
    let_go(script, job_id)
    assert [row["state"] for row in script.members(job_id).values()] == ["COMPLETED"] * 3


def test_open_with_a_number_where_the_id_is_captured(script: CsubUser) -> None:
    done = script.csub("--open=3", "--explain", "train.sh", "a")
    job_id = done.stdout.split()[-1]
    assert done.stdout == f"Submitted batch job {job_id}\n"
    assert "open for 2 more jobs while it runs: it asks for 6 CPUs" in done.stderr
    assert "Slurm was not asked what that costs" in done.stderr
    wait_until(lambda: "up a" in script.output(f"slurm-{job_id}.out"), "it runs")
    assert read_field(script, job_id, "%C") == "6"
    for number, word in ((2, "b"), (3, "c")):
        assert join(script, word) == f"{job_id}/{number}"
    full = script.csub("--join", "--parsable", "--dry-run", "train.sh", "d").stdout
    assert "would join" not in full
    let_go(script, job_id)


def test_where_the_id_is_captured_nothing_is_opened_unless_asked_for(script: CsubUser) -> None:
    job_id = script.submit("train.sh", "a")
    wait_until(lambda: "up a" in script.output(f"slurm-{job_id}.out"), "it runs")
    assert read_field(script, job_id, "%C %l") == "2 10:00"
    assert not any("join while it runs" in text for text in read_reasons(script, job_id))
    let_go(script, job_id)


@pytest.mark.parametrize(
    "words", [["--open=never"], ["--join=never"], ["--degree=1"], ["--share=exclusive"]]
)
def test_a_job_that_is_to_be_alone_is_not_opened(script: CsubUser, words: list[str]) -> None:
    job_id = submit(script, *words, "train.sh", "a")
    assert read_field(script, job_id, "%C %l") == "2 10:00"
    let_go(script, job_id)


def test_the_settings_open_every_job_or_none(script: CsubUser) -> None:
    script.csub("config", "open", "never")
    job_id = submit(script, "train.sh", "a")
    assert read_field(script, job_id, "%C") == "2"
    let_go(script, job_id)
    script.csub("config", "open", "always")
    job_id = script.submit("train.sh", "b")
    assert read_field(script, job_id, "%C") == "16"
    let_go(script, job_id)


def test_a_job_that_would_start_later_is_not_opened_and_says_so(script: CsubUser) -> None:
    # It leaves the GPU, and less than the share of CPUs.
    argv = ["sbatch", "--parsable", "-c6", "--mem=20M", "--time=60", "--output=/dev/null",
            "--wrap=sleep 900"]  # fmt: skip
    blocker = script.run(argv).stdout.strip()
    wait_until(lambda: read_field(script, blocker, "%T") == "RUNNING", "it runs")
    job_id = submit(script, "train.sh", "a")
    wait_until(lambda: "up a" in script.output(f"slurm-{job_id}.out"), "it runs")
    assert read_field(script, job_id, "%C %l") == "2 10:00"
    why = script.csub("why", f"{job_id}/1").stdout
    assert f"it {REFUSAL}Slurm would start it 60 min later than alone" in why
    assert f"{REFUSAL}Slurm would start it" in script.csub("show", job_id).stdout
    script.run(["scancel", blocker])
    let_go(script, job_id)


def test_a_job_for_which_more_would_be_charged_is_not_opened_and_says_so(
    script: CsubUser,
) -> None:
    update = ["scontrol", "update", "PartitionName=gpu"]
    administrate(script, *update, "TRESBillingWeights=CPU=1")
    try:
        told = on_terminal(script, "--explain", "train.sh", "a")
        job_id = told.split()[3]
        assert f"{REFUSAL}partition gpu would charge 16 for it instead of 2" in told
        assert read_field(script, job_id, "%C") == "2"
        let_go(script, job_id)
        # What is charged does not depend on the share.
        administrate(script, *update, "TRESBillingWeights=CPU=0,Node=4")
        job_id = submit(script, "train.sh", "b")
        assert read_field(script, job_id, "%C") == "16"
        let_go(script, job_id)
    finally:
        administrate(script, *update, "TRESBillingWeights=CPU=0")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--open=0"], "--open=0: a number of jobs"),
        (["--open=1"], "--open=1: a number of jobs"),
        (["--open=many"], "--open=many: a number of jobs"),
        (["--open=\x1b[31m"], "from 2 to 48"),
        (["--open=append"], "sbatch's option is --open-mode=append"),
        (["--open", "--array=0-3"], "only a job by itself is opened"),
        (["--open", "--join=never"], "--join=never keeps other jobs away"),
        (["--open", "--local"], "without Slurm (--local)"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    script: CsubUser, words: list[str], told: str
) -> None:
    done = script.csub(*words, "train.sh", check=False)
    assert done.returncode == 2
    assert told in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_plan_says_that_it_would_be_open(script: CsubUser) -> None:
    told = script.csub("plan", "--open", "--explain", "train.sh").stdout
    assert "one job, open for 7 more jobs" in told
    (pack,) = json.loads(script.csub("plan", "--open=3", "--json", "train.sh").stdout)["packs"]
    assert (pack["open_for"], pack["degree"], pack["cpus"]) == (2, 3, 6)


@pytest.fixture
def narrow(accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of one GPU with two CPUs."""
    with (
        running_sandbox(nodes=1, gpus_per_node=1, cpus_per_node=2) as sandbox,
        user_of(sandbox, accounts[0]) as somebody,
    ):
        yield somebody


def test_a_gpu_whose_share_is_one_job_is_not_opened(narrow: CsubUser) -> None:
    narrow.script("train.sh", "true", directives=OPTIONS)
    told = on_terminal(narrow, "--open", "train.sh")
    assert "one GPU's share of a node has room for one such job (the share is 2 CPUs" in told
    narrow.finish(told.split()[3])
