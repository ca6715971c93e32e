"""csub under the name scontrol: tasks of packs are shown and steered like sbatch's own."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_colloc.model.job_ids import is_own_number

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

CSUB = Path(sys.executable).parent / "csub"
GO = (
    'while [ ! -e "go.$SLURM_ARRAY_TASK_ID" ]; do sleep 0.1; done; '
    '[ "$SLURM_ARRAY_TASK_ID" != 102 ]'
)
OPTIONS = (
    "--array=100-104", "--time=5", "--job-name=sweep", "--cpus-per-task=1", "--mem=100M",
    "--output=out-%A_%a.txt", "--comment=a b",
)  # fmt: skip
OF_THE_PACK = frozenset(
    {"JobId", "Priority", "SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime",
     "RunTime", "TimeLimit", "LastSchedEval", "Scheduler", "NodeList", "BatchHost", "AllocNode:Sid",
     "TresPerNode", "SuspendTime"}
)  # fmt: skip
"""Fields in which two jobs differ, or that speak of where the pack waits and runs."""


@pytest.fixture
def linked(user: CsubUser) -> CsubUser:
    """A user with a directory in which scontrol is a link to csub."""
    (user.home / "mybin").mkdir()
    (user.home / "mybin" / "scontrol").symlink_to(CSUB)
    user.script("go.sh", GO)
    return user


def call(user: CsubUser, *words: str, check: bool = True) -> tuple[int, str, str]:
    """What the link answers: exit status, standard output and standard error."""
    path = f"{user.home / 'mybin'}:{user.environment['PATH']}"
    ended = user.run(["scontrol", *words], environment={"PATH": path}, check=check)
    return ended.returncode, ended.stdout, ended.stderr


def read_records(text: str) -> dict[str, dict[str, str]]:
    """Records by task, `JOB_100`, each with its fields."""
    found = {}
    for record in filter(str.strip, text.split("\n\n")):
        fields = dict(re.findall(r"([\w/:.&]+)=((?:(?! [\w/:.&]+=)[^\n])*)", record))
        name = fields["JobId"]
        if "ArrayTaskId" in fields:
            name = f"JOB_{fields['ArrayTaskId']}"
        found[name] = fields
    return found


def submit_both(user: CsubUser, *options: str) -> tuple[str, str]:
    """The ids of an array by sbatch, without a GPU, and of the same one by csub, in one pack."""
    words = [*OPTIONS, *options, "go.sh"]
    control = user.run(["sbatch", "--parsable", *words]).stdout.strip()
    return control, user.submit("--gres=gpu:1", "--share=timeslice", "--degree=5", *words)


def go(user: CsubUser, *numbers: int) -> None:
    user.run(["touch", *(f"go.{number}" for number in numbers)])


def wait_for_control(user: CsubUser, job_id: str, number: int, state: str) -> None:
    ask = ["squeue", "-h", "-r", "-t", "all", "-j", f"{job_id}_{number}", "-o", "%T"]
    wait_until(lambda: user.run(ask).stdout.strip() == state, f"sbatch's task {number} is {state}")


def compare(user: CsubUser, control: str, packed: str, words: Sequence[str]) -> None:
    """A question about sbatch's array to scontrol, and about csub's to the link."""
    told = []
    for job_id in (control, packed):
        asked = [word.replace("JOB", job_id) for word in words]
        text = user.run([user.find("scontrol"), *asked]).stdout if job_id == control else ""
        text = text or call(user, *asked)[1]
        told.append(re.sub(rf"(?<=[=-]){job_id}(?=[ _])", "JOB", text))
    expected, shown = map(read_records, told)
    assert shown.keys() == expected.keys(), words
    for name, fields in expected.items():
        task = shown[name]
        assert {key: text for key, text in task.items() if key not in OF_THE_PACK} == {
            key: text for key, text in fields.items() if key not in OF_THE_PACK
        }, (words, name)
        # Each task has an id of its own; the one that Slurm gives the array's has it here, too.
        assert (task["JobId"] == "JOB") == (fields["JobId"] == "JOB"), (words, name)
        assert task["JobId"] == "JOB" or is_own_number(task["JobId"]), (words, name)
    assert len({task["JobId"] for task in shown.values()}) == len(expected), words


def test_tasks_are_told_of_as_sbatch_s_own(linked: CsubUser) -> None:
    control, packed = submit_both(linked)
    linked.wait_for_states(packed, "RUNNING")
    wait_for_control(linked, control, 104, "RUNNING")
    questions = (("show", "job", "JOB"), ("show", "jobid=JOB_101"), ("SHOW", "Job", "JOB_102"))
    for words in questions:
        compare(linked, control, packed, words)
    go(linked, 101, 102)
    linked.wait_for_states(packed, {101: "COMPLETED", 102: "FAILED"})
    wait_for_control(linked, control, 102, "FAILED")
    wait_for_control(linked, control, 101, "COMPLETED")
    for words in questions:
        compare(linked, control, packed, words)
    for job_id in (f"{control}_103", f"{packed}_103"):
        linked.run(["csub", "cancel", job_id] if job_id[:4] == packed[:4] else ["scancel", job_id])
    go(linked, 100, 104)
    linked.finish(packed)
    wait_for_control(linked, control, 103, "CANCELLED")
    wait_for_control(linked, control, 104, "COMPLETED")
    for words in questions:
        compare(linked, control, packed, words)


@pytest.mark.smoke
def test_one_line_for_each_task_with_its_own_times(linked: CsubUser) -> None:
    job_id = linked.submit(
        "--array=100-102", "--gres=gpu:1", "--share=timeslice", "--degree=2", "--pack-size=3",
        "go.sh",
    )  # fmt: skip
    linked.wait_for_states(job_id, {100: "RUNNING", 101: "RUNNING", 102: "PENDING"})
    # Slurm 26.05 has words that name nothing.
    told = linked.run(["scontrol", "-o", "show", "job", job_id]).stdout
    bare = {word for word in told.split() if "=" not in word}
    for words in (("-o", "show", "job", job_id), ("show", "--oneliner", "job", job_id)):
        lines = call(linked, *words)[1].splitlines()
        # As of Slurm's own tasks: each has an id of its own, and the last one the array's.
        ids = [line.partition(" ")[0].removeprefix("JobId=") for line in lines]
        assert len({*ids}) == 3
        assert [is_own_number(own) for own in ids] == [True, True, False]
        heads = [
            f"JobId={own} ArrayJobId={job_id} ArrayTaskId={n} "
            for own, n in zip([*ids[:2], job_id], (100, 101, 102), strict=True)
        ]
        assert [line[: len(head)] for line, head in zip(lines, heads, strict=True)] == heads
        assert " JobState=PENDING Reason=Resources " in lines[2]
        assert " StartTime=Unknown EndTime=Unknown " in lines[2]
        assert all(re.search(r" StartTime=\d{4}-\S+ EndTime=\d{4}-", line) for line in lines[:2])
        assert {word for line in lines for word in line.split() if "=" not in word} <= bare
    # All jobs, as no id is named.
    lines = call(linked, "-o", "show", "job")[1].splitlines()
    assert [line for line in lines if f" ArrayJobId={job_id} " in line] == [
        line for line in lines if line.startswith(tuple(heads))
    ]
    assert sum(line.startswith(tuple(heads)) for line in lines) == 3
    assert sum(line.startswith(f"JobId={job_id} ") for line in lines) == 1
    go(linked, 100, 101, 102)
    linked.finish(job_id)


def test_a_job_that_has_joined_has_its_own_id(linked: CsubUser) -> None:
    linked.script("one.sh", 'while [ ! -e "end.$1" ]; do sleep 0.1; done; exit $1')
    # Not open for others, the first one has no room for the second until it has been measured.
    words = ("--gres=gpu:1", "--share=timeslice", "--mem=50M", "--open=never", "--join", "one.sh")
    first = linked.submit(*words, "3")
    linked.wait_for_states(first, "RUNNING")
    second = linked.submit(*words, "0")
    linked.wait_for_states(second, "RUNNING")
    linked.run(["touch", "end.3"])
    linked.wait_for_states(first, "FAILED")
    for job_id, state, code in ((first, "FAILED", "3:0"), (second, "RUNNING", "0:0")):
        (fields,) = read_records(call(linked, "show", "job", job_id)[1]).values()
        assert (fields["JobId"], fields["JobState"]) == (job_id, state)
        assert fields["ExitCode"] == code
        assert "ArrayJobId" not in fields
    linked.run(["touch", "end.0"])
    linked.finish(second)


def test_json_has_the_tasks(linked: CsubUser) -> None:
    job_id = linked.submit("--array=100-101", "--gres=gpu:1", "--share=timeslice", "go.sh")
    linked.wait_for_states(job_id, "RUNNING")
    if linked.run(["scontrol", "--json", "show", "job", job_id], check=False).returncode:
        linked.run(["scancel", job_id])
        status, _, complaint = call(linked, "--json", "show", "job", job_id, check=False)
        assert (status, "json" in complaint) == (1, True)
        pytest.skip("this scontrol has no --json")
    (linked.home / "go.101").touch()
    linked.wait_for_states(job_id, {100: "RUNNING", 101: "COMPLETED"})
    real = json.loads(linked.run(["scontrol", "--json", "show", "job", job_id]).stdout)
    told = json.loads(call(linked, "--json", "show", "job", job_id)[1])
    assert told.keys() == real.keys()
    states = []
    for job in told["jobs"]:
        assert job.keys() == real["jobs"][0].keys()
        assert {key: type(value) for key, value in job.items()} == {
            key: type(value) for key, value in real["jobs"][0].items()
        }
        state, index = job["job_state"], job["array_task_id"]
        states.append(
            (index["number"] if isinstance(index, dict) else index,
             state[0] if isinstance(state, list) else state)
        )  # fmt: skip
    assert states == [(100, "RUNNING"), (101, "COMPLETED")]
    go(linked, 100)
    linked.finish(job_id)


def test_waiting_tasks_are_held_and_released(linked: CsubUser) -> None:
    words = ("--gres=gpu:1", "--share=timeslice", "--degree=1", "--pack-size=4")
    job_id = linked.submit(*words, "--array=110-113", "go.sh")
    linked.wait_for_states(job_id, {110: "RUNNING", 111: "PENDING"})
    other = linked.run(["sbatch", "--parsable", "--array=1-2", "--hold", "go.sh"]).stdout.strip()
    assert call(linked, "hold", f"{job_id}_111", f"{job_id}_112,{other}_2")[0] == 0
    go(linked, 110, 111, 112, 113)
    linked.wait_for_states(job_id, {110: "COMPLETED", 113: "COMPLETED"})
    assert {linked.members(job_id)[number]["state"] for number in (111, 112)} == {"PENDING"}
    record = call(linked, "show", "job", f"{job_id}_111")[1]
    assert "JobState=PENDING Reason=JobHeldUser" in record or "not found" in record
    assert call(linked, "release", f"{job_id}_[111-112]", f"{other}_1")[0] == 0
    reasons = linked.run(["squeue", "-h", "-r", "-j", other, "-o", "%i %r"]).stdout.splitlines()
    assert f"{other}_2 JobHeldUser" in reasons
    assert f"{other}_1 JobHeldUser" not in reasons
    linked.run(["scancel", other])
    # Their pack had ended: both are found in another one.
    linked.csub("wait", job_id)


def test_a_task_is_requeued_alone(linked: CsubUser) -> None:
    job_id = linked.submit(
        "--requeue", "--array=100-101", "--gres=gpu:1", "--share=timeslice", "go.sh"
    )
    linked.wait_for_states(job_id, "RUNNING")
    assert call(linked, "requeue", f"{job_id}_100") == (0, "", "")
    rows = linked.wait_for_rows(job_id, lambda rows: rows[100]["starts"] == 2, "100 starts again")
    assert rows[101]["starts"] == 1
    linked.wait_for_states(job_id, "RUNNING")
    assert "Restarts=1 " in call(linked, "show", "job", f"{job_id}_100")[1]
    status, _, complaint = call(linked, "hold", f"{job_id}_101", check=False)
    assert (status != 0, "a running job cannot be held" in complaint) == (True, True)
    go(linked, 100, 101)
    linked.finish(job_id)


def test_what_can_be_updated(linked: CsubUser) -> None:
    job_id = linked.submit(
        "--array=100-103", "--hold", "--gres=gpu:1", "--share=timeslice", "--degree=2",
        "--pack-size=2", "go.sh",
    )  # fmt: skip
    other = linked.run(["sbatch", "--parsable", "--hold", "go.sh"]).stdout.strip()
    ask = ["squeue", "-h", "-r", "-o", "%F %y"]
    before = linked.run(ask).stdout
    for word, ids, wanted in (
        ("Nice=7", f"{job_id}_100", "cannot be changed alone"),
        ("TimeLimit=9", job_id, "TimeLimit cannot be changed for a task of a pack"),
        ("Comment=x", job_id, "Comment cannot be changed"),
    ):
        status, _, complaint = call(linked, "update", f"JobId={ids}", word, check=False)
        assert status != 0
        assert wanted in complaint
    assert linked.run(ask).stdout == before
    assert call(linked, "update", f"jobid={job_id}_[100-101],{other}", "nice=7")[0] == 0
    shown = linked.run(ask).stdout.splitlines()
    assert sorted(shown) == sorted([f"{job_id} 0", f"{job_id} 7", f"{other} 7"])
    assert call(linked, "update", f"JobId={job_id}", "Nice=9")[0] == 0
    assert linked.run(ask).stdout.count(" 9") == 2
    linked.run(["scancel", job_id, other])


def test_a_call_by_name_is_refused_where_jobs_share_a_pack(linked: CsubUser) -> None:
    _, packed = submit_both(linked, "--hold")
    status, _, complaint = call(linked, "release", "name=sweep", check=False)
    assert status != 0
    assert f"{packed}/100" in complaint
    assert {row["state"] for row in linked.members(packed).values()} == {"PENDING"}
    linked.run(["scancel", "--me"])


def test_everything_else_is_slurm_s(linked: CsubUser) -> None:
    alone = linked.submit("--gres=gpu:1", "--hold", "go.sh")
    for words in (
        ["show", "config"], ["show", "hostnames", "n[1-3]"], ["-o", "show", "nodes"],
        ["show", "job", "99999"], ["show", "job", alone], ["-o", "show", "job", alone],
        ["hold", "99999"], ["requeue", "99999"], ["update", "JobId=99999", "Nice=1"], ["nonsense"],
        ["show", "job", f"{alone}_7"], ["--version"], ["hold", alone],
    ):  # fmt: skip
        behind = linked.run([linked.find("scontrol"), *words], check=False)
        status, told, complaint = call(linked, *words, check=False)
        times = r"(?m)^.*(?:BOOT_TIME|CPULoad|LastBusyTime|Configuration data).*$"
        assert status == behind.returncode, words
        assert re.sub(times, "", told) == re.sub(times, "", behind.stdout), words
        assert complaint == behind.stderr, words
    linked.run(["scancel", alone])


def test_where_the_state_cannot_be_read_slurm_answers_alone(linked: CsubUser) -> None:
    packed = linked.submit("--gres=gpu:1", "--hold", "--array=0-1", "go.sh")
    for path in linked.state.glob("packs/*/pack.json"):
        path.write_text("{")
    status, told, complaint = call(linked, "show", "job", packed)
    assert told.startswith(f"JobId={packed} JobName=")
    assert "packs are shown as Slurm knows them" in complaint
    status, _, complaint = call(linked, "hold", f"{packed}_0", check=False)
    assert status != 0
    assert "Traceback" not in complaint
    linked.run(["scancel", packed])
