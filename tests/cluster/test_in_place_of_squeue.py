"""csub under the name squeue: tasks of a pack look as sbatch's own tasks do to Slurm's squeue."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, user_of
from ..wait_until import wait_until
from .test_take_over import one_gpu, say_room

__all__ = ["one_gpu"]

pytestmark = pytest.mark.slurm

CSUB = Path(sys.executable).parent / "csub"
GO = (
    'while [ ! -e "go.$SLURM_ARRAY_TASK_ID" ]; do sleep 0.1; done; '
    '[ "$SLURM_ARRAY_TASK_ID" != 102 ]'
)
OPTIONS = (
    "--array=100-104", "--time=5", "--job-name=sweep", "--cpus-per-task=1", "--mem=100M",
    "--output=out-%A_%a.txt",
)  # fmt: skip
FIELDS = "%i|%F|%K|%j|%T|%t|%N|%R|%C|%.12i|%3t|%Z"
QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("-o", FIELDS),
    ("-r", "-o", FIELDS),
    ("-h", "-o", "%i %T"),
    ("-t", "all", "-o", FIELDS),
    ("--states=PENDING,R", "-o", "%i %T"),
    ("-t", "CD,F", "-o", "%i %T %R"),
    ("-n", "sweep", "-o", "%i %T"),
    ("-r", "-o", "%i %c %m %k"),
    ("-r", "-O", "jobarrayid,mincpus,minmemory,cpus-per-task,comment,stdin"),
    ("-n", "other", "-o", "%i %T"),
    ("-j", "JOB_101", "-o", "%i %T"),
    ("-t", "all", "-j", "JOB_101,JOB_102", "-o", "%i %T"),
    ("-t", "all", "--jobs=JOB_101", "--jobs=JOB_102", "-o", "%i %T"),
    ("-t", "R", "-t", "all", "-n", "other", "-n", "sweep", "-o", "%i %T"),
    ("-t", "all", "-j", "JOB", "-r", "-h", "-O", "jobarrayid:.15,statecompact,reasonlist,name:7"),
    (),
    ("-l",),
)
"""JOB is the array's id."""


@pytest.fixture
def linked(user: CsubUser) -> CsubUser:
    """A user with a directory in which squeue is a link to csub."""
    return link(user)


@pytest.fixture
def linked_on_one_gpu(one_gpu: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """The same where there is one GPU."""
    with user_of(one_gpu, accounts[0]) as found:
        yield link(found)


def link(user: CsubUser) -> CsubUser:
    (user.home / "mybin").mkdir()
    (user.home / "mybin" / "squeue").symlink_to(CSUB)
    user.script("go.sh", GO)
    return user


def ask(user: CsubUser, words: Sequence[str], job_id: str, *, linked: bool) -> list[str]:
    """What squeue says of one array: JOB for its id, TIME for times that pass."""
    path = user.environment["PATH"]
    user.extra["PATH"] = f"{user.home / 'mybin'}:{path}" if linked else path
    try:
        asked = [word.replace("JOB", job_id) for word in words]
        answer = user.run(["squeue", *asked])
    finally:
        del user.extra["PATH"]
    assert answer.stderr == ""
    lines = answer.stdout.split("\n")
    assert lines.pop() == ""
    # --long begins with the time.
    told = [line for line in lines if not re.match(r" *\d|[A-Z][a-z]{2} ", line)]
    own = re.compile(rf" *{job_id}(?=_|\|{job_id}\||  )")
    for line in sorted(line for line in lines if own.match(line)):
        shown = re.sub(rf"(?<![\w:.-]){job_id}(?=[_|])", "JOB", own.sub("JOB", line, count=1))
        # A member's limit is longer than what was asked for.
        told.append(re.sub(r" +\d+:\d\d(?= )", " TIME", shown))
    return told


def compare(user: CsubUser, control: str, packed: str) -> None:
    """All questions, asked of sbatch's array by squeue and of csub's by the link."""
    for words in QUESTIONS:
        expected = ask(user, words, control, linked=False)
        assert ask(user, words, packed, linked=True) == expected, words


def submit_both(user: CsubUser, *options: str) -> tuple[str, str]:
    """The ids of an array by sbatch, without a GPU, and of the same one by csub, in one pack."""
    words = [*OPTIONS, *options, "go.sh"]
    control = user.run(["sbatch", "--parsable", *words]).stdout.strip()
    return control, user.submit("--gres=gpu:1", "--share=timeslice", "--degree=5", *words)


def go(user: CsubUser, *numbers: int) -> None:
    """Let these tasks of both arrays end."""
    user.run(["touch", *(f"go.{number}" for number in numbers)])


def test_tasks_are_told_of_as_sbatch_s_own(linked: CsubUser) -> None:
    control, packed = submit_both(linked)
    linked.wait_for_states(packed, "RUNNING")
    compare(linked, control, packed)
    go(linked, 101, 102)
    linked.wait_for_states(packed, {101: "COMPLETED", 102: "FAILED"})
    compare(linked, control, packed)
    go(linked, 100, 103, 104)
    linked.finish(packed)
    compare(linked, control, packed)


@pytest.mark.smoke
def test_tasks_that_wait_share_a_row(linked: CsubUser) -> None:
    control, packed = submit_both(linked, "--hold")
    compare(linked, control, packed)
    linked.run(["scancel", control, packed])


def test_rows_come_in_the_order_that_was_asked_for(linked: CsubUser) -> None:
    control, packed = submit_both(linked)
    linked.wait_for_states(packed, "RUNNING")
    wait_until(
        lambda: (
            linked.run(["squeue", "-h", "-t", "R", "-r", "-j", control]).stdout.count("\n") == 5
        ),
        "sbatch's tasks run",
    )
    path = f"{linked.home / 'mybin'}:{linked.environment['PATH']}"
    for order in (["--sort=-i"], ["-S", "i"], ["-S", "j,-i"], ["-S", "t,+i"]):
        rows = []
        for job_id, where in ((control, {}), (packed, {"PATH": path})):
            words = ["squeue", "-h", "-r", "-j", job_id, "-o", "%K", *order]
            rows.append(linked.run(words, environment=where).stdout)
        assert rows[0] == rows[1], order
    shown = linked.run(
        ["squeue", "-h", "-j", f"{packed}_103", "-O", "stdout:.200,stderr:.200"],
        environment={"PATH": path},
    )
    assert shown.stdout.split() == [str(linked.home / f"out-{packed}_103.txt")] * 2
    linked.run(["scancel", control, packed])


def test_the_environment_unfolds_rows_and_shapes_times(linked: CsubUser) -> None:
    control, packed = submit_both(linked, "--hold")
    linked.extra["SQUEUE_ARRAY"] = "1"
    linked.extra["SQUEUE_SORT"] = "-i"
    compare(linked, control, packed)
    del linked.extra["SQUEUE_ARRAY"], linked.extra["SQUEUE_SORT"]
    linked.run(["scontrol", "release", packed])
    linked.wait_for_states(packed, "RUNNING")
    environment = {
        "PATH": f"{linked.home / 'mybin'}:{linked.environment['PATH']}",
        "SLURM_TIME_FORMAT": "relative",
    }
    told = linked.run(["squeue", "-h", "-j", packed, "-o", "%S"], environment=environment).stdout
    # A run at midnight has begun yesterday.
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d|Ystday \d\d:\d\d", line) for line in told.splitlines())
    linked.run(["scancel", control, packed])


def test_a_task_that_waits_is_on_no_node(linked: CsubUser) -> None:
    words = ("--gres=gpu:1", "--share=timeslice", "--degree=2", "--pack-size=3", *OPTIONS[1:])
    job_id = linked.submit(*words, "--array=100-102", "go.sh")
    linked.wait_for_states(job_id, {100: "RUNNING", 101: "RUNNING", 102: "PENDING"})
    (node,) = set(linked.run(["squeue", "-h", "-o", "%N"]).stdout.split())
    shown = ask(linked, ("-h", "-w", node, "-o", "%i %T"), job_id, linked=True)
    assert shown == ["JOB_100 RUNNING", "JOB_101 RUNNING"]
    go(linked, 100, 101, 102)
    linked.finish(job_id)


def test_nothing_of_other_packs_comes_between_the_words_of_an_answer(linked: CsubUser) -> None:
    path = f"{linked.home / 'mybin'}:{linked.environment['PATH']}"
    (linked.home / "mybin" / "sbatch").symlink_to(CSUB)
    words = ["--gres=gpu:1", "--output=gone/x", "go.sh"]
    for line in ("squeue -h", f"sbatch --parsable {' '.join(words)} 2>&1"):
        lost = linked.submit(*words)
        wait_until(
            lambda: not linked.run(["squeue", "-h", "--me"]).stdout, "the job without output ends"
        )
        told = linked.run(["bash", "-c", line], environment={"PATH": path})
        assert (told.stdout.strip().isdigit(), told.stderr) == (line != "squeue -h", "")
        (row,) = linked.members(lost).values()
        assert row["state"] == "FAILED"


def test_rows_of_others_and_of_jobs_without_packs_are_squeue_s(linked: CsubUser) -> None:
    control, packed = submit_both(linked)
    alone = linked.submit("--gres=gpu:1", "--hold", "--array=7", "go.sh")
    linked.wait_for_states(packed, "RUNNING")
    asked = ["squeue", "-h", "-r", "-j", control, "-o", "%T"]
    wait_until(lambda: set(linked.run(asked).stdout.split()) == {"RUNNING"}, "all have begun")
    for words in (("-o", "%i %T"), ("-t", "all", "-o", "%i %T"), ("--steps",), ("--start",)):
        assert ask(linked, words, control, linked=True) == ask(linked, words, control, linked=False)
        assert ask(linked, words, alone, linked=True) == ask(linked, words, alone, linked=False)
    assert ask(linked, ("-h", "-o", "%i"), packed, linked=True)
    linked.run(["scancel", control, packed, alone])


def test_what_squeue_refuses_is_refused(linked: CsubUser) -> None:
    linked.extra["PATH"] = f"{linked.home / 'mybin'}:{linked.environment['PATH']}"
    linked.submit("--gres=gpu:1", "--hold", "--array=0-1", "go.sh")
    for words in (["-j", "99999"], ["-t", "WALKING"], ["--lang"], ["-o", "%"]):
        behind = linked.run([linked.find("squeue"), *words], check=False)
        ended = linked.run(["squeue", *words], check=False)
        assert (ended.returncode, ended.stdout) == (behind.returncode, behind.stdout)
        assert "Traceback" not in ended.stderr
    linked.run(["scancel", "--me"])


def test_where_the_state_cannot_be_read_squeue_answers_alone(linked: CsubUser) -> None:
    linked.extra["PATH"] = f"{linked.home / 'mybin'}:{linked.environment['PATH']}"
    packed = linked.submit("--gres=gpu:1", "--hold", "--array=0-1", "go.sh")
    for path in linked.state.glob("packs/*/pack.json"):
        path.write_text("{")
    ended = linked.run(["squeue", "-h", "-o", "%F"])
    assert ended.stdout == f"{packed}\n"
    assert "it is shown as Slurm knows it" in ended.stderr
    linked.run(["scancel", packed])


def test_tasks_that_went_to_another_pack_are_shown_once(linked: CsubUser) -> None:
    say_room(linked, 12)
    job_id = linked.submit("--gres=gpu:1", "--share=timeslice", "--mem=50M", *OPTIONS[1:],
                           "--array=100-111", "go.sh")  # fmt: skip
    assert len(list(linked.state.glob("packs/*"))) > 1
    linked.wait_for_states(job_id, "RUNNING")
    expected = ["JOBID STATE", *(f"JOB_{number} RUNNING" for number in range(100, 112))]
    for words in (("-j", "JOB"), (), ("-t", "R"), ("-n", "sweep")):
        assert ask(linked, (*words, "-o", "%i %T"), job_id, linked=True) == expected
    alone = ask(linked, ("-j", "JOB_111", "-o", "%i %T"), job_id, linked=True)
    assert alone == ["JOBID STATE", "JOB_111 RUNNING"]
    go(linked, *range(100, 112))
    linked.finish(job_id)
    shown = ask(linked, ("-t", "all", "-o", "%i %T"), job_id, linked=True)
    assert [line.split()[1] for line in shown[1:]].count("COMPLETED") == 11
    assert len(shown) == 13


def test_tasks_in_the_job_of_an_earlier_call_have_ids_of_their_own(
    linked_on_one_gpu: CsubUser,
) -> None:
    user = linked_on_one_gpu
    say_room(user, 4)
    words = ("--gres=gpu:1", "--share=timeslice", "--mem=50M", *OPTIONS[1:], "--join")
    first = user.submit(*words, "--array=100-103", "go.sh")
    user.wait_for_states(first, "RUNNING")
    second = user.submit(*words, "--array=200-201", "go.sh")
    go(user, 100, 101)
    user.wait_for_states(second, "RUNNING")
    for job_id, numbers in ((first, (102, 103)), (second, (200, 201))):
        expected = ["JOBID STATE", *(f"JOB_{number} RUNNING" for number in numbers)]
        for asked in (("-j", "JOB"), (), ("-t", "R")):
            assert ask(user, (*asked, "-o", "%i %T"), job_id, linked=True) == expected
    path = f"{user.home / 'mybin'}:{user.environment['PATH']}"
    of_first = ["squeue", "-h", "-o", "%F", "-j", first]
    assert set(user.run(of_first, environment={"PATH": path}).stdout.split()) == {first}
    # Of Slurm's own scancel both would go on: the job of this id was emptied.
    (user.home / "mybin" / "scancel").symlink_to(CSUB)
    user.run(["scancel", second], environment={"PATH": path})
    user.wait_for_states(second, {200: "CANCELLED", 201: "CANCELLED"})
    user.wait_for_states(first, {102: "RUNNING", 103: "RUNNING"})
    go(user, 102, 103)
    user.finish(first)
    shown = ask(user, ("-t", "all", "-j", "JOB_200", "-h", "-o", "%i %T"), second, linked=True)
    assert shown == ["JOB_200 CANCELLED"]


def test_a_reader_that_is_gone_is_no_error(linked: CsubUser) -> None:
    linked.extra["PATH"] = f"{linked.home / 'mybin'}:{linked.environment['PATH']}"
    packed = linked.submit("--gres=gpu:1", "--hold", "--array=0-1", "go.sh")
    ended = linked.run(["bash", "-c", "{ sleep 1; squeue; } | true"])
    assert (ended.stdout, ended.stderr) == ("", "")
    linked.run(["scancel", packed])


def test_where_no_squeue_is_slurm_s_that_is_said_once(linked: CsubUser) -> None:
    python = str(Path(sys.executable).parent)
    linked.extra["PATH"] = f"{linked.home / 'mybin'}:{python}"
    ended = linked.run([str(linked.home / "mybin" / "squeue")], check=False)
    del linked.extra["PATH"]
    assert ended.returncode == 4
    assert ended.stderr.count("every squeue in PATH leads back to csub") == 1
    assert "Traceback" not in ended.stderr
