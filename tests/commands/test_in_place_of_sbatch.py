"""csub under the name sbatch: the real one is found, and csub never calls itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurm_colloc.model.job_ids import is_own_number

from ..bed import CsubUser

CSUB = Path(sys.executable).parent / "csub"


def make_link(path: Path) -> None:
    path.symlink_to(CSUB)


def make_link_to_link(path: Path) -> None:
    (path.parent / "csub-link").symlink_to(CSUB)
    path.symlink_to("csub-link")


def make_copy(path: Path) -> None:
    shutil.copy(CSUB, path)


def make_wrapper(path: Path) -> None:
    path.write_text(f'#!/bin/sh\n# The lab\'s sbatch.\nexec {CSUB} "$@"\n')
    path.chmod(0o755)


def make_careful_wrapper(path: Path) -> None:
    folder = path.parent
    path.write_text(
        f'#!/bin/bash\nexport PATH=${{PATH//{folder.name}/none}}:/usr/bin\nexec {CSUB} "$@"\n'
    )
    path.chmod(0o755)


def make_long_wrapper(path: Path) -> None:
    path.write_text("#!/bin/sh\n" + "# words\n" * 400 + f'"{CSUB}" "$@"\nexit $?\n')
    path.chmod(0o755)


WAYS = {
    "link": make_link,
    "link to a link": make_link_to_link,
    "copy": make_copy,
    "wrapper": make_wrapper,
    "careful wrapper": make_careful_wrapper,
    "long wrapper": make_long_wrapper,
}


@pytest.fixture(params=WAYS)
def as_sbatch(request: pytest.FixtureRequest, user: CsubUser) -> CsubUser:
    """A user whose own folder, with an sbatch that is csub, comes first in PATH."""
    folder = user.home / "mybin"
    folder.mkdir()
    make: Callable[[Path], None] = WAYS[request.param]
    make(folder / "sbatch")
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    user.script("train.sh", "exit 0")
    return user


def test_a_job_is_submitted_once_and_by_csub(as_sbatch: CsubUser) -> None:
    job_id = as_sbatch.run(["sbatch", "--parsable", "train.sh"]).stdout.strip()
    assert job_id.isdigit()
    assert job_id in as_sbatch.csub("show", job_id).stdout
    shown = as_sbatch.run(["squeue", "--noheader", "--states=all", "--format=%i"]).stdout
    assert shown.split() == [job_id]


def test_a_setting_that_was_removed_leaves_the_answer_alone(user: CsubUser) -> None:
    make_link(user.home / "sbatch")
    settings = user.home / "settings.toml"
    settings.write_text("state_shared = false\n")
    user.extra["SLURM_COLLOC_SETTINGS"] = str(settings)
    user.script("train.sh", "exit 0")
    ended = user.run([str(user.home / "sbatch"), "--parsable", "train.sh"])
    assert ended.stdout.strip().isdigit()
    assert ended.stderr.count(f"csub: {settings}: the setting 'state_shared' was removed") == 1


def test_csub_submits_too(as_sbatch: CsubUser) -> None:
    assert as_sbatch.submit("train.sh").isdigit()


def test_two_in_a_row_lead_to_the_real_one(as_sbatch: CsubUser) -> None:
    second = as_sbatch.home / "second"
    second.mkdir()
    make_wrapper(second / "sbatch")
    path = as_sbatch.environment["PATH"]
    as_sbatch.extra["PATH"] = f"{second}:{path}"
    assert as_sbatch.run(["sbatch", "--parsable", "train.sh"]).stdout.strip().isdigit()


def test_the_job_sees_nothing_of_it(as_sbatch: CsubUser) -> None:
    as_sbatch.script("see.sh", "env")
    job_id = as_sbatch.run(["sbatch", "--parsable", "see.sh"]).stdout.strip()
    as_sbatch.finish(job_id)
    assert "SLURM_COLLOC_CALLED" not in as_sbatch.output(f"slurm-{job_id}.out")


def test_where_there_is_no_real_one_it_is_said(as_sbatch: CsubUser) -> None:
    folder = as_sbatch.environment["PATH"].split(os.pathsep)[0]
    here = {"PATH": f"{folder}:{as_sbatch.home}"}
    ended = as_sbatch.run(
        [f"{folder}/sbatch", "train.sh"], check=False, environment=here, timeout_s=60
    )
    assert ended.returncode != 0
    # One of the wrappers adds the machine's own folder.
    said = ("no Slurm here", "leads back to csub", "no configuration here")
    assert any(text in ended.stderr for text in said)
    assert len(ended.stderr.splitlines()) <= 2


@pytest.fixture
def linked(user: CsubUser) -> CsubUser:
    folder = user.home / "mybin"
    folder.mkdir()
    make_link(folder / "sbatch")
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    return user


@pytest.mark.parametrize("begin", ["", "exec >out 2>&1; "])
def test_the_id_is_the_last_word_also_with_both_streams_in_one(
    linked: CsubUser, begin: str
) -> None:
    linked.script("train.sh", "exit 0")
    line = f"{begin}sbatch train.sh 2>&1"
    told = linked.run(["bash", "-c", line]).stdout + linked.output("out")
    assert re.fullmatch(r"Submitted batch job \d+\n", told)


def test_with_two_streams_a_log_of_errors_tells_of_the_pack(linked: CsubUser) -> None:
    linked.script("train.sh", "exit 0")
    told = linked.run(["sbatch", "train.sh"])
    assert re.fullmatch(r"Submitted batch job \d+\n", told.stdout)
    assert "in 1 pack" in told.stderr


def test_quiet_counts_more_than_parsable(linked: CsubUser) -> None:
    linked.script("train.sh", "exit 0")
    told = linked.run(["sbatch", "--quiet", "--parsable", "train.sh"])
    assert (told.stdout, told.stderr) == ("", "")


def test_a_trial_answers_on_standard_error_as_sbatch_does(linked: CsubUser) -> None:
    linked.script("train.sh", "exit 0")
    words = ["--test-only", "--gres=gpu:1", "train.sh"]
    expected = linked.run([linked.find("sbatch"), *words])
    told = linked.run(["sbatch", *words])
    assert (told.stdout, expected.stdout) == ("", "")
    start = re.compile(r"^sbatch: Job \d+ to start at ", re.MULTILINE)
    assert start.search(expected.stderr)
    assert start.search(told.stderr)
    assert "csub: Pack of members 1" in told.stderr


WAITS = {
    "exit codes": ("exit $SLURM_ARRAY_TASK_ID", 3),
    "a signal": ("kill -9 $$", 1),
    "a signal counts less than an exit code": (
        "[ $SLURM_ARRAY_TASK_ID = 2 ] && exit 2; kill -TERM $$", 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", WAITS)
def test_wait_ends_with_the_status_of_sbatch(linked: CsubUser, how: str) -> None:
    body, status = WAITS[how]
    linked.script("train.sh", body)
    words = ["--wait", "--array=1-3", "--gres=gpu:1", "train.sh"]
    assert linked.run(["sbatch", *words], check=False).returncode == status


def test_a_directory_that_is_gone_is_named(linked: CsubUser) -> None:
    linked.script("train.sh", "exit 0")
    line = "mkdir gone; cd gone; rmdir ../gone; sbatch ../train.sh"
    told = linked.run(["bash", "-c", line], check=False)
    assert told.returncode == 2
    assert told.stderr.startswith("csub: error: the current directory cannot be used: No such file")


def test_a_dash_is_no_script(linked: CsubUser) -> None:
    told = linked.run(["sbatch", "-"], check=False)
    assert told.returncode == 2
    assert "without a script csub reads standard input" in told.stderr


@pytest.mark.parametrize("script", ["queue", "pack", "wait"])
def test_under_the_name_sbatch_a_subcommand_is_a_script(linked: CsubUser, script: str) -> None:
    linked.script(script, "exit 0")
    job_id = linked.run(["sbatch", "--parsable", script]).stdout.strip()
    assert job_id.isdigit()
    assert linked.members(job_id)[1]["name"] == script


ALL = ("sbatch", "squeue", "sacct", "scancel", "scontrol")
TRAIN = """
#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=700M --time=5
sleep 60
"""


def set_up(user: CsubUser, settings: str) -> None:
    folder = user.home / ".config" / "slurm_colloc"
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text(f"{settings}\n")


def submit_twice(user: CsubUser, links: Sequence[str], *words: str) -> tuple[str, str]:
    """What sbatch prints of two jobs of a user for whom some of Slurm's commands are csub."""
    folder = user.home / "mybin"
    folder.mkdir()
    for name in links:
        (folder / name).symlink_to(CSUB)
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    user.script("train.sh", TRAIN)
    answers = [user.run(["sbatch", *words, "train.sh"]).stdout for _ in range(2)]
    first, second = (re.fullmatch(r"(?:Submitted batch job )?(\d+)\n", text) for text in answers)
    assert first is not None
    assert second is not None
    return first[1], second[1]


@pytest.mark.parametrize("words", [(), ("--parsable",)])
def test_single_jobs_join_where_slurms_other_commands_are_csub(
    user: CsubUser, words: tuple[str, ...]
) -> None:
    set_up(user, 'open = "always"')
    first, second = submit_twice(user, ALL, *words)
    assert not is_own_number(first)
    assert is_own_number(second)
    assert second in user.csub("show", second).stdout
    user.run(["scancel", second])
    user.csub("wait", second, check=False)
    assert "CANCELLED" in user.csub("why", second).stdout
    assert "CANCELLED" not in user.csub("why", first).stdout
    user.run(["scancel", first])


@pytest.mark.parametrize(
    ("links", "words", "settings"),
    [
        (("sbatch",), (), 'open = "always"'),
        (("sbatch", "squeue", "sacct", "scontrol"), (), 'open = "always"'),
        (ALL, ("--join=never",), 'open = "always"'),
        (ALL, ("--open=never",), 'open = "always"'),
        (ALL, ("--job-id=pack",), 'open = "always"'),
        (ALL, (), 'open = "always"\njoin = "never"'),
        (ALL, (), 'open = "never"'),
        (ALL, (), 'open = "always"\njob_id = "pack"'),
    ],
)
def test_otherwise_each_has_a_slurm_job_of_its_own(
    user: CsubUser, links: tuple[str, ...], words: tuple[str, ...], settings: str
) -> None:
    set_up(user, settings)
    assert not any(map(is_own_number, submit_twice(user, links, *words)))


def test_with_join_always_a_program_that_calls_csub_has_jobs_that_join(user: CsubUser) -> None:
    set_up(user, 'join = "always"\nopen = "always"')
    user.script("train.sh", TRAIN)
    first, second = (user.csub("--parsable", "train.sh").stdout.strip() for _ in range(2))
    assert not is_own_number(first)
    assert is_own_number(second)


def test_jobs_with_comments_of_their_own_share_and_keep_them(user: CsubUser) -> None:
    set_up(user, 'join = "always"\nopen = "always"')
    user.script("train.sh", TRAIN)
    _, second = (
        user.csub("--parsable", f"--comment=rule {number}", "train.sh").stdout.strip()
        for number in (1, 2)
    )
    assert is_own_number(second)
    records = [
        json.loads(path.read_text()) for path in user.state.glob("packs/*/members/*/spec.json")
    ]
    assert sorted(dict(spec["job"]["group"])["comment"] for spec in records) == ["rule 1", "rule 2"]
