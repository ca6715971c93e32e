"""What members write where, and what of a submission is fixed when it is made."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from slurm_colloc.model.job_ids import is_own_number

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

HELLO = 'echo "out of ${SLURM_COLLOC_MEMBER#*/}"'


def list_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.is_file())


# -- files --------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_output_goes_to_the_submission_directory_merged_and_in_order(user: CsubUser) -> None:
    body = "for i in $(seq 50); do echo out $i; echo err $i >&2; done"
    user.script("talk.sh", body)
    user.run(["mkdir", "below"])
    job_id = user.run(
        ["csub", "pack", "--parsable", "--gres=gpu:1", "../talk.sh", "../talk.sh"],
        directory=user.home / "below",
    ).stdout.strip()
    user.finish(job_id)
    assert list_files(user.home / "below") == [f"slurm-{job_id}_{n}.out" for n in (1, 2)]
    expected = "".join(f"out {i}\nerr {i}\n" for i in range(1, 51))
    for number in (1, 2):
        assert user.output(f"below/slurm-{job_id}_{number}.out") == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        pytest.param("%j.log", "{own}.log", marks=pytest.mark.smoke),
        ("%A-%a.log", "{job}-{n}.log"),
        ("%x-%u-%N", "{name}-{user}-{node}_{n}"),
        ("%x.log.txt", "{name}.log_{n}.txt"),
        ("logs/%x_%4a", "logs/{name}_000{n}"),
        ("plain", "plain_{n}"),
        pytest.param("with space;%a $(x).txt", "with space;{n} $(x).txt", marks=pytest.mark.smoke),
        ("100%%.%a", "100%.{n}"),
    ],
)
def test_patterns_never_give_two_members_one_file(
    user: CsubUser, pattern: str, expected: str
) -> None:
    user.script("hello.sh", HELLO)
    user.run(["mkdir", "logs"])
    job_id = user.submit(
        "pack", "--gres=gpu:1", "-J", "a name", "-o", pattern, "hello.sh", "hello.sh"
    )
    rows = user.finish(job_id)
    for number in (1, 2):
        short_node = rows[number]["node"].partition(".")[0]
        # The first one's own number is the submission's.
        own = rows[number]["job_id"] or job_id
        assert is_own_number(own) == (number > 1)
        name = expected.format(
            job=job_id, n=number, own=own, name="a name", user=user.name, node=short_node
        )
        assert user.output(name) == f"out of {number}\n"
        assert user.csub("logs", f"{job_id}/{number}").stdout == f"out of {number}\n"


@pytest.mark.smoke
def test_errors_in_a_file_of_their_own(user: CsubUser) -> None:
    user.script("both.sh", HELLO + "; echo problem >&2")
    job_id = user.submit(
        "pack", "--gres=gpu:1", "-o", "o.%a", "-e", "e.%a", "both.sh", "both.sh"
    )  # fmt: skip
    user.finish(job_id)
    for number in (1, 2):
        assert user.output(f"o.{number}") == f"out of {number}\n"
        assert user.output(f"e.{number}") == "problem\n"
        assert user.csub("logs", "--error", f"{job_id}/{number}").stdout == "problem\n"


def test_output_is_truncated_unless_append_was_asked_for(user: CsubUser) -> None:
    user.script("hello.sh", HELLO)
    options = ("--gres=gpu:1", "-o", "o.%a", "hello.sh", "hello.sh")
    # JobFileAppend is 0 where a site says nothing.
    for mode, lines in (("append", 1), ("append", 2), ("truncate", 1), ("append", 2), ("", 1)):
        user.finish(user.submit("pack", *([f"--open-mode={mode}"] if mode else []), *options))
        for number in (1, 2):
            assert user.output(f"o.{number}") == f"out of {number}\n" * lines


@pytest.mark.smoke
def test_array_tasks_are_named_as_with_sbatch(user: CsubUser) -> None:
    user.script("task.sh", "echo $SLURM_ARRAY_TASK_ID")
    job_id = user.submit("--array=7,9", "--gres=gpu:1", "task.sh")
    named = user.submit("--array=7,9", "--gres=gpu:1", "-o", "t.%A.%a", "task.sh")
    user.finish(job_id)
    user.finish(named)
    for task in (7, 9):
        assert user.output(f"slurm-{job_id}_{task}.out") == f"{task}\n"
        assert user.output(f"t.{named}.{task}") == f"{task}\n"


def test_the_working_directory(user: CsubUser) -> None:
    user.script("where.sh", "pwd")
    user.run(["mkdir", "a b"])
    given = user.submit("pack", "--gres=gpu:1", "--chdir=a b", "where.sh", "where.sh")
    absolute = user.submit("pack", "--gres=gpu:1", "-D", f"{user.home}/a b", "where.sh", "where.sh")
    for job_id in (given, absolute):
        user.finish(job_id)
        for number in (1, 2):
            assert user.output(f"a b/slurm-{job_id}_{number}.out") == f"{user.home}/a b\n"


def test_a_missing_working_directory_is_treated_as_by_sbatch(user: CsubUser) -> None:
    user.script("where.sh", "pwd")
    # The output would lie in it: nothing runs.
    inside = user.submit("pack", "--gres=gpu:1", "--chdir=not/here", "where.sh", "where.sh")
    rows = user.finish(inside)
    assert {row["state"] for row in rows.values()} == {"FAILED"}
    path = f"{user.home}/not/here/slurm-{inside}_1.out"
    assert rows[1]["reason"] == f"it could not be started: {path}: No such file or directory"
    # The output lies elsewhere: it runs in /tmp and says so.
    output = f"{user.home}/%a.out"
    outside = user.submit(
        "pack", "--gres=gpu:1", "--chdir=not/here", "-o", output, "where.sh", "where.sh"
    )
    user.run(["sbatch", "--chdir=not/here", "-o", f"{user.home}/sbatch.out", "where.sh"])
    user.finish(outside)
    wait_until(lambda: "\n/tmp\n" in user.output("sbatch.out"), "sbatch's job has run")
    theirs = user.output("sbatch.out").replace("slurmstepd: ", "")
    assert user.output("1.out").splitlines()[-1] == "/tmp"
    assert user.output("1.out").splitlines()[0] in theirs


def test_an_output_that_cannot_be_opened_fails_that_member_alone(user: CsubUser) -> None:
    user.script("bad.sh", HELLO, directives="#SBATCH -o missing/%a.out")
    user.script("good.sh", HELLO)
    job_id = user.submit("pack", "--gres=gpu:1", "bad.sh", "good.sh")
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["FAILED", "COMPLETED"]
    assert rows[1]["reason"] == (
        f"it could not be started: {user.home}/missing/1.out: No such file or directory"
    )
    assert user.output(f"slurm-{job_id}_2.out") == "out of 2\n"


def test_standard_input_is_the_file_of_input_and_empty_otherwise(user: CsubUser) -> None:
    user.script("read.sh", "cat; echo end")
    user.run(["bash", "-c", "echo from a file > words.txt"])
    job_id = user.submit("pack", "--gres=gpu:1", "-i", "words.txt", "read.sh", "read.sh")
    without = user.submit("pack", "--gres=gpu:1", "read.sh", "read.sh")
    user.finish(job_id)
    user.finish(without)
    assert user.output(f"slurm-{job_id}_2.out") == "from a file\nend\n"
    assert user.output(f"slurm-{without}_2.out") == "end\n"


def test_each_task_reads_the_file_that_its_pattern_names(user: CsubUser) -> None:
    user.script("read.sh", "cat")
    user.run(["bash", "-c", "for i in 1 2 3; do echo from $i >in-$i-read.sh; done"])
    words = ("--input=in-%a-%x", "--gres=gpu:1", "read.sh")
    together = user.submit("--array=1-2", "--degree=2", *words)
    alone = user.submit("--array=3", *words)
    user.finish(together)
    user.finish(alone)
    shown = [user.output(f"slurm-{together}_{number}.out") for number in (1, 2)]
    assert [*shown, user.output(f"slurm-{alone}_3.out")] == ["from 1\n", "from 2\n", "from 3\n"]


# -- fixed at submission --------------------------------------------------------------------------


@pytest.mark.smoke
def test_editing_or_deleting_the_script_afterwards_changes_nothing(user: CsubUser) -> None:
    edited = user.script("edited.sh", "echo as submitted")
    deleted = user.script("deleted.sh", "echo as submitted")
    job_id = user.submit("pack", "--gres=gpu:1", "--hold", "edited.sh", "deleted.sh")
    edited.write_text("#!/bin/bash\necho edited\n")
    deleted.unlink()
    user.run(["scontrol", "release", job_id])
    user.finish(job_id)
    for number in (1, 2):
        assert user.output(f"slurm-{job_id}_{number}.out") == "as submitted\n"


@pytest.mark.smoke
def test_the_environment_is_the_one_of_the_submission_and_leaves_no_trace(user: CsubUser) -> None:
    secret = "s3cret-5f1c"
    user.script("tell.sh", 'echo "${#TOKEN} $TOKEN2"; while [ ! -e go ]; do sleep 0.1; done')
    environment = {"TOKEN": secret, "TOKEN2": "first"}
    job_id = user.run(
        ["csub", "pack", "--parsable", "--gres=gpu:1", "--degree=2", "--pack-size=3",
         "tell.sh", "tell.sh", "tell.sh"],
        environment=environment,
    ).stdout.strip()  # fmt: skip
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})

    def find_secret() -> list[str]:
        return sorted(
            str(path.relative_to(user.state))
            for path in user.state.rglob("*")
            if path.is_file() and secret.encode() in path.read_bytes()
        )

    holders = find_secret()
    assert holders
    assert {Path(path).name for path in holders} == {"env"}
    # A link has no mode of its own.
    for path in (path for path in user.state.rglob("*") if not path.is_symlink()):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode & 0o077 == 0, f"{path}: {mode:o}"
    user.run(["touch", "go"])
    user.finish(job_id)
    assert user.output(f"slurm-{job_id}_3.out") == f"{len(secret)} first\n"
    wait_until(lambda: not find_secret(), "no file of the state holds the secret")
    shown = user.run(["scontrol", "show", "job", job_id]).stdout
    assert secret not in shown


def test_a_cancelled_members_environment_goes_too(user: CsubUser) -> None:
    user.script("never.sh", "exit 0")
    job_id = user.submit("pack", "--gres=gpu:1", "--hold", "never.sh", "never.sh")
    assert list(user.state.rglob("env"))
    user.csub("cancel", job_id)
    user.wait_for_states(job_id, "CANCELLED")
    user.csub("queue")
    wait_until(lambda: not list(user.state.rglob("env")), "the environments are gone")


def test_the_umask_is_the_submitters(user: CsubUser) -> None:
    user.script("make.sh", 'umask; touch "made.${SLURM_COLLOC_MEMBER#*/}"')
    job_id = user.run(
        ["bash", "-c", "umask 027; csub pack --parsable --gres=gpu:1 make.sh make.sh"]
    ).stdout.strip()
    user.finish(job_id)
    for number in (1, 2):
        assert user.output(f"slurm-{job_id}_{number}.out") == "0027\n"
        made = user.home / f"made.{number}"
        assert stat.S_IMODE(made.stat().st_mode) == 0o640


# -- names and arguments --------------------------------------------------------------------------

AWKWARD = (
    "a b",
    'it\'s "quoted"',
    "new\nline",
    "semi;colon && $(touch pwned) `touch pwned`",
    "ünïcode-日本",
    "",
    "-n 5",
    "%j %a {{ x }} {% y %}",
    "\\back\\slash",
    "*",
)
TELL = 'printf "%s\\0" "$@" "$AWKWARD" "$PWD"'


def test_awkward_arguments_directories_and_environments_arrive_as_they_are(user: CsubUser) -> None:
    directory = user.home / "di r;'\"$(touch pwned)\nü"
    user.run(["mkdir", str(directory)])
    name = "scr ipt;'\"$(touch pwned) ü.sh"
    script = user.script(name, TELL)
    user.extra["AWKWARD"] = "".join(AWKWARD)
    array = user.run(
        ["csub", "--parsable", "--array=1-2", "--gres=gpu:1", str(script), *AWKWARD],
        directory=directory,
    ).stdout.strip()
    lone = user.run(
        ["csub", "--parsable", str(script), *AWKWARD], directory=directory
    ).stdout.strip()
    rows = user.finish(array)
    user.finish(lone)
    for file in (f"slurm-{array}_1.out", f"slurm-{array}_2.out", f"slurm-{lone}.out"):
        told = (directory / file).read_text().split("\0")[:-1]
        assert told == [*AWKWARD, "".join(AWKWARD), str(directory)]
    assert rows[1]["arguments"] == list(AWKWARD)
    assert rows[1]["name"] == name
    assert not list(user.home.rglob("pwned"))
    assert user.csub("show", f"{array}/1").stdout
    assert user.csub("queue", "--all").stdout.count("\n") >= 3


def test_pack_takes_quoted_arguments_and_scripts_with_awkward_names(user: CsubUser) -> None:
    user.script("a b;c.sh", TELL)
    user.script("plain.sh", TELL)
    job_id = user.submit(
        "pack", "--gres=gpu:1", "a b;c.sh", "plain.sh --lr 0.1 'two words' \"$(x)\" ü"
    )
    user.finish(job_id)
    assert user.output(f"slurm-{job_id}_1.out").split("\0")[:-2] == [""]
    told = user.output(f"slurm-{job_id}_2.out").split("\0")
    assert told[:5] == ["--lr", "0.1", "two words", "$(x)", "ü"]


def test_bytes_that_are_not_utf8_come_through(user: CsubUser) -> None:
    user.script("tell.sh", 'printf "%s|%s" "$1" "$RAW"')
    user.extra["RAW"] = os.fsdecode(b"\xff\xfe")
    job_id = user.submit("--array=1", "--gres=gpu:1", "tell.sh", os.fsdecode(b"caf\xe9"))
    user.finish(job_id)
    raw = (user.home / f"slurm-{job_id}_1.out").read_bytes()
    assert raw == b"caf\xe9|\xff\xfe"


# -- forms of the command -------------------------------------------------------------------------


@pytest.mark.smoke
def test_wrap_and_a_script_from_standard_input(user: CsubUser) -> None:
    wrapped = user.submit("--gres=gpu:1", "--array=1-2", "--wrap", 'echo "wrapped $0" | wc -w')
    user.finish(wrapped)
    assert user.output(f"slurm-{wrapped}_1.out") == "2\n"
    text = "#!/bin/bash\n#SBATCH -J piped\necho from stdin\n"
    piped = user.run(["csub", "--parsable"], stdin=text).stdout.strip()
    rows = user.finish(piped)
    assert rows[1]["name"] == "piped"
    assert user.output(f"slurm-{piped}.out") == "from stdin\n"


@pytest.mark.smoke
def test_directives_of_both_kinds_are_honoured(user: CsubUser) -> None:
    directives = (
        "#SBATCH --array=1-4 --gres=gpu:1 -J first\n"
        "#SBATCH --output=%x.%a.txt\n"
        "#CSUB --degree=2 --pack-size=4\n"
        "#CSUB -J 'second name'"
    )
    user.script("directed.sh", "echo $SLURM_JOB_NAME", directives=directives)
    job_id = user.submit("directed.sh")
    rows = user.finish(job_id)
    assert {row["degree"] for row in rows.values()} == {2}
    assert {row["slurm_job_id"] for row in rows.values()} == {job_id}
    for number in range(1, 5):
        assert user.output(f"second name.{number}.txt") == "second name\n"
    # The command line wins over both.
    other = user.submit("-J", "third", "--array=5", "directed.sh")
    user.finish(other)
    assert user.output("third.5.txt") == "third\n"


@pytest.mark.smoke
def test_wait_answers_with_the_worst_exit_status(user: CsubUser) -> None:
    user.script("exit.sh", "exit $1")
    ended = user.csub("pack", "--gres=gpu:1", "--wait", "exit.sh 0", "exit.sh 9", check=False)
    assert ended.returncode == 9
    assert ended.stdout.startswith("Submitted batch job ")


@pytest.mark.smoke
def test_the_answer_can_be_parsable_json_or_nothing(user: CsubUser) -> None:
    user.script("ok.sh", "exit 0")
    pack = ("pack", "--gres=gpu:1", "ok.sh", "ok.sh")
    parsable = user.csub(pack[0], "--parsable", *pack[1:]).stdout
    assert parsable.strip().isdigit()
    quiet = user.csub(pack[0], "--quiet", *pack[1:])
    assert (quiet.stdout, quiet.stderr) == ("", "")
    answer = json.loads(user.csub(pack[0], "--json", *pack[1:]).stdout)
    [submitted] = answer["submitted"]
    job_id = submitted["job_id"]
    [told] = submitted["packs"]
    assert told["members"] == [f"{job_id}/1", f"{job_id}/2"]
    assert (told["slurm_job_id"], told["degree"], told["mode"]) == (job_id, 2, "mps")
    lone = user.csub("ok.sh").stdout
    assert lone.startswith("Submitted batch job ")
    several = user.csub("--array=1-6", "--gres=gpu:1", "--degree=3", "ok.sh")
    last = several.stdout.split()[3]
    assert several.stdout == f"Submitted batch job {last}\n"
    assert several.stderr == f"csub: members {last}/1-{last}/6 in 2 packs, mps or timeslice\n"
    user.finish(last)
