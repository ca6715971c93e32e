"""A training over several Slurm jobs (--chain), each submitted while the one before it runs."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from ..bed import CsubUser, administrate
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

PATIENCE_S = 300.0
STEPS = """\
trap 'echo saved >> saves.$1; kill $rest; exit 0' TERM
exec 9> lock.$1; flock -n 9 || echo two >> twice
echo $SLURM_JOB_ID >> starts.$1
step=$(cat step.$1 2> /dev/null || echo 0)
while [ $step -lt $2 ]; do
    sleep 1 & rest=$!
    wait $rest
    step=$((step + 1))
    echo $step > step.$1
done
echo "finished at $step"
exit ${3:-0}
"""
"""Counts seconds up to a number, saved after each; then ends with a status."""


def read_chain(user: CsubUser) -> dict[str, Any]:
    (path,) = (user.state / "packs").glob("*/chain.json")
    return dict(json.loads(path.read_text()))


def list_jobs(user: CsubUser) -> list[str]:
    return user.run(["squeue", "--noheader", "--format=%A"]).stdout.split()


def check_links(user: CsubUser, job_id: str) -> list[dict[str, Any]]:
    links = list(read_chain(user)["links"])
    assert links[0]["job_id"] == job_id
    # Where Slurm has requeued the job it is the same one.
    assert len({(link["job_id"], link["began_at"]) for link in links}) == len(links), links
    assert all(link["began_at"] and link["ended_at"] for link in links), links
    for before, link in itertools.pairwise(links):
        assert link["began_at"] >= before["ended_at"], links
    assert not (user.home / "twice").exists()
    return links


@pytest.mark.smoke
def test_a_training_longer_than_its_limit_goes_on_under_the_same_name(user: CsubUser) -> None:
    user.script("train.sh", STEPS)
    job_id = user.submit("--chain=4", "--gres=gpu:1", "--time=1", "train.sh", "a", "80")
    user.script("after.sh", "cat step.a > seen")
    after = user.submit(f"--dependency=afterok:{job_id}", "--gres=gpu:1", "--time=1", "after.sh")
    rows = user.finish(job_id, patience_s=PATIENCE_S)
    assert {number: row["state"] for number, row in rows.items()} == {1: "COMPLETED"}
    links = check_links(user, job_id)
    assert len({link["job_id"] for link in links}) == len(links) == 2, links
    # Slurm knows two jobs, and the training one id, as where Slurm requeues a job.
    assert user.output("starts.a").split() == [job_id, job_id]
    assert user.output("saves.a") == "saved\n"
    # The second one has written to the first one's file.
    assert user.output(f"slurm-{job_id}.out").splitlines()[-1] == "finished at 80"
    # What waits for it has waited for its last link.
    assert user.finish(after)[1]["state"] == "COMPLETED"
    assert user.output("seen") == "80\n"
    report = user.csub("report", job_id).stdout
    assert "2 links of at most 4; interrupted in all 0:" in " ".join(report.split())
    # Nothing was measured, and both links count.
    assert re.match(r"1 job ran alone on its GPU for [1-9]\d* min", report)


def test_slurms_own_signal_to_a_batch_script_does_not_end_a_chain(user: CsubUser) -> None:
    user.script("train.sh", STEPS.replace("' TERM", "' USR1"))
    words = ("--chain=4", "--signal=B:USR1@10", "--nodes=2", "--gres=gpu:1", "--time=1")
    job_id = user.submit(*words, "train.sh", "a", "70")
    rows = user.finish(job_id, patience_s=PATIENCE_S)
    assert rows[1]["state"] == "COMPLETED"
    assert len(check_links(user, job_id)) == 1 + len(user.output("saves.a").split())
    assert user.output(f"slurm-{job_id}.out").count("finished at 70") == 1


def test_members_of_a_pack_go_on_together_and_a_failure_ends_a_member(user: CsubUser) -> None:
    user.script("train.sh", STEPS)
    words = ("train.sh a 10", "train.sh b 75", "train.sh c 70 3")
    job_id = user.submit("pack", "--chain=4", "--gres=gpu:1", "--time=1", *words)
    user.wait_for_states(job_id, "RUNNING")
    administrate(user, "scontrol", "update", f"JobId={job_id}", "TimeLimit=1")
    rows = user.finish(job_id, patience_s=PATIENCE_S)
    states = {number: row["state"] for number, row in rows.items()}
    assert states == {1: "COMPLETED", 2: "COMPLETED", 3: "FAILED"}
    check_links(user, job_id)
    starts = [user.output(f"starts.{name}").split() for name in "abc"]
    assert [len(ids) for ids in starts] == [1, 2, 2]
    # Each has a number of its own, and keeps it in both links.
    assert [len({*ids}) for ids in starts] == [1, 1, 1]
    assert len({ids[0] for ids in starts}) == 3
    wait_until(lambda: not list_jobs(user), "no successor is left")


def wait_for_successor(user: CsubUser) -> None:
    wait_until(lambda: len(read_chain(user)["links"]) == 2, "it is submitted", patience_s=120.0)


def submit_with_late_successor(user: CsubUser, *options: str) -> str:
    """A chain in a partition without room for the next link, as long as the first one runs."""
    user.script("train.sh", STEPS)
    words = ("--chain=4", "--gres=gpu:2", "--nodes=2", "--time=1", *options)
    return user.submit(*words, "train.sh", "a", "300")


def test_a_cancel_ends_the_running_link_and_the_next(user: CsubUser) -> None:
    job_id = submit_with_late_successor(user)
    user.wait_for_states(job_id, "RUNNING")
    wait_for_successor(user)
    user.csub("cancel", job_id, "--yes")
    wait_until(lambda: not list_jobs(user), "both are gone")
    assert user.finish(job_id)[1]["state"] == "CANCELLED"
    # The second one, whose id in the script would be the same, has not begun.
    assert user.output("starts.a").split() == [job_id]


def test_where_slurm_takes_no_second_job_this_one_is_requeued(user: CsubUser) -> None:
    job_id = submit_with_late_successor(user, "--hold")
    (script,) = (user.state / "packs").glob("*/*.sh")
    # As under MaxSubmitJobs, sbatch fails.
    script.rename(script.with_suffix(".away"))
    user.run(["scontrol", "release", job_id])
    user.wait_for_states(job_id, "RUNNING")
    wait_until(lambda: bool(read_chain(user)["problem"]), "refused", patience_s=120.0)
    why = user.csub("why", job_id).stdout
    assert "its successor could not be submitted" in why
    wait_until(lambda: len(user.output("starts.a").split()) == 2, "again", patience_s=240.0)
    assert set(user.output("starts.a").split()) == {job_id}
    assert list_jobs(user) == [job_id]
    user.csub("cancel", job_id, "--yes")


SBATCH = """\
#!/bin/bash
# Stands before the real sbatch. Runners get no answer, and the first is killed, where asked for.
case " $* " in *--test-only*) exec @sbatch@ "$@" ;; esac
answer=$(@sbatch@ "$@") || exit
echo $answer >> @home@/submitted
case $(wc -l < @home@/submitted) in
    1) echo $answer ;;
    2) [ @kill@ = no ] || kill -KILL $PPID ;;
esac
"""


@pytest.mark.parametrize("words", [("train.sh a 75",), ("train.sh a 75", "train.sh b 70")])
@pytest.mark.parametrize("kill", ["no", "yes"])
def test_a_successor_whose_id_is_not_known_is_found_again(
    user: CsubUser, words: tuple[str, ...], kill: str
) -> None:
    user.script("train.sh", STEPS)
    folder = user.home / "bin"
    folder.mkdir()
    text = SBATCH.replace("@sbatch@", user.find("sbatch")).replace("@kill@", kill)
    (folder / "sbatch").write_text(text.replace("@home@", str(user.home)))
    (folder / "sbatch").chmod(0o755)
    user.extra["PATH"] = f"{folder}:{user.environment['PATH']}"
    job_id = user.submit("pack", "--chain=4", "--gres=gpu:1", "--time=1", *words)
    rows = user.finish(job_id, patience_s=PATIENCE_S)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    links = check_links(user, job_id)
    # None was submitted a second time.
    assert user.output("submitted").split() == [link["job_id"] for link in links]
    wait_until(lambda: not list_jobs(user), "no successor is left")
