"""What members and the jobs that they submit know of themselves, whatever their environment."""

from __future__ import annotations

import re

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

ENDINGS = {
    "login shell": ("/bin/bash -l", "scancel $SLURM_JOB_ID"),
    "path set anew": ("/bin/bash", "export PATH=/usr/bin:/bin; scancel $SLURM_JOB_ID"),
    "command by its path": ("/bin/bash", "$(type -P -a scancel | tail -1) $SLURM_JOB_ID"),
    "cleared environment": (
        "/bin/sh",
        'exec env -i PATH="$PATH" SLURM_CONF="$SLURM_CONF" scancel $SLURM_JOB_ID',
    ),
}


@pytest.mark.smoke
def test_scancel_of_the_own_job_ends_one_member_alone(user: CsubUser) -> None:
    words = []
    for number, (shebang, command) in enumerate(ENDINGS.values()):
        path = user.script(f"end{number}.sh", "")
        path.write_text(f"#!{shebang}\n{command}\nsleep 60\n")
        words.append(path.name)
    user.script("stay.sh", "sleep 8; echo lives")
    job_id = user.submit("pack", "--gres=gpu:1", *words, "stay.sh")
    rows = user.finish(job_id)
    states = [row["state"] for row in rows.values()]
    assert states == [*["CANCELLED"] * len(ENDINGS), "COMPLETED"]
    assert user.output(f"slurm-{job_id}_{len(ENDINGS) + 1}.out") == "lives\n"


@pytest.mark.parametrize("shebang", ["/bin/bash", "/bin/bash -l"])
def test_a_job_submitted_past_the_shims_is_itself(user: CsubUser, shebang: str) -> None:
    child = user.script("child.sh", "")
    child.write_text(
        f"#!{shebang}\n"
        'echo "leaks: $(env | grep -c -E "^(SLURM_COLLOC|MASTER_PORT|SLURM_OVERLAP|BASH_ENV)")"\n'
        '[ "${TMPDIR-}" != "$(cat parent.tmpdir)" ] || echo "temporary of the parent"\n'
        "scancel $SLURM_JOB_ID; sleep 60; echo lives\n"
    )
    submits = f"env {user.find('sbatch')} -o child.out child.sh; sleep 9; echo on"
    user.script("parent.sh", f'echo "$TMPDIR" > parent.tmpdir; {submits}')
    user.script("other.sh", "exit 0")
    job_id = user.submit("pack", "--gres=gpu:1", "parent.sh", "other.sh")
    rows = user.finish(job_id)
    assert rows[1]["state"] == "COMPLETED"
    wait_until(lambda: "CANCELLED" in user.output("child.out"), "the child has ended itself")
    assert user.output("parent.tmpdir").strip()
    assert "leaks: 0\n" in user.output("child.out")
    assert "parent" not in user.output("child.out")


QUESTIONS = """\
squeue -h -j $SLURM_JOB_ID -o "%l|%j|%C|%o"
squeue --me -h -O jobid:,name:.9,command:
scontrol show job $SLURM_JOB_ID
scontrol -o show job
"""


def test_questions_about_the_own_job_get_the_member_s_answer(user: CsubUser) -> None:
    user.script("ask.sh", QUESTIONS)
    user.script("other.sh", "sleep 5")
    words = ("-t2:00", "--max-slowdown=1", "ask.sh a b", "other.sh")
    job_id = user.submit("pack", "--gres=gpu:1", *words)
    user.finish(job_id)
    told = user.output(f"slurm-{job_id}_1.out").splitlines()
    command = f"{user.home}/ask.sh a b"
    assert told[0] == f"2:00|ask.sh|1|{command}"
    assert told[1] == f"{job_id}   ask.sh{command}"
    text = "\n".join(told[2:])
    assert text.count(f"Command={command}") == 2
    assert text.count(f"StdOut={user.home}/slurm-{job_id}_1.out") == 2
    assert "JobName=ask.sh\n" in text
    # Jobs of earlier tests are shown, too.
    records = re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)
    own = [record for record in records if f"Command={command}" in record]
    assert ["TimeLimit=00:02:00" in record for record in own] == [True, True]
    assert [record.startswith(f"JobId={job_id} ") for record in own] == [True, True]
    assert text.count(f"JobId={job_id} ") == 2


def test_rows_and_formats_that_are_not_its_own_are_slurm_s(user: CsubUser) -> None:
    user.run([user.find("sbatch"), "--hold", "-J", "a  b|c", "--wrap=exit"])
    forms = ["", "-l", "-o '%.5i %10j|%o'", "-O jobid,name:5x", "-h -o x%i%%", "--start"]
    # Of --long the first line is the time.
    asks = "".join(f"squeue -t PD {form} >shim.{n} 2>&1\n" for n, form in enumerate(forms))
    real = asks.replace("squeue", user.find("squeue")).replace("shim.", "real.")
    # As a program, so that bash's functions do not come between.
    user.script("ask.sh", asks + real.replace(user.find("squeue"), f"env {user.find('squeue')}"))
    user.script("other.sh", "exit 0")
    job_id = user.submit("pack", "--gres=gpu:1", "ask.sh", "other.sh")
    user.finish(job_id)
    for number in range(len(forms)):
        shown, real = (
            re.sub(r"^\w{3} \w{3} .* \d{4}\n", "", user.output(f"{name}.{number}"))
            for name in ("shim", "real")
        )
        assert shown == real, forms[number]
    assert "a  b|c" in user.output("shim.2")


def test_the_command_of_a_lone_job_exists(user: CsubUser) -> None:
    user.script("ask.sh", 'ls "$(scontrol show job $SLURM_JOB_ID | sed -n s/.*Command=//p)"')
    job_id = user.submit("ask.sh")
    rows = user.finish(job_id)
    assert rows[1]["state"] == "COMPLETED", user.output(f"slurm-{job_id}.out")


def test_a_program_that_clears_the_environment_submits_once(user: CsubUser) -> None:
    user.script("child.sh", "exit 0")
    user.script(
        "parent.sh",
        'for name in $(compgen -v SLURM_); do [ "$name" = SLURM_CONF ] || unset "$name"; done\n'
        "sbatch --parsable -o child.out child.sh; scontrol show config | grep -c ClusterName",
    )
    user.script("other.sh", "exit 0")
    job_id = user.submit("pack", "--gres=gpu:1", "parent.sh", "other.sh")
    user.finish(job_id)
    child, found = user.output(f"slurm-{job_id}_1.out").split()
    assert re.fullmatch(r"\d+", child)
    assert found == "1"
    states = user.run(["squeue", "-h", "-t", "all", "-j", child, "-o", "%j"]).stdout.split()
    assert states == ["child.sh"]
