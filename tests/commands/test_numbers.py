"""What a number means to each command: what the call that printed it has submitted."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from slurm_colloc.model.job_ids import is_own_number

from ..bed import CsubUser

SHARE = "#SBATCH --gres=gpu:1 --time=5 --mem=100M -c1"
GO = "echo ran $SLURM_JOB_ID; until [ -e go.$1 ]; do sleep 0.1; done; exit ${2:-0}"
LATER = "--begin=2099-01-01T12:00"
OF_ONE_USER = (
    "import os, pwd, sys\n"
    "account = (*pwd.getpwuid(os.getuid())[:5], sys.argv.pop(), '/bin/sh')\n"
    "pwd.getpwall = lambda: [pwd.struct_passwd(account)]\n"
    "from slurm_colloc.__main__ import run\n"
    "sys.exit(run(['admin', 'job', sys.argv.pop()]))\n"
)


def start(user: CsubUser, *options: str) -> tuple[str, str]:
    """A job, and the number of another that has joined its pack."""
    user.script("go.sh", GO, directives=SHARE)
    job_id = user.submit("pack", "--time=9", *options, "go.sh 1", "go.sh 2")
    if not options:
        user.wait_for_states(job_id, "RUNNING")
        user.run(["touch", "go.2"])
        user.wait_for_states(job_id, {2: "COMPLETED"})
    number = join(user, "--time=4", *options, "go.sh", "3", "4")
    assert is_own_number(number)
    return job_id, number


def join(user: CsubUser, *words: str) -> str:
    return user.csub("--join", "--open=never", "--parsable", *words).stdout.strip()


def list_rows(user: CsubUser, *words: str) -> dict[str, dict[str, Any]]:
    rows = json.loads(user.csub(*words).stdout)
    return {row["job_id"] or row["member"]: row for row in rows}


def link(user: CsubUser, *argv: str, check: bool = True) -> str:
    """What one of Slurm's commands says that is a link to csub."""
    folder = user.home / "links"
    folder.mkdir(exist_ok=True)
    path = folder / argv[0]
    if not path.exists():
        path.symlink_to(user.find("csub"))
    ended = user.run([str(path), *argv[1:]], check=check)
    return ended.stdout if check else ended.stdout + ended.stderr


def test_each_command_takes_the_number_and_a_bare_id_leaves_others_alone(user: CsubUser) -> None:
    job_id, number = start(user)
    user.wait_for_states(job_id, {1: "RUNNING", 3: "RUNNING"})
    address = f"{job_id}/3"
    assert user.find_address(number) == address
    shown = user.csub("show", number).stdout
    assert shown.startswith(f"Member {number} ({address})\n")
    assert f"job {job_id}" in shown or f"Pack {job_id}" in shown
    assert list(list_rows(user, "queue", "--json", number)) == [number]
    own = list_rows(user, "queue", "--all", "--json", job_id)
    assert [row["member"] for row in own.values()] == [f"{job_id}/1", f"{job_id}/2"]
    assert user.csub("why", number).stdout.startswith(f"{number} RUNNING")
    assert list_rows(user, "why", "--json", number)[number]["member"] == address
    assert number in user.csub("explain", number).stdout
    assert user.csub("logs", number).stdout == f"ran {number}\n"
    assert (user.home / f"slurm-{number}.out").exists()
    last = list_rows(user, "queue", "--json", "last")
    assert list(last) == [number]
    (report,) = json.loads(user.csub("report", "--json", number).stdout)
    assert [(m["id"], m["job_id"]) for m in report["members"]] == [(number, number)]
    # It waits for the call's own jobs, and no longer.
    user.run(["touch", "go.1"])
    assert user.csub("wait", job_id).returncode == 0
    assert user.members(job_id)[3]["state"] == "RUNNING"
    user.run(["touch", "go.3"])
    assert user.csub("wait", number, check=False).returncode == 4
    assert f"exit status 4 is that of {number}" in user.csub("wait", number, check=False).stderr
    assert list(list_rows(user, "history", "--json", number)) == [number]


def test_holding_and_releasing_by_number(user: CsubUser) -> None:
    job_id, number = start(user, LATER)
    user.csub("hold", number)
    assert {n: row["reason"] for n, row in user.members(job_id).items()}[3] == "JobHeldUser"
    assert "JobHeldUser" not in user.csub("queue", job_id).stdout
    user.csub("release", number)
    assert user.members(job_id)[3]["reason"] != "JobHeldUser"
    user.csub("cancel", number)
    assert [row["state"] for row in user.members(job_id).values()] == [
        "PENDING", "PENDING", "CANCELLED",
    ]  # fmt: skip


def test_links_translate_by_meaning(user: CsubUser) -> None:
    job_id, number = start(user)
    user.wait_for_states(job_id, {1: "RUNNING", 3: "RUNNING"})
    link(user, "scontrol", "requeue", number)
    user.wait_for_rows(job_id, lambda rows: rows[3]["starts"] == 2, "it was started again")
    assert user.members(job_id)[1]["starts"] == 1
    assert user.members(job_id)[3]["job_id"] == number
    waiting = link(user, "sbatch", "--parsable", "-d", f"afterany:{number}", "go.sh", "9").strip()
    link(user, "scancel", f"{number}.batch")
    user.wait_for_states(job_id, {1: "RUNNING", 3: "CANCELLED"})
    user.wait_for_states(waiting, "RUNNING")
    user.csub("cancel", "--yes", "all")


def test_cancelling_the_id_of_a_pack_by_scancel_leaves_who_has_joined(user: CsubUser) -> None:
    job_id, _ = start(user)
    user.wait_for_states(job_id, {1: "RUNNING", 3: "RUNNING"})
    link(user, "scancel", job_id)
    user.wait_for_states(job_id, {1: "CANCELLED", 3: "RUNNING"})
    user.run(["touch", "go.3"])
    user.wait_for_states(job_id, {3: "FAILED"})


def test_a_retry_of_a_joined_job_is_a_submission_of_its_own(user: CsubUser) -> None:
    job_id, number = start(user)
    user.run(["touch", "go.1", "go.3"])
    user.finish(number)
    user.finish(job_id)
    told = json.loads(user.csub("retry", "--json", number).stdout)
    ((again, first),) = told["retries"].items()
    assert first == number
    assert again not in (job_id, number)
    rows = user.finish(again)
    assert (rows[1]["retry_of"], rows[1]["job_id"]) == (number, None)
    assert rows[1]["exit_code"]["code"] == 4
    assert (user.home / f"slurm-{again}.out").read_text().endswith(f"ran {again}\n")
    # The last try counts, by whichever id it is named, and is a part of its own submission.
    told = json.loads(user.csub("retry", "--json", number).stdout)
    assert told["retries"] == {f"{again}/2": f"{again}/1"}
    rows = user.finish(again)
    assert rows[2]["retry_of"] == number
    assert user.members(job_id)[3]["job_id"] == number
    # The pack's own submission has nothing to try again: its jobs have completed.
    assert user.csub("retry", job_id, check=False).returncode == 2


def test_a_task_that_is_tried_again_has_another_number(user: CsubUser) -> None:
    user.script("go.sh", "exit 3", directives=SHARE)
    job_id = user.submit("--array=1-3", "go.sh")
    rows = user.finish(job_id)
    user.csub("retry", f"{job_id}/2")
    again = user.finish(job_id)
    numbers = [row["job_id"] for row in again.values() if row["job_id"]]
    assert len(set(numbers)) == len(numbers) >= len(rows)
    assert again[4]["job_id"] not in {row["job_id"] for row in rows.values()}


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [
        ("{number}/2", 7, "{number} is one job, which has no members"),
        ("{number}_3", 7, "{number} is one job, which has no members"),
        ("{near}", 7, "csub has no job {near} in .*: did you mean [0-9]{{10}}\\?"),
        ("0", 7, "csub has no job 0 in"),
        ("2147483648", 7, "csub has no job 2147483648 in"),
        ("134217727", 7, "csub has no job 134217727 in"),
        ("12345678901234567890", 2, "names neither a pack nor a member"),
        ("1795x", 2, "names neither a pack nor a member"),
    ],
)
def test_a_number_that_is_typed_wrongly_is_one_sentence(
    user: CsubUser, typed: str, code: int, words: str
) -> None:
    _, number = start(user, LATER)
    near = str(int(number) + 1)
    word, said = (text.format(number=number, near=near) for text in (typed, words))
    for command in ("show", "queue", "why", "logs", "cancel", "hold", "requeue", "wait", "report",
                    "retry"):  # fmt: skip
        ended = user.csub(command, word, check=False)
        assert (ended.returncode, ended.stdout) == (code, ""), (command, ended)
        assert ended.stderr.count("\n") == 1, (command, ended.stderr)
        assert re.search(said, ended.stderr), (command, ended.stderr)
    if code == 7 and is_own_number(word.partition("/")[0].partition("_")[0]):
        # Slurm would start it at once: to it, an id that it does not know is satisfied.
        refused = user.csub(f"--dependency=afterok:{word}", "go.sh", "7", check=False)
        assert refused.returncode == 7, refused


def test_with_the_pack_s_id_for_all_nothing_is_numbered(user: CsubUser) -> None:
    user.script("go.sh", GO, directives=SHARE)
    job_id = user.submit("pack", "--job-id=pack", LATER, "go.sh 1", "go.sh 2")
    member = join(user, "--job-id=pack", LATER, "go.sh", "3")
    assert member == f"{job_id}/3"
    rows = list_rows(user, "queue", "--json", job_id)
    assert list(rows) == [f"{job_id}/{n}" for n in (1, 2, 3)]
    assert not (user.state / "numbers").exists()
    user.csub("cancel", job_id)
    assert {row["state"] for row in user.members(job_id).values()} == {"CANCELLED"}


def test_a_damaged_claim_is_told_and_others_are_served(user: CsubUser) -> None:
    _, first = start(user, LATER)
    second = join(user, LATER, "go.sh", "4")
    (claim,) = user.state.glob(f"numbers/*/{second}/claim.json")
    claim.write_text("{")
    told = user.csub("show", second, check=False)
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (6, "", 1)
    assert str(claim) in told.stderr
    assert list(list_rows(user, "queue", "--json", first)) == [first]


def test_an_administrator_is_led_from_a_number_to_its_user(user: CsubUser) -> None:
    wrong = user.csub("admin", "job", "x", check=False)
    assert (wrong.returncode, "'x' is no number of a job" in wrong.stderr) == (2, True)
    unknown = user.csub("admin", "job", "2147483647", check=False)
    assert unknown.returncode == 7
    assert "2147483647 was not found" in unknown.stderr
    assert unknown.stderr.count("\n") == 1


def test_an_administrator_is_told_where_the_state_of_a_user_cannot_be_read(user: CsubUser) -> None:
    _, number = start(user, LATER)
    (user.home / ".local").mkdir()
    (user.home / ".local" / "state").symlink_to(user.home / "state")
    call = [sys.executable, "-c", OF_ONE_USER, number, str(user.home)]
    assert user.run(call).stdout.startswith(f"{number}: member ")
    (claim,) = user.state.glob(f"numbers/*/{number}/claim.json")
    text = claim.read_text()
    claim.write_text("{")
    lost = user.run(call, check=False)
    assert lost.returncode == 7
    assert "csub: the state of 1 user cannot be read: root\n" in lost.stderr
    assert f"{number} was not found in the states of 0 users" in lost.stderr
    claim.write_text(text)
    (record,) = user.state.glob("packs/*/pack.json")
    record.write_text(record.read_text().replace('"pack_id": "', '"pack_id": "\\u001b[2J'))
    shown = user.run(call, check=False)
    assert "\x1b" not in shown.stdout + shown.stderr


def test_completion_offers_the_numbers_of_joined_jobs(user: CsubUser) -> None:
    _, number = start(user, LATER)
    offered = user.csub("--complete-words", "show", number[:3], check=False)
    assert number in offered.stdout.split()
