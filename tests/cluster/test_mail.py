"""--mail-type and --mail-user of members."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_colloc.model.job_ids import is_own_number

from ..bed import PATIENCE_S, CsubUser, running_sandbox, user_of
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

SLURMS_PATIENCE_S = 180.0
"""On a quiet cluster slurmctld looks at its own mails only every minute or two."""

MAIL_PROGRAM = """#!/bin/bash
cd {folder} || exit 9
case $(cat mode 2>/dev/null) in
    hang) exec sleep 60 ;;
    fail) exit 3 ;;
esac
file=$(mktemp out/new.XXXXXX)
{{ printf '%s\\n' "$3" "$1" "$2" "$(base64 -w0)"; env | grep '^SLURM_' | sort; }} > "$file"
mv "$file" "out/done.${{file##*.}}"
"""


@dataclass
class Mail:
    to: str
    subject: str
    body: str
    environment: dict[str, str]


@dataclass
class Post:
    """The site's mail program, which keeps what it is given."""

    folder: Path

    def read(self) -> list[Mail]:
        mails = []
        for path in sorted(
            self.folder.glob("out/done.*"), key=lambda path: path.stat().st_mtime_ns
        ):
            to, option, subject, body, *pairs = path.read_text().splitlines()
            assert option == "-s"
            environment = dict(pair.split("=", 1) for pair in pairs)
            mails.append(Mail(to, subject, base64.b64decode(body).decode(), environment))
        return mails

    def wait_for(self, count: int, *, patience_s: float = PATIENCE_S) -> list[Mail]:
        return list(
            wait_until(
                lambda: len(self.read()) >= count and self.read(),
                f"{count} mails are sent",
                patience_s=patience_s,
            )
        )

    def set_mode(self, mode: str) -> None:
        (self.folder / "mode").write_text(mode)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[object, Path]]:
    folder = Path("/var/tmp") / f"csub-mail-{tmp_path_factory.getbasetemp().name}-{id(object())}"
    folder.mkdir()
    (folder / "out").mkdir()
    folder.chmod(0o755)
    (folder / "out").chmod(0o1777)
    program = folder / "mail.sh"
    program.write_text(MAIL_PROGRAM.format(folder=folder))
    program.chmod(0o755)
    try:
        with running_sandbox(
            cpus_per_node=16, extra_conf=(f"MailProg={program}", "MailDomain=example.org")
        ) as sandbox:
            yield sandbox, folder
    finally:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def post(site: tuple[object, Path]) -> Iterator[Post]:
    post = Post(site[1])
    post.set_mode("")
    for path in site[1].glob("out/*"):
        path.unlink()
    yield post
    post.set_mode("")


@pytest.fixture
def writer(site: tuple[object, Path], accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(site[0], accounts[0]) as somebody:  # type: ignore[arg-type]
        yield somebody


def wait_for_text(user: CsubUser, job_id: str, text: str) -> None:
    wait_until(lambda: text in user.csub("show", job_id).stdout, f"csub show says: {text}")


@pytest.mark.smoke
def test_members_with_different_wishes_share_a_pack_and_get_mails_of_their_own(
    writer: CsubUser, post: Post
) -> None:
    kinds = {
        "all.sh": ("#SBATCH --mail-type=ALL --mail-user=a@example.com", "exit 0"),
        "fails.sh": (
            "#SBATCH --mail-type=FAIL,end --job-name=bad",
            'echo "$SLURM_JOB_ID" > inside; exit 3',
        ),
        "well.sh": ("#SBATCH --mail-type=FAIL", "exit 0"),
        "none.sh": ("#SBATCH --mail-type=NONE --mail-user=b@example.com", "exit 1"),
    }
    for name, (directive, body) in kinds.items():
        writer.script(name, f"sleep 1; {body}", directives=directive)
    job_id = writer.submit("pack", "--gres=gpu:1", "--time=5", *kinds)
    writer.finish(job_id)
    mails = post.wait_for(3)
    subjects = {(mail.to, re.sub(r"\d\d:\d\d:\d\d", "T", mail.subject)) for mail in mails}
    default = f"{writer.name}@example.org"
    assert subjects == {
        ("a@example.com", f"Slurm Job_id={job_id}/1 Name=all.sh Began, Queued time T"),
        (
            "a@example.com",
            f"Slurm Job_id={job_id}/1 Name=all.sh Ended, Run time T, COMPLETED, ExitCode 0",
        ),
        (default, f"Slurm Job_id={job_id}/2 Name=bad Failed, Run time T, FAILED, ExitCode 3"),
    }
    assert next(mail for mail in mails if "Began" in mail.subject).body == ""
    failed = next(mail for mail in mails if "Failed" in mail.subject)
    first, second, *_ = failed.body.splitlines()
    assert first == f"{job_id}/2 fails.sh"
    assert second.startswith("FAILED, exit code 3:0 on ")
    failed = next(mail for mail in mails if mail.to == default)
    # As of sbatch's job: what its script has seen, here the member's own number.
    number = (writer.home / "inside").read_text().strip()
    assert is_own_number(number)
    assert failed.environment["SLURM_JOB_ID"] == failed.environment["SLURM_JOBID"] == number
    began = next(mail for mail in mails if "Began" in mail.subject)
    assert began.environment["SLURM_JOB_ID"] == job_id
    assert failed.environment["SLURM_COLLOC_MEMBER"] == f"{job_id}/2"
    assert failed.environment["SLURM_JOB_NAME"] == "bad"
    assert failed.environment["SLURM_JOB_STATE"] == "FAILED"
    assert failed.environment["SLURM_JOB_MAIL_TYPE"] == "Failed"
    assert failed.environment["SLURM_JOB_EXIT_CODE2"] == "3:0"
    assert re.fullmatch(r"\d\d:\d\d:\d\d", failed.environment["SLURM_JOB_RUN_TIME"])


def test_mails_of_a_sweep_know_its_parameters(writer: CsubUser, post: Post) -> None:
    writer.script("train.sh", "exit 0")
    job_id = writer.csub(
        "sweep", "--parsable", "--gres=gpu:1", "--time=5", "--mail-type=END", "train.sh",
        "--lr", "0.1,0.20",
    ).stdout.strip()  # fmt: skip
    writer.finish(job_id)
    told = {mail.environment["SLURM_COLLOC_PARAM_LR"] for mail in post.wait_for(2)}
    assert told == {"0.1", "0.20"}


def test_a_lone_job_has_slurms_own_mails_in_the_same_words(writer: CsubUser, post: Post) -> None:
    writer.script("one.sh", "sleep 1")
    alone = writer.submit("--gres=gpu:1", "--mail-type=END", "one.sh")
    writer.finish(alone)
    job_id = writer.submit("pack", "--gres=gpu:1", "--mail-type=END", "one.sh 1", "one.sh 2")
    writer.finish(job_id)
    mails = post.wait_for(3, patience_s=SLURMS_PATIENCE_S)
    mail = next(mail for mail in mails if "SLURM_COLLOC_MEMBER" not in mail.environment)
    own = next(mail for mail in mails if "SLURM_COLLOC_MEMBER" in mail.environment)
    said = {re.sub(r"Job_id=[\d/]+|0\d\b", "N", m.subject) for m in mails}
    assert said == {"Slurm N Name=one.sh Ended, Run time N:N:N, COMPLETED, ExitCode 0"}
    assert {m.to for m in mails} == {mail.to}
    # What programs for mails read of Slurm's variables is there, with the member's values.
    missing = mail.environment.keys() - own.environment.keys()
    assert {name.removeprefix("SLURM_JOB_") for name in missing} <= {
        "ACCOUNT", "COMMENT", "DERIVED_EC", "EXCLUSIVE", "GROUP", "OVERSUBSCRIBE", "SLUID",
        "STDERR", "STDIN", "STDOUT"
    }  # fmt: skip


def test_parts_of_the_time_limit_and_a_requeue_are_told(writer: CsubUser, post: Post) -> None:
    writer.script(
        "slow.sh",
        "trap 'exit 0' TERM; while :; do sleep 0.1; done",
        directives="#SBATCH --mail-type=TIME_LIMIT,TIME_LIMIT_50,TIME_LIMIT_90",
    )
    writer.script(
        "again.sh",
        "[ -e again ] && exit 0; touch again; scontrol requeue $SLURM_JOB_ID; sleep 60",
        directives="#SBATCH --mail-type=REQUEUE,BEGIN --requeue",
    )
    writer.script("again2.sh", "exit 0", directives="#SBATCH --requeue")
    job_id = writer.submit(
        "pack", "--gres=gpu:1", "--max-slowdown=1", "--time=0:04", "slow.sh", "slow.sh"
    )
    other = writer.submit("pack", "--gres=gpu:1", "--time=5", "again.sh", "again2.sh")
    writer.finish(job_id)
    writer.finish(other)
    mails = post.wait_for(9)
    told = [mail.subject.split("Name=")[1].partition(",")[0] for mail in mails]
    assert sorted(told) == sorted(
        [
            "slow.sh Reached 50% of time limit",
            "slow.sh Reached 90% of time limit",
            "slow.sh Reached time limit",
        ]
        * 2
        + ["again.sh Began", "again.sh Requeued", "again.sh Began"]
    )
    requeued = next(mail for mail in mails if "Requeued" in mail.subject)
    assert requeued.subject.startswith(f"Slurm Job_id={other}/1 Name=again.sh Requeued, Run time ")


def test_an_array_is_told_of_as_a_whole_or_task_by_task(writer: CsubUser, post: Post) -> None:
    writer.script("task.sh", "sleep 0.$SLURM_ARRAY_TASK_ID; exit $((SLURM_ARRAY_TASK_ID == 2))")
    words = ("--gres=gpu:1", "--time=5", "--degree=2", "--array=0-3")
    whole = writer.submit(*words, "--mail-type=BEGIN,END", "task.sh", "~!touch x", "\x1b[31m\n.")
    writer.finish(whole)
    mails = post.wait_for(2)
    body = next(mail.body for mail in mails if "Ended" in mail.subject)
    lines = body.splitlines()
    assert "4 jobs" in lines[0], "the first sentence"
    assert lines[2].split()[:4] == ["MEMBER", "STATE", "EXIT", "TIME"]
    states = {line.split()[0]: line.split()[1:3] for line in lines[3:7]}
    assert states[f"{whole}/2"] == ["FAILED", "1:0"]
    assert states[f"{whole}/3"] == ["COMPLETED", "0:0"]
    assert "4 members: 3 COMPLETED, 1 FAILED" in lines
    # Nothing in it steers a terminal or a mail program.
    assert "\x1b" not in body
    assert "\\x1b[31m" in body
    assert not any(line.startswith(("~", ".")) for line in lines)
    said = sorted(re.sub(r" \(\d+\)", "", mail.subject) for mail in mails)
    assert said == [
        f"Slurm Array Summary Job_id={whole}_* Name=task.sh Began",
        f"Slurm Array Summary Job_id={whole}_* Name=task.sh Ended, Mixed, ExitCode [0-1]",
    ]
    each = writer.submit(*words, "--mail-type=FAIL,ARRAY_TASKS", "task.sh")
    writer.finish(each)
    subject = post.wait_for(3)[-1].subject
    pattern = rf"Slurm Array Task Job_id={each}_2 \(\d+\) Name=task.sh Failed, Run time .*, FAILED"
    assert re.match(pattern, subject), subject


def test_a_mail_program_that_fails_or_hangs_harms_no_member(writer: CsubUser, post: Post) -> None:
    writer.script("one.sh", "exit 0")
    program = post.folder / "mail.sh"
    for mode, reason in (
        ("gone", f"{program}: No such file or directory"),
        ("fail", "it ended with status 3"),
        ("hang", "it was not done 5 s after the end of the pack"),
    ):
        post.set_mode(mode)
        if mode == "gone":
            program.rename(post.folder / "away")
        elif not program.exists():
            (post.folder / "away").rename(program)
        job_id = writer.submit("pack", "--gres=gpu:1", "--mail-type=END", "one.sh", "one.sh")
        assert [row["state"] for row in writer.finish(job_id).values()] == ["COMPLETED"] * 2
        # The runner may still be at it when its last member has ended.
        wait_for_text(writer, job_id, f"was not sent: {reason}")
    assert post.read() == []


def test_slurm_mails_for_a_lone_job_and_the_runner_for_who_joined_it(
    writer: CsubUser, post: Post
) -> None:
    writer.script("one.sh", "sleep 1", directives="#SBATCH --gres=gpu:1 --time=5")
    first = writer.submit(
        "--begin=2099-01-01T12:00", "--mail-type=END", "--mail-user=first", "one.sh"
    )
    joined = writer.csub(
        "--join", "--begin=2099-01-01T12:00", "--mail-type=END", "--mail-user=second", "one.sh", "2"
    )
    number = joined.stdout.split()[-1]
    assert f"{first}/2, shares a pack" in joined.stderr
    writer.run(["scontrol", "update", f"JobId={first}", "StartTime=now"])
    writer.finish(first)
    mails = post.wait_for(2, patience_s=SLURMS_PATIENCE_S)
    assert {mail.to for mail in mails} == {"first", "second"}
    by_user = {mail.to: mail.subject for mail in mails}
    assert by_user["first"].startswith(f"Slurm Job_id={first} Name=")
    assert by_user["second"].startswith(f"Slurm Job_id={number} Name=one.sh Ended")
