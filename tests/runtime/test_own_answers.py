"""What squeue and `scontrol show job` answer inside a member, from what Slurm has answered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.runtime.programs import own_rows
from slurm_colloc.runtime.programs.member_commands import OwnMember
from slurm_colloc.runtime.programs.own_rows import OwnAnswers, parse_span
from slurm_colloc.slurm.marked_tables import QueueField, build_queue_question, split_rows
from slurm_colloc.slurm.scontrol_records import format_span

NOW = 1_000_000.0
KNOWN = {
    "job_id": "4713",
    "real_id": "4713",
    "member": "4711/3",
    "name": "train",
    "command": "/home/ada/train.sh 7",
    "directory": "/home/ada",
    "cpu_count": "2",
    "host_memory_mb": "2048",
    "started_at": str(int(NOW) - 60),
    "wall_limit_s": "90",
    "output": "/home/ada/slurm-4711_3.out",
    "error": "/home/ada/slurm-4711_3.out",
}
MEMBER = OwnMember("/state/packs/p/members/0003", KNOWN)
TASK = OwnMember(MEMBER.folder, KNOWN | {"task_id": "4711_3"})


def ask(
    *arguments: str, environment: dict[str, str] | None = None, member: OwnMember = MEMBER
) -> tuple[list[str], list[QueueField]]:
    question = build_queue_question(arguments, environment or {}, own_rows.HEAD)
    assert question is not None
    return question.build_words(member.translate), list(question.fields)


def answer(rows: list[str], *arguments: str, member: OwnMember = MEMBER, left_s: int = 500) -> str:
    """Rows of real cells, `|` between them, as squeue would answer this question."""
    _, fields = ask(*arguments, member=member)
    lines = []
    for row in rows:
        job_id, *cells = row.split("|")
        lines.append(f"{job_id}\x1f8:20\x1e\x1f" + "".join(f"{cell}\x1f" for cell in cells))
    answers = OwnAnswers(member, NOW, left_s)
    found = split_rows("\n".join(lines), fields)
    assert found is not None
    return own_rows.tell_row(found, member, fields, answers)


@pytest.mark.parametrize(
    ("form", "cell", "expected"),
    [
        ("%L", "8:20", "0:30"),
        ("%l", "9:20", "1:30"),
        ("%M", "2:00", "1:00"),
        ("%.10L", "      8:20", "      0:30"),
        ("%3Lx", "8:2x", "0:3x"),
        ("%.2j", "tr", "tr"),
        ("%8jZ", "train+3 Z", "train   Z"),
        ("%C", "8", "2"),
        ("%m", "16G", "2G"),
        ("%o", "/state/x.sh", "/home/ada/train.sh 7"),
        ("%Z", "/", "/home/ada"),
        ("%i", "4713", "4713"),
        ("%T", "RUNNING", "RUNNING"),
        ("%D", "1", "1"),
    ],
)
def test_of_the_own_row_what_csub_knows_better_is_replaced(
    form: str, cell: str, expected: str
) -> None:
    assert answer([f"4713|{cell}"], "-h", "-o", form) == expected
    # Exactly that row: the same cell of another job is as it was.
    assert answer([f"4714|{cell}"], "-h", "-o", form) == cell


def test_moments_are_the_member_s() -> None:
    start, end = (
        time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW + offset)) for offset in (-60, 30)
    )
    assert answer(["4713|a|b"], "-o", "%S %e") == f"{start} {end}"


def test_the_pack_s_end_comes_before_a_limit_that_lies_behind_it() -> None:
    assert answer(["4713|8:20"], "-o", "%L", left_s=10) == "0:10"


def test_a_member_without_a_limit_has_the_pack_s() -> None:
    known = {name: text for name, text in KNOWN.items() if name != "wall_limit_s"}
    member = OwnMember(MEMBER.folder, known)
    assert answer(["4713|8:20 |9:20"], "-o", "%L %l", member=member) == "8:20 9:20"


def test_long_names_have_a_width_and_a_suffix_as_squeue_reads_them() -> None:
    words, _ = ask("--Format=timeleft,name:.8|,command:")
    assert words[-1] == "jobid:\x1f,timeleft:\x1e\x1f,timeleft:20\x1f,name:.8|\x1f,command:\x1f"
    row = "4713|8:20                |train+3 |/x"
    told = answer([row], "-O", "timeleft,name:.8+,command:")
    assert told == "0:30                   train+/home/ada/train.sh 7"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-hl", "-j4711_3"], ["-h", "-l", "--jobs=4713"]),
        (["--jobs=99,4711/3"], ["--jobs=99,4713"]),
        (["-hj4711/3"], ["-h", "--jobs=4713"]),
        (["--me", "-t", "R"], ["--me", "-t", "R"]),
    ],
)
def test_the_own_job_is_found_by_each_of_its_names(
    arguments: list[str], expected: list[str]
) -> None:
    assert ask(*arguments, member=TASK)[0][: len(expected)] == expected


def test_a_task_of_an_array_is_one_in_its_row() -> None:
    told = answer(["4713|4713|4713|N/A"], "-o", "%i %F %K", member=TASK)
    assert told == "4711_3 4711 3"


def test_ids_may_follow_as_words() -> None:
    words = ask("-j", "4711_3", "-o", "%L", member=TASK)[0]
    assert words[0] == "-j"
    assert words[-2:] == ["--", "4713"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json"],
        ["--yaml"],
        ["-s"],
        ["--start"],
        ["-i", "5"],
        ["-o", "%L", "-O", "timeleft"],
        ["-o", "100%"],
        ["-l", "-o", "%L"],
        ["-o", "plain"],
        ["--no-such-option"],
        ["-Mall"],
    ],
)
def test_what_cannot_be_followed_is_squeue_s_alone(arguments: list[str]) -> None:
    assert build_queue_question(arguments, {}, own_rows.HEAD) is None


def test_a_format_of_the_environment_counts_where_none_is_given() -> None:
    assert ask(environment={"SQUEUE_FORMAT": "%L"})[0][-1].endswith("\x1e\x1f%L\x1f")
    assert ask("-l", environment={"SQUEUE_FORMAT": "%L"})[0][:2] == ["-l", "-O"]
    assert ask("-o", "%j", environment={"SQUEUE_FORMAT": "%L"})[0][-1].endswith("%j\x1f")
    assert ask(environment={"SQUEUE_FORMAT2": "timeleft"})[0][-2] == "-O"


def test_rows_with_a_mark_in_them_are_left_to_squeue() -> None:
    _, fields = ask("-o", "%j")
    assert split_rows("99\x1f8:20\x1e\x1fa\x1fb\x1f\n", fields) is None


@pytest.mark.parametrize("seconds", [0, 59, 60, 3599, 3600, 86399, 86400, 1_000_000])
def test_a_span_is_read_as_it_is_written(seconds: int) -> None:
    assert parse_span(format_span(seconds)) == seconds


@pytest.mark.parametrize("text", ["UNLIMITED", "NOT_SET", "INVALID", "", "a-1:00", "-1:00"])
def test_what_is_no_span_is_none(text: str) -> None:
    assert parse_span(text) is None


RECORD = """\
JobId=4713 ArrayJobId=4711 ArrayTaskId=0 JobName=train+3
   UserId=ada(1) GroupId=ada(1) MCS_label=N/A
   RunTime=00:02:00 TimeLimit=01:00:00 TimeMin=N/A
   StartTime=2026-11-25T17:23:30 EndTime=2026-11-25T18:23:30 Deadline=N/A
   NumNodes=1 NumCPUs=8 NumTasks=1 CPUs/Task=8 ReqB:S:C:T=0:0:*:*
   MinCPUsNode=8 MinMemoryNode=16G MinTmpDiskNode=0
   Command=/state/making/x y.sh
   WorkDir=/
   Comment=JobName=no TimeLimit=no
   StdOut=/state/pack.log
   Power=

"""
OTHER = RECORD.replace("JobId=4713", "JobId=4714")


def test_of_the_own_record_what_csub_knows_better_is_replaced() -> None:
    told = own_rows.tell_record(OTHER + RECORD + OTHER, MEMBER, NOW)
    assert told.startswith(OTHER)
    assert told.endswith(OTHER)
    own = told[len(OTHER) : -len(OTHER)]
    for text in (
        "JobName=train\n",
        "RunTime=00:01:00 TimeLimit=00:01:30 TimeMin=N/A\n",
        "NumCPUs=2 NumTasks=1 CPUs/Task=8",
        "MinMemoryNode=2G MinTmp",
        "Command=/home/ada/train.sh 7\n",
        "WorkDir=/home/ada\n",
        "StdOut=/home/ada/slurm-4711_3.out\n",
        "Deadline=N/A",
    ):
        assert text in own
    assert own.count("\n") == RECORD.count("\n")


def test_one_line_has_the_same_words() -> None:
    lines = own_rows.tell_record(RECORD + OTHER, MEMBER, NOW, is_one_line=True).splitlines()
    assert len(lines) == 2
    assert lines[0].split() == own_rows.tell_record(RECORD, MEMBER, NOW).split()
    assert lines[1] == OTHER.replace("\n   ", " ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "job", "4711/3"], (["show", "job", "4713"], False)),
        (["show", "job=4713"], (["show", "job=4713"], False)),
        (["-o", "show", "job"], (["show", "job"], True)),
        (["-do", "show", "job", "99"], (["-d", "show", "job", "99"], True)),
        (["--oneliner", "show", "job"], (["show", "job"], True)),
        (["--json", "show", "job"], None),
    ],
)
def test_how_scontrol_is_asked(
    arguments: list[str], expected: tuple[list[str], bool] | None
) -> None:
    assert own_rows.build_question(arguments, MEMBER) == expected


def run_writer(stdout: int) -> subprocess.CompletedProcess[bytes]:
    code = (
        "from slurm_colloc.runtime.programs.member_commands import write_output\n"
        "import os\n"
        "os._exit(0 if write_output('a row\\n' * 100000) else 1)"
    )
    return subprocess.run(
        [sys.executable, "-c", code], stdout=stdout, stderr=subprocess.PIPE, check=False, timeout=30
    )


def test_a_reader_that_has_gone_ends_a_question_as_it_ends_slurm_s_own() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = run_writer(writing)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, b"")


def test_an_answer_that_cannot_be_written_is_said() -> None:
    with Path("/dev/full").open("wb") as full:
        ended = run_writer(full.fileno())
    said = b"csub: error: cannot write to standard output: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, said)
