"""What goes wrong from outside a running pack: signals, restarts, lost nodes, killed processes."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, administrate, running_sandbox, user_of
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

OPTIONS = ("--gres=gpu:1", "-c1", "--mem=100M", "--time=10")
NOTE_START = "echo $SLURM_JOB_NAME >>ran.txt"
UNTIL_END = f"{NOTE_START}; until [ -e end ]; do sleep 0.1; done"
RUN_FOREVER = "echo $SLURM_JOB_NAME >>ran.txt; echo up; sleep 300"


@pytest.fixture(scope="module")
def fragile_cluster() -> Iterator[Sandbox]:
    """A cluster whose daemons the tests of this file stop; each test starts them again."""
    with running_sandbox(
        cpus_per_node=16, slurmd_timeout_s=20, extra_conf=("MessageTimeout=4",)
    ) as sandbox:
        yield sandbox


@pytest.fixture
def fragile_user(fragile_cluster: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """A user of the cluster whose daemons are stopped; all of them run again afterwards."""
    with user_of(fragile_cluster, accounts[0]) as somebody:
        try:
            yield somebody
        finally:
            fragile_cluster.start_controller()
            for node in fragile_cluster.node_names:
                fragile_cluster.start_node(node)
                # A job may hang in COMPLETING for minutes after the controller was away.
                change = ("scontrol", "update", f"nodename={node}")
                administrate(somebody, *change, "state=down", "reason=test")
                # A node that has just registered is up again by itself, and cannot be resumed.
                administrate(somebody, *change, "state=resume", check=False)


def submit_pack(user: CsubUser, *words: str) -> str:
    """Submit a pack with the common options; the job id."""
    return user.submit("pack", *OPTIONS, *words)


def run_counts(user: CsubUser) -> Counter[str]:
    """How often each script was started: each writes a line."""
    return Counter(user.output("ran.txt").split())


def pack_directory(user: CsubUser, job_id: str) -> Path:
    """The directory of a submission's only pack."""
    index = json.loads(user.index(job_id).read_text())
    return user.state / "packs" / f"{index['submission']}.{index['indices'][0]}"


def journal(user: CsubUser, job_id: str) -> list[dict[str, object]]:
    """The events of a pack."""
    text = (pack_directory(user, job_id) / "events.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def states_of(rows: dict[int, dict[str, object]]) -> dict[int, object]:
    return {number: row["state"] for number, row in rows.items()}


def started_record(user: CsubUser, job_id: str, number: int) -> dict[str, int]:
    """What the wrapper of a running member wrote: the process ids of itself and the script."""
    folder = pack_directory(user, job_id) / "members" / f"{number:04d}"
    newest = max(folder.glob("run.*.started"), key=lambda path: path.stat().st_mtime_ns)
    record: dict[str, int] = json.loads(newest.read_text())
    return record


def read_job(user: CsubUser, job_id: str) -> dict[str, str]:
    """What `scontrol show job` says."""
    shown = user.run(["scontrol", "--oneliner", "show", "job", job_id]).stdout
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def find_children(pid: int) -> list[int]:
    return [
        int(word)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for word in path.read_text().split()
    ]


# Slurm's own scancel ------------------------------------------------------------------------


@pytest.mark.smoke
def test_scancel_of_a_pack_cancels_running_waiting_and_unstarted_members(user: CsubUser) -> None:
    for name in ("a.sh", "b.sh", "c.sh"):
        user.script(name, RUN_FOREVER)
    running = submit_pack(user, "--degree=2", "--pack-size=3", "a.sh", "b.sh", "c.sh")
    held = submit_pack(user, "--hold", "a.sh", "b.sh")
    user.wait_for_states(running, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    user.run(["scancel", running, held])
    rows = user.wait_for_states(running, "CANCELLED")
    assert set(states_of(user.wait_for_states(held, "CANCELLED")).values()) == {"CANCELLED"}
    assert [row["starts"] for row in rows.values()] == [1, 1, 0]
    assert run_counts(user) == {"a.sh": 1, "b.sh": 1}
    assert user.csub("wait", running, check=False).returncode != 0
    # It is over: nothing of it is left in the queue, and the captured environments are gone.
    assert running not in user.csub("queue").stdout
    wait_until(
        lambda: not list(pack_directory(user, running).glob("members/*/env")),
        f"the environments are removed\n{user.describe(running)}",
    )


@pytest.mark.smoke
def test_a_pack_beyond_its_own_time_limit_ends_as_timeout_and_starts_nothing_more(
    user: CsubUser,
) -> None:
    for name in ("a.sh", "b.sh"):
        # It ends well at TERM, and would leave its place to the next.
        user.script(name, f"trap 'exit 0' TERM; {RUN_FOREVER} & wait")
    # With --requeue the second one would be submitted again: test_resubmission.py.
    options = ("--no-requeue", "--degree=1", "--pack-size=2")
    job_id = submit_pack(user, *options, "a.sh", "b.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "PENDING"})
    administrate(user, "scontrol", "update", f"JobId={job_id}", "EndTime=now+1")
    user.wait_for_states(job_id, "TIMEOUT", patience_s=120)
    assert run_counts(user) == {"a.sh": 1}


def test_a_runner_that_is_killed_when_the_time_of_its_pack_is_up_changes_nothing_of_that(
    user: CsubUser,
) -> None:
    user.script("a.sh", RUN_FOREVER)
    job_id = submit_pack(user, "--requeue", "a.sh", "a.sh")
    user.wait_for_states(job_id, "RUNNING")
    administrate(user, "scontrol", "update", f"JobId={job_id}", "EndTime=now+1")
    end = read_job(user, job_id)["EndTime"]
    wait_until(lambda: time.strftime("%Y-%m-%dT%H:%M:%S") > end, "its time is up")
    # Slurm has not looked yet, or ends it already.
    os.kill(
        json.loads((pack_directory(user, job_id) / "runner.json").read_text())["pid"],
        signal.SIGKILL,
    )
    user.wait_for_states(job_id, "TIMEOUT", patience_s=120)
    assert read_job(user, job_id)["Restarts"] == "0"
    assert run_counts(user) == {"a.sh": 2}


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("scancel", "state"), [(["--signal=TERM"], "FAILED"), ([], "CANCELLED")], ids=["TERM", "KILL"]
)
def test_scancel_of_one_step_ends_that_member_and_the_pack_refills(
    user: CsubUser, scancel: list[str], state: str
) -> None:
    user.script("a.sh", RUN_FOREVER)
    user.script("b.sh", UNTIL_END)
    user.script("c.sh", "echo $SLURM_JOB_NAME >>ran.txt")
    job_id = submit_pack(user, "--degree=2", "--pack-size=3", "a.sh", "b.sh", "c.sh")
    rows = user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING"})
    user.run(["scancel", *scancel, str(rows[1]["step"])])
    rows = user.wait_for_states(job_id, {1: state, 2: "RUNNING", 3: "COMPLETED"})
    assert rows[1]["exit_code"]["signal"] == (signal.SIGTERM if scancel else signal.SIGKILL)
    user.script("end", "")
    assert states_of(user.finish(job_id)) == {1: state, 2: "COMPLETED", 3: "COMPLETED"}


def test_a_term_to_the_batch_script_alone_holds_the_pack_up_only_for_a_moment(
    user: CsubUser,
) -> None:
    user.script("a.sh", UNTIL_END)
    user.script("b.sh", "echo $SLURM_JOB_NAME >>ran.txt")
    job_id = submit_pack(user, "--degree=1", "--pack-size=2", "a.sh", "b.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "PENDING"})
    user.run(["scancel", "--batch", "--signal=TERM", job_id])
    events = pack_directory(user, job_id) / "events.jsonl"
    wait_until(lambda: "goes_on" in events.read_text(), "the runner sees that the pack goes on")
    user.script("end", "")
    assert states_of(user.finish(job_id)) == {1: "COMPLETED", 2: "COMPLETED"}


@pytest.mark.parametrize("by", ["csub", "scancel"])
def test_term_lets_the_tasks_of_an_inner_srun_end_by_themselves(user: CsubUser, by: str) -> None:
    user.script(
        "a.sh",
        "trap : TERM\n"
        'srun bash -c \'trap "sleep 0.5; echo saved; exit 0" TERM\n'
        "echo up; while :; do sleep 0.1; done' & wait; wait",
    )
    job_id = submit_pack(user, "a.sh", "a.sh")
    wait_until(
        lambda: all("up" in user.output(f"slurm-{job_id}_{n}.out") for n in (1, 2)),
        "the inner steps run",
    )
    user.run(["csub", "cancel", f"{job_id}/1"] if by == "csub" else ["scancel", job_id])
    user.wait_for_states(job_id, {1: "CANCELLED"})
    assert "saved" in user.output(f"slurm-{job_id}_1.out").split()


# Requeue from outside --------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_requeue_from_outside_runs_only_unfinished_members_again(user: CsubUser) -> None:
    user.script("done.sh", "echo $SLURM_JOB_NAME >>ran.txt")
    user.script(
        "work.sh",
        "echo $SLURM_JOB_NAME >>ran.txt; echo restart=${SLURM_RESTART_COUNT:-none}\n"
        "[ -n \"$SLURM_RESTART_COUNT\" ] || { trap 'exit 0' TERM; sleep 300 & wait; }",
    )
    user.script(
        "later.sh", "echo $SLURM_JOB_NAME >>ran.txt; echo restart=${SLURM_RESTART_COUNT:-none}"
    )
    job_id = submit_pack(user, "--degree=1", "--pack-size=3", "done.sh", "work.sh", "later.sh")
    user.wait_for_states(job_id, {1: "COMPLETED", 2: "RUNNING"})
    user.run(["scontrol", "requeue", job_id])
    user.wait_for_states(job_id, {1: "COMPLETED", 2: "PENDING", 3: "PENDING"})
    rows = user.wait_for_states(job_id, "COMPLETED")
    assert run_counts(user) == {"done.sh": 1, "work.sh": 2, "later.sh": 1}
    assert [row["starts"] for row in rows.values()] == [1, 2, 1]
    assert (pack_directory(user, job_id) / "attempt").read_text() == "2\n"
    assert user.output(f"slurm-{job_id}_2.out").split() == ["restart=none", "restart=1"]
    # As for a lone job: the count says how often this member was restarted.
    assert user.output(f"slurm-{job_id}_3.out").split() == ["restart=none"]


# The controller --------------------------------------------------------------------------------


@pytest.mark.smoke
def test_members_live_and_end_through_a_controller_outage(fragile_user: CsubUser) -> None:
    user = fragile_user
    user.script("ends.sh", f"{UNTIL_END.replace('end', 'end1')}; exit 3")
    user.script("stays.sh", UNTIL_END.replace("end", "end2"))
    job_id = submit_pack(user, "ends.sh", "stays.sh")
    user.wait_for_states(job_id, "RUNNING")
    user.sandbox.stop_controller()
    user.script("end1", "")
    events = pack_directory(user, job_id) / "members" / "0001" / "state.1.json"
    wait_until(lambda: "FAILED" in events.read_text(), "the runner writes the end of ends.sh")
    shown = user.csub("queue", check=False)
    assert shown.returncode == 4
    assert f"{job_id}/2" in shown.stdout
    assert "RUNNING" in shown.stdout
    assert "Slurm's controller does not answer" in shown.stderr
    assert "Traceback" not in shown.stderr
    user.sandbox.start_controller()
    user.wait_for_states(job_id, {1: "FAILED", 2: "RUNNING"})
    user.script("end2", "")
    rows = user.finish(job_id)
    assert states_of(rows) == {1: "FAILED", 2: "COMPLETED"}
    assert rows[1]["exit_code"] == {"code": 3, "signal": 0}
    assert run_counts(user) == {"ends.sh": 1, "stays.sh": 1}


def test_a_forgotten_job_is_lost_only_where_nothing_was_written(
    accounts: tuple[str, ...],
) -> None:
    # Of its own: afterwards Slurm counts its jobs from 1 again.
    with (
        running_sandbox(nodes=1, cpus_per_node=16) as sandbox,
        user_of(sandbox, accounts[0]) as user,
    ):
        check_that_only_the_unwritten_is_lost(user)


def check_that_only_the_unwritten_is_lost(user: CsubUser) -> None:
    user.script("a.sh", RUN_FOREVER)
    user.script("b.sh", "exit 3")
    cancelled = submit_pack(user, "a.sh")
    swept = submit_pack(user, "--hold", "a.sh")
    ended = submit_pack(user, "b.sh")
    unstarted = submit_pack(user, "--hold", "a.sh")
    half = submit_pack(user, "a.sh", "b.sh")
    user.wait_for_states(cancelled, "RUNNING")
    user.wait_for_states(ended, "FAILED")
    user.wait_for_states(half, {1: "RUNNING", 2: "FAILED"})
    user.run(["scancel", swept])
    user.wait_for_states(swept, "CANCELLED")
    user.run(["scancel", cancelled])
    state = pack_directory(user, cancelled) / "members" / "0001" / "state.1.json"
    wait_until(lambda: "CANCELLED" in state.read_text(), "the runner writes CANCELLED")
    user.sandbox.stop_controller()
    for path in user.sandbox.layout.state.glob("job_state*"):
        path.unlink()
    user.sandbox.start_controller()
    user.wait_for_states(unstarted, "LOST")
    user.wait_for_states(half, {1: "LOST", 2: "FAILED"})
    assert states_of(user.members(cancelled)) == {1: "CANCELLED"}
    assert states_of(user.members(ended)) == {1: "FAILED"}
    assert states_of(user.members(swept)) == {1: "CANCELLED"}
    assert "how it ended is not known" in user.members(half)[1]["reason"]
    assert user.csub("queue").stdout.count("\n") == 1


# A lost node -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [True, False], ids=["everything-on-it", "slurmd-alone"])
def test_a_lost_node_moves_the_pack_and_fences_the_old_attempt(
    fragile_user: CsubUser, dead: bool
) -> None:
    user = fragile_user
    first, second = user.sandbox.node_names[:2]
    user.script("done.sh", "echo $SLURM_JOB_NAME >>ran.txt")
    user.script(
        "work.sh",
        "echo $SLURM_JOB_NAME >>ran.txt; echo $SLURMD_NODENAME $$\n"
        f"while [ $SLURMD_NODENAME = {first} ] || [ ! -e end ]; do sleep 0.1; done",
    )
    # Only the first node has room while the second is drained.
    administrate(user, "scontrol", "update", f"nodename={second}", "state=drain", "reason=test")
    job_id = submit_pack(user, "done.sh", "work.sh")
    rows = user.wait_for_states(job_id, {1: "COMPLETED", 2: "RUNNING"})
    assert rows[2]["node"] == first
    old = started_record(user, job_id, 2)["pid"]
    administrate(user, "scontrol", "update", f"nodename={second}", "state=resume")
    # An answer that was still under way brings a node back that is down but not drained.
    administrate(user, "scontrol", "update", f"nodename={first}", "state=drain", "reason=lost")
    user.sandbox.kill_node(first, jobs=dead)
    # What slurmctld does itself after SlurmdTimeout.
    administrate(user, "scontrol", "update", f"nodename={first}", "state=down", "reason=lost")
    try:
        wait_until(
            lambda: (pack_directory(user, job_id) / "attempt").read_text() == "2\n",
            "the second attempt starts",
            patience_s=90,
        )
        # Until the second attempt has written a state, the first one's is shown.
        wait_until(lambda: user.members(job_id)[2]["starts"] == 2, "it starts again")
        rows = user.wait_for_states(job_id, {1: "COMPLETED", 2: "RUNNING"})
        assert (rows[2]["node"], rows[2]["starts"]) == (second, 2)
        wait_until(lambda: not Path(f"/proc/{old}").exists(), "the old attempt's member ends")
        if not dead:
            wait_until(
                lambda: any(event["event"] == "fenced" for event in journal(user, job_id)),
                "the old runner notices that it is fenced off",
            )
            log = (pack_directory(user, job_id) / "pack.log").read_text()
            assert "attempt 2 of this pack has started; attempt 1 ends" in log
        user.script("end", "")
        rows = user.finish(job_id)
    finally:
        user.sandbox.start_node(first)
    assert states_of(rows) == {1: "COMPLETED", 2: "COMPLETED"}
    assert run_counts(user) == {"done.sh": 1, "work.sh": 2}


# Killed processes ------------------------------------------------------------------------------


def test_a_killed_wrapper_fails_its_member_and_the_pack_goes_on(user: CsubUser) -> None:
    user.script("a.sh", RUN_FOREVER)
    user.script("b.sh", UNTIL_END)
    user.script("c.sh", "echo $SLURM_JOB_NAME >>ran.txt")
    job_id = submit_pack(user, "--degree=2", "--pack-size=3", "a.sh", "b.sh", "c.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING"})
    record = started_record(user, job_id, 1)
    os.kill(record["wrapper_pid"], signal.SIGKILL)
    rows = user.wait_for_states(job_id, {1: "FAILED", 2: "RUNNING", 3: "COMPLETED"})
    assert rows[1]["exit_code"] == {"code": 0, "signal": 9}
    assert rows[1]["reason"] == "its step was killed"
    wait_until(lambda: not Path(f"/proc/{record['pid']}").exists(), "its script ends with it")
    user.script("end", "")
    assert states_of(user.finish(job_id))[2] == "COMPLETED"


@pytest.mark.parametrize("with_shepherd", [False, True], ids=["srun", "srun-and-its-shepherd"])
def test_a_member_whose_srun_was_killed_keeps_its_place_until_it_has_ended(
    user: CsubUser, with_shepherd: bool
) -> None:
    user.script("a.sh", f"{UNTIL_END}; exit 4")
    user.script("b.sh", "grep -sq '^State:.[RSDT]' /proc/$(cat pid)/status || echo alone")
    job_id = submit_pack(user, "--degree=1", "--pack-size=2", "a.sh", "b.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "PENDING"})
    record = started_record(user, job_id, 1)
    (user.home / "pid").write_text(str(record["pid"]))
    runner = json.loads((pack_directory(user, job_id) / "runner.json").read_text())["pid"]
    (srun,) = find_children(runner)
    # srun's own child watches over it: where only srun is killed, it has the step killed.
    for pid in [*(find_children(srun) if with_shepherd else ()), srun]:
        os.kill(pid, signal.SIGKILL)
    if with_shepherd:
        wait_until(
            lambda: any(event["event"] == "srun_lost" for event in journal(user, job_id)),
            "the runner notices",
        )
        assert states_of(user.members(job_id)) == {1: "RUNNING", 2: "PENDING"}
        assert run_counts(user) == {"a.sh": 1}
        user.script("end", "")
    rows = user.finish(job_id)
    assert states_of(rows) == {1: "FAILED", 2: "COMPLETED"}
    expected = {"code": 4, "signal": 0} if with_shepherd else {"code": 0, "signal": 9}
    assert rows[1]["exit_code"] == expected
    assert user.output(f"slurm-{job_id}_2.out") == "alone\n"


# No srun ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["failing", "missing"])
def test_without_a_working_srun_members_run_as_processes_and_show_says_so(
    user: CsubUser, how: str
) -> None:
    folder = user.home / "bin"
    folder.mkdir()
    if how == "failing":
        srun = folder / "srun"
        srun.write_text("#!/bin/sh\necho 'srun: error: step creation is broken' >&2\nexit 1\n")
        srun.chmod(0o755)
        user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    else:
        sbatch = Path(user.find("sbatch"))
        for path in (str(sbatch.parent), "/usr/bin", "/bin"):
            for tool in Path(path).iterdir():
                if tool.name not in ("srun", "sbatch") and not (folder / tool.name).exists():
                    (folder / tool.name).symlink_to(tool)
        (folder / "sbatch").symlink_to(sbatch)
        user.extra["PATH"] = f"{Path(sys.executable).parent}:{folder}"
    user.script("a.sh", "echo $SLURM_JOB_NAME >>ran.txt; exit 3")
    user.script("b.sh", "echo $SLURM_JOB_NAME >>ran.txt; sleep 1")
    user.script("c.sh", "echo $SLURM_JOB_NAME >>ran.txt; kill -9 $$")
    job_id = submit_pack(user, "--degree=2", "--pack-size=3", "a.sh", "b.sh", "c.sh")
    rows = user.finish(job_id)
    assert states_of(rows) == {1: "FAILED", 2: "COMPLETED", 3: "FAILED"}
    assert [row["exit_code"] for row in rows.values()] == [
        {"code": 3, "signal": 0},
        {"code": 0, "signal": 0},
        {"code": 0, "signal": 9},
    ]
    assert [row["step"] for row in rows.values()] == [None, None, None]
    assert run_counts(user) == {"a.sh": 1, "b.sh": 1, "c.sh": 1}
    shown = user.csub("show", job_id).stdout
    reason = "step creation is broken" if how == "failing" else "srun"
    fallback = next(line for line in shown.splitlines() if "Fallback:" in line)
    assert "members run as plain processes instead of job steps" in fallback
    assert reason in fallback
    assert "plain process" in user.csub("show", f"{job_id}/1").stdout


def test_a_site_may_choose_plain_processes(user: CsubUser) -> None:
    settings = user.home / "settings.toml"
    settings.write_text('launcher = "process"\n')
    user.extra["SLURM_COLLOC_SETTINGS"] = str(settings)
    user.script("a.sh", "sleep 300")
    user.script("b.sh", "echo $SLURM_JOB_NAME >>ran.txt; exit 3")
    job_id = submit_pack(user, "--degree=2", "--pack-size=3", "a.sh", "b.sh", "b.sh")
    rows = user.wait_for_states(job_id, {1: "RUNNING", 2: "FAILED", 3: "FAILED"})
    assert rows[1]["step"] is None
    pid = started_record(user, job_id, 1)["pid"]
    user.csub("cancel", f"{job_id}/1")
    assert states_of(user.finish(job_id)) == {1: "CANCELLED", 2: "FAILED", 3: "FAILED"}
    assert not Path(f"/proc/{pid}").exists()
    assert "Fallback" not in user.csub("show", job_id).stdout
