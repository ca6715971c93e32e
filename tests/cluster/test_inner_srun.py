"""srun, scontrol and scancel inside the members' own scripts."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

FORMS = (
    pytest.param("", marks=pytest.mark.smoke),
    "-n1",
    "-n1 -c2",
    "--gpus=1",
    "--gres=gpu:1",
    pytest.param("--exact -n1 -c1", marks=pytest.mark.smoke),
    "--mem=20M",
)

TOGETHER = """\
srun {form} ./inner.sh "$1"
echo "srun said $?"
"""
INNER = """\
echo "$SLURM_STEP_ID" > "inner.$1"
for i in $(seq 300); do
    [ $(ls inner.* | wc -l) -ge 4 ] && exit 5
    sleep 0.1
done
echo "the others never came"
"""


@pytest.mark.parametrize("form", FORMS)
def test_four_members_each_with_an_inner_srun_run_together(user: CsubUser, form: str) -> None:
    user.script("inner.sh", INNER)
    user.script("outer.sh", TOGETHER.format(form=form))
    words = [f"outer.sh {number}" for number in range(4)]
    job_id = user.submit("pack", "--gres=gpu:1", "-c2", "--mem=100M", *words)
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 4
    for number in rows:
        assert user.output(f"slurm-{job_id}_{number}.out").splitlines()[-1] == "srun said 5"
    assert len({user.output(f"inner.{number}") for number in range(4)}) == 4


def test_an_srun_called_by_its_path_runs_beside_the_neighbours_too(user: CsubUser) -> None:
    real = user.run(["which", "srun"]).stdout.strip()
    user.script("inner.sh", INNER)
    user.script("outer.sh", TOGETHER.format(form="").replace("srun ", f"{real} ", 1))
    job_id = user.submit(
        "pack", "--gres=gpu:1", "-c2", "--mem=100M", *(f"outer.sh {n}" for n in range(4))
    )
    rows = user.finish(job_id)
    for number in rows:
        assert "srun said 5" in user.output(f"slurm-{job_id}_{number}.out")
    assert len({user.output(f"inner.{number}") for number in range(4)}) == 4


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.parametrize(
    ("form", "options"),
    # From 23.11 on, an srun called by its path takes the member's SLURM_CPUS_PER_TASK for --exact
    # (see docs/differences.md), so its member is one that did not ask for -c.
    [
        pytest.param("srun", ["-c1"], marks=pytest.mark.smoke),
        ("srun -c1", ["-c1"]),
        pytest.param("{real}", [], marks=pytest.mark.smoke),
    ],
)
def test_an_inner_srun_stays_on_the_members_cpus(
    honest_user: CsubUser, form: str, options: list[str]
) -> None:
    user = honest_user
    form = form.format(real=user.run(["which", "srun"]).stdout.strip())
    look = "grep Cpus_allowed_list /proc/self/status"
    user.script("cpu.sh", f"{look}; {form} {look}")
    job_id = user.submit("pack", "--gres=gpu:1", *options, "--mem=100M", "cpu.sh", "cpu.sh")
    rows = user.finish(job_id)
    seen = []
    for number in rows:
        own, inner = user.output(f"slurm-{job_id}_{number}.out").splitlines()
        assert own == inner
        seen.append(own)
    assert len(set(seen)) == 2


def test_an_inner_srun_has_the_members_memory_limit(user: CsubUser) -> None:
    real = user.run(["which", "srun"]).stdout.strip()
    user.script("eat.sh", "exec python3 -c \"b = bytearray(3 * 10 ** 8); print('fits')\"")
    user.script("shim.sh", "srun ./eat.sh; echo said $?")
    user.script("path.sh", f"{real} ./eat.sh; echo said $?")
    user.script("ok.sh", "sleep 2; echo fine")
    job_id = user.submit("pack", "--gres=gpu:1", "--mem=100M", "shim.sh", "path.sh", "ok.sh")
    rows = user.finish(job_id)
    for number in (1, 2):
        told = user.output(f"slurm-{job_id}_{number}.out")
        assert "fits" not in told
        assert "said 0" not in told
        assert "said " in told
    assert user.output(f"slurm-{job_id}_3.out") == "fine\n"
    assert rows[3]["state"] == "COMPLETED"


def test_an_inner_srun_never_gets_more_memory_than_the_member(user: CsubUser) -> None:
    user.script("eat.sh", "exec python3 -c \"b = bytearray(3 * 10 ** 8); print('fits')\"")
    user.script("all.sh", "srun --mem=0 ./eat.sh; echo said $?")
    user.script("more.sh", "srun --mem=1G ./eat.sh; echo said $?")
    job_id = user.submit("pack", "--gres=gpu:1", "--mem=100M", "all.sh", "more.sh")
    user.finish(job_id)
    for number in (1, 2):
        told = user.output(f"slurm-{job_id}_{number}.out")
        assert "fits" not in told
        assert "said " in told
        assert "said 0" not in told


@pytest.mark.smoke
def test_what_an_inner_srun_sees_and_hands_back(user: CsubUser) -> None:
    user.script(
        "see.sh",
        """unset LANG LC_ALL
echo $SLURM_JOB_ID >id.${SLURM_COLLOC_MEMBER#*/}
echo to err >&2
printf 'a\\nb' | srun cat; echo
srun bash -c 'echo "$SLURM_CPUS_PER_TASK|$FOO|$SLURM_JOB_ID|$SLURM_NTASKS|$LC_CTYPE"'
srun -c1 bash -c 'echo "$SLURM_CPUS_PER_TASK"'
srun bash -c 'kill -9 $$'; echo "signal $?"
srun -o inner.${SLURM_COLLOC_MEMBER#*/}.txt echo into a file
srun echo "two words" '$(three)' 'fo"ur'
""",
    )
    user.extra["FOO"] = "a b; c"
    job_id = user.submit("pack", "--gres=gpu:1", "-c2", "see.sh", "see.sh")
    user.finish(job_id)
    for number in (1, 2):
        told = user.output(f"slurm-{job_id}_{number}.out").splitlines()
        told = [line for line in told if not line.startswith(("srun: ", "slurmstepd: "))]
        assert told == [
            "to err",
            "a",
            "b",
            f"2|a b; c|{user.output(f'id.{number}').strip()}|1|",
            "1",
            "signal 137",
            'two words $(three) fo"ur',
        ]
        assert user.output(f"inner.{number}.txt") == "into a file\n"
    assert user.output("id.1").strip() == job_id
    assert user.output("id.2").strip() not in ("", job_id)


def test_inner_steps_that_a_script_leaves_end_with_the_member(user: CsubUser) -> None:
    user.script("left.sh", "echo $$ > left.pid; exec sleep 600")
    user.script("leaves.sh", "srun ./left.sh & while [ ! -e left.pid ]; do sleep 0.1; done; exit 0")
    user.script("go.sh", "while [ ! -e go ]; do sleep 0.1; done")
    job_id = user.submit("pack", "--gres=gpu:1", "leaves.sh", "go.sh")
    user.wait_for_states(job_id, {1: "COMPLETED", 2: "RUNNING"})
    pid = int(user.output("left.pid"))
    wait_until(lambda: not is_alive(pid), "the inner step has ended")
    assert user.members(job_id)[2]["state"] == "RUNNING"
    user.run(["touch", "go"])
    assert user.finish(job_id)[2]["state"] == "COMPLETED"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- scontrol and scancel of the own job ---------------------------------------------------------

NEIGHBOUR = "echo $$; while [ ! -e go ]; do sleep 0.1; done; echo $$ ${SLURM_RESTART_COUNT:-none}"


def check_neighbours(user: CsubUser, job_id: str, numbers: Sequence[int]) -> None:
    for number in numbers:
        first, *rest = user.output(f"slurm-{job_id}_{number}.out").splitlines()
        assert rest == [f"{first} none"]


def test_requeue_of_a_job_with_no_requeue_is_refused(user: CsubUser) -> None:
    user.script("a.sh", "scontrol requeue $SLURM_JOB_ID; echo status $?")
    job_id = user.submit("pack", "--no-requeue", "--gres=gpu:1", "--mem=100M", "a.sh", "a.sh")
    rows = user.finish(job_id)
    assert [(row["state"], row["starts"]) for row in rows.values()] == [("COMPLETED", 1)] * 2
    shown = user.output(f"slurm-{job_id}_1.out")
    assert "submitted with --no-requeue" in shown
    assert "status 2" in shown


@pytest.mark.smoke
def test_requeue_of_the_own_job_restarts_that_member_alone(user: CsubUser) -> None:
    user.script("neighbour.sh", NEIGHBOUR)
    user.script(
        "again.sh",
        """
echo "start ${SLURM_RESTART_COUNT:-none}"
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
trap 'echo term; exit 0' TERM
scontrol requeue $SLURM_JOB_ID
while :; do sleep 0.1; done
""",
    )
    job_id = user.submit("pack", "--gres=gpu:1", "again.sh", "neighbour.sh", "neighbour.sh")
    rows = user.wait_for_states(job_id, {1: "COMPLETED", 2: "RUNNING", 3: "RUNNING"})
    assert rows[1]["starts"] == 2
    told = user.output(f"slurm-{job_id}_1.out").splitlines()
    # bash says `Terminated`, from 5.3 on with the command.
    told = [line for line in told if not line.startswith("Terminated")]
    (requeue,) = [line for line in told if line.startswith("slurmstepd")]
    assert requeue.endswith("DUE TO JOB REQUEUE ***")
    assert [line for line in told if line != requeue] == ["start none", "term", "start 1"]
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 3
    check_neighbours(user, job_id, (2, 3))
    shown = user.run(["scontrol", "-o", "show", "job", job_id]).stdout
    assert "Restarts=0" in shown


@pytest.mark.smoke
def test_scancel_of_the_own_job_ends_that_member_alone(user: CsubUser) -> None:
    user.script("neighbour.sh", NEIGHBOUR)
    user.script("ends.sh", "scancel $SLURM_JOB_ID; while :; do sleep 0.1; done")
    user.script("signals.sh", "trap 'exit 6' USR1; scancel -b -s USR1 $SLURM_JOB_ID; sleep 9")
    job_id = user.submit("pack", "--gres=gpu:1", "ends.sh", "signals.sh", "neighbour.sh")
    rows = user.wait_for_states(job_id, {1: "CANCELLED", 2: "FAILED", 3: "RUNNING"})
    assert rows[2]["exit_code"] == {"code": 6, "signal": 0}
    user.run(["touch", "go"])
    assert user.finish(job_id)[3]["state"] == "COMPLETED"
    check_neighbours(user, job_id, (3,))


def test_scancel_of_a_step_ends_one_of_the_own_script_s_and_no_neighbour_s(user: CsubUser) -> None:
    user.script("goes_on.sh", "until [ -e done ]; do sleep 0.1; done")
    user.script(
        "ends.sh",
        "srun sh -c 'echo $SLURM_STEP_ID >step; exec sleep 60' & until [ -s step ]; do sleep 0.1\n"
        "done\nfor other in 0 1; do scancel $SLURM_JOB_ID.$other; echo $?; done\n"
        "scancel $SLURM_JOB_ID.$(cat step); wait; touch done",
    )
    job_id = user.submit("pack", "--gres=gpu:1", "-c1", "--mem=100M", "goes_on.sh", "ends.sh")
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED", "COMPLETED"]
    said = user.output(f"slurm-{job_id}_2.out")
    assert said.count("is no step that this job has started") == 2, said


def test_array_tasks_name_themselves_by_array_job_and_task(user: CsubUser) -> None:
    user.script(
        "task.sh",
        """
own=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}
case $SLURM_ARRAY_TASK_ID in
5) scancel $own; while :; do sleep 0.1; done ;;
7) [ -n "$SLURM_RESTART_COUNT" ] && exit 0
   scontrol requeue $own; while :; do sleep 0.1; done ;;
esac
"""
        + NEIGHBOUR,
    )
    job_id = user.submit("--array=5-8", "--gres=gpu:1", "task.sh")
    rows = user.wait_for_states(
        job_id, {5: "CANCELLED", 6: "RUNNING", 7: "COMPLETED", 8: "RUNNING"}
    )
    assert rows[7]["starts"] == 2
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert rows[6]["state"] == rows[8]["state"] == "COMPLETED"
    check_neighbours(user, job_id, (6, 8))


def test_other_uses_of_scontrol_and_scancel_are_the_real_commands(user: CsubUser) -> None:
    other = user.run(["sbatch", "--parsable", "--wrap", "sleep 600"]).stdout.strip()
    user.script(
        "use.sh",
        f"""
scontrol -o show job $SLURM_JOB_ID | grep -o 'JobId=[0-9]*'
scancel {other} && echo cancelled
scontrol requeue 99999; echo $?
""",
    )
    job_id = user.submit("pack", "--gres=gpu:1", "use.sh", "use.sh")
    user.finish(job_id)
    told = user.output(f"slurm-{job_id}_1.out").splitlines()
    assert told[:2] == [f"JobId={job_id}", "cancelled"]
    assert told[-1] == "1"
    wait_until(
        lambda: "JobState=CANCELLED" in user.run(["scontrol", "-o", "show", "job", other]).stdout,
        "the other job is cancelled",
    )
