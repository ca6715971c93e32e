"""Time limits, and signals before them, each for one member alone."""

from __future__ import annotations

import pytest

from ..bed import CsubUser, wait_until_quiet
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

FOREVER = "while :; do sleep 0.1; done"
TWO_SECONDS = "#SBATCH --time=0:02"


@pytest.mark.smoke
def test_a_member_over_its_time_ends_by_term_or_kill_and_neighbours_go_on(user: CsubUser) -> None:
    user.script("polite.sh", f"trap 'echo term; exit 0' TERM; {FOREVER}", directives=TWO_SECONDS)
    user.script("deaf.sh", f"trap 'echo term' TERM; {FOREVER}", directives=TWO_SECONDS)
    user.script("long.sh", "sleep 7; echo done", directives="#SBATCH --time=1")
    job_id = user.submit("pack", "--gres=gpu:1", "polite.sh", "deaf.sh", "long.sh")
    waited = user.run(["csub", "wait", job_id], check=False)
    rows = user.members(job_id)
    assert [row["state"] for row in rows.values()] == ["TIMEOUT", "TIMEOUT", "COMPLETED"]
    told = [user.output(f"slurm-{job_id}_{number}.out").splitlines() for number in rows]
    assert "term" in told[0]
    assert "term" in told[1]
    assert told[2] == ["done"]
    # What was asked is counted as if the member ran alone: the limit is that times 1.5.
    assert [row["wall_limit_s"] for row in rows.values()] == [3, 3, 90]
    assert rows[1]["elapsed_s"] >= 3
    assert rows[1]["exit_code"] == {"code": 0, "signal": 0}
    assert rows[2]["exit_code"] == {"code": 0, "signal": 9}
    # KillWait of the sandbox is 3 s.
    assert rows[2]["elapsed_s"] >= 6
    assert rows[1]["reason"] == "its time limit was reached"
    assert waited.returncode == 137


def test_a_member_that_answers_the_time_limit_with_success_has_still_failed(
    user: CsubUser,
) -> None:
    user.script("polite.sh", f"trap 'exit 0' TERM; {FOREVER}", directives=TWO_SECONDS)
    user.script("ok.sh", "exit 0", directives=TWO_SECONDS)
    job_id = user.submit("pack", "--gres=gpu:1", "polite.sh", "ok.sh")
    assert user.run(["csub", "wait", job_id], check=False).returncode == 1
    wait_until_quiet(user)
    shown = user.run(["scontrol", "-o", "show", "job", job_id]).stdout
    assert "ExitCode=1:0" in shown


def test_time_waiting_for_a_place_does_not_count(user: CsubUser) -> None:
    user.script("span.sh", "sleep 1.5; echo done", directives=TWO_SECONDS)
    job_id = user.submit(
        "pack", "--gres=gpu:1", "--degree=1", "--pack-size=3", "span.sh", "span.sh", "span.sh"
    )
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 3
    # One at a time nothing is shared, and nothing is stretched.
    assert {row["wall_limit_s"] for row in rows.values()} == {2}


@pytest.mark.smoke
def test_a_signal_before_the_end_reaches_the_script_with_b_and_its_steps_without(
    user: CsubUser,
) -> None:
    head = "#SBATCH --time=0:06\n#CSUB --max-slowdown=1\n"
    user.script(
        "batch.sh",
        "trap 'echo script got it; exit 7' USR1; " + FOREVER,
        directives=head + "#SBATCH --signal=B:USR1@4",
    )
    step = f"trap 'echo step got it; exit 5' USR1; {FOREVER}"
    user.script("step.sh", step)
    user.script(
        "steps.sh",
        "trap 'echo script got it' USR1; srun ./step.sh; echo srun $?",
        directives=head + "#SBATCH --signal=USR1@4",
    )
    user.script("without.sh", "sleep 5; echo quiet", directives=head)
    job_id = user.submit("pack", "--gres=gpu:1", "batch.sh", "steps.sh", "without.sh")
    rows = user.finish(job_id)
    assert rows[1]["exit_code"] == {"code": 7, "signal": 0}
    assert user.output(f"slurm-{job_id}_1.out") == "script got it\n"
    lines = user.output(f"slurm-{job_id}_2.out").splitlines()
    assert "step got it" in lines
    assert "script got it" not in lines
    assert "srun 5" in lines
    assert user.output(f"slurm-{job_id}_3.out") == "quiet\n"
    assert [row["state"] for row in rows.values()] == ["FAILED", "COMPLETED", "COMPLETED"]


def test_the_signal_on_the_command_line_is_for_every_member_of_its_own(user: CsubUser) -> None:
    user.script("each.sh", f"sleep $1; trap 'echo got it; exit 0' USR1; {FOREVER}")
    job_id = user.submit(
        "pack",
        "--gres=gpu:1",
        "--degree=1",
        "--pack-size=2",
        "--time=0:06",
        "--signal=B:10@4",
        "each.sh 0",
        "each.sh 0.5",
    )
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 2
    for number in rows:
        assert user.output(f"slurm-{job_id}_{number}.out") == "got it\n"


def test_a_lone_script_gets_the_signals_that_slurm_sends_to_the_batch_script(
    user: CsubUser,
) -> None:
    user.script("each.sh", f"trap 'echo got it; exit 6' USR1; echo up; {FOREVER}")
    # It is long until the limit: slurmctld must not send it before the script is up.
    job_id = user.submit("--time=5", "--signal=B:USR1@60", "each.sh")
    wait_until(lambda: user.output(f"slurm-{job_id}.out"), "the script is up")
    # As slurmctld does itself when the time of --signal has come.
    user.run(["scancel", "--batch", "--signal=USR1", job_id])
    rows = user.finish(job_id)
    assert user.output(f"slurm-{job_id}.out") == "up\ngot it\n"
    assert rows[1]["exit_code"] == {"code": 6, "signal": 0}


COUNT = """import signal, time
times = []
signal.signal(signal.SIGUSR1, lambda *_: times.append(time.time()))
print("up", flush=True)
end = time.time() + 10
while time.time() < end:
    time.sleep(0.1)
print("count", len(times), flush=True)
"""


@pytest.mark.smoke
def test_a_step_inside_a_member_gets_each_signal_once(small: CsubUser) -> None:
    user = small
    (user.home / "count.py").write_text(COUNT)
    directives = "#SBATCH --gres=gpu:1"
    step = "srun python3 count.py"
    user.script("limit.sh", step, directives=directives + "\n#SBATCH --signal=USR1@25")
    cancel = f"{step} & sleep 5; scancel -s USR1 $SLURM_JOB_ID; wait"
    user.script("cancel.sh", cancel, directives=directives)
    user.script("both.sh", f"{step} & {step} & sleep 5; scancel -s USR1 $SLURM_JOB_ID; wait")
    job_id = user.submit(
        "pack", "--gres=gpu:1", "--max-slowdown=1", "-t0:30", "limit.sh", "cancel.sh", "both.sh"
    )
    # Slurm itself signals a named step twice while another job waits (22.05).
    user.submit("--gres=gpu:1", "limit.sh")
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    told = [user.output(f"slurm-{job_id}_{number}.out").split() for number in (1, 2, 3)]
    assert told[:2] == [["up", "count", "1"]] * 2
    assert told[2] == ["up", "up", "count", "1", "count", "1"]
