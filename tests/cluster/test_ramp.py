"""A pack adds members as far as that pays, and steps back where it is slower than one by one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.store.pack.pack_directory import read_moved

from ..wait_until import wait_until
from .conftest import CsubUser
from .mps import explained, journal, pack_directory, write_settings

pytestmark = pytest.mark.slurm

OPTIONS = ("--share=timeslice", "--gres=gpu:1", "-c1", "--mem=700M", "--time=30")
RATE = 20.0

# It trains on the simulated GPU, whose speed depends on who else is there, and counts its steps.
TRAIN = """\
import os, signal, subprocess, sys
from pathlib import Path
from slurm_colloc import progress

sm, stop = sys.argv[1], Path(sys.argv[2])
name = os.environ["SLURM_COLLOC_MEMBER"].replace("/", ".")
print("start restart=" + os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)

def save(number, frame):
    Path("saved." + name).touch()
    use.kill()
    sys.exit(7)

use = subprocess.Popen(
    ["simgpu", "run", "--seconds=600", "--gpu-memory=1G", "--sm=" + sm, "--rate=20", "--report"],
    stdout=subprocess.PIPE, text=True,
)
signal.signal(signal.SIGUSR1, save)
done = 0
for line in use.stdout:
    steps = int(line.split()[1])
    progress.step(samples=8, steps=steps - done)
    done = steps
    if stop.exists() or Path("stop." + name).exists():
        break
use.kill()
"""

_LAUNCHER = """\
#!{python}
# The runner, which looks for less long before it steps back.
import sys
from slurm_colloc.model.degree import ramp_rules
ramp_rules.WATCH_WINDOW_S = 6.0
from slurm_colloc.runtime import __main__ as entry
sys.exit(entry.main(sys.argv[4:]))
"""


def submit(
    user: CsubUser, count: int, sm: int, *options: str, start: int, solo: float | None, **plan: Any
) -> tuple[str, Path]:
    """Submit a pack as if its jobs were known: with these rates alone; job id and stop file."""
    stop = user.home / "stop"
    (user.home / "train.py").write_text(TRAIN)
    user.script("train.sh", f'exec python3 "$HOME/train.py" {sm} {stop}')
    words = [f"train.sh --lr 0.{number}" for number in range(1, count + 1)]
    job_id = user.submit("pack", "--hold", "--no-probe", *OPTIONS, *options, *words)
    pack = pack_directory(user, job_id)
    record = json.loads((pack / "pack.json").read_text())
    group = [pair for pair in record["group"] if pair[0] != "hold"]
    policy = {**record["policy"], "measure_s": 60 if start == 1 else 0}
    edit(pack / "pack.json", policy=policy, group=group, closed="")
    for number in range(1, count + 1):
        path = pack / "members" / f"{number:04}" / "spec.json"
        known = json.loads(path.read_text())["plan"]
        # The pack has time to be measured.
        edit(path, plan={**known, "solo_steps_per_s": solo, "wall_limit_s": 1200, **plan})
    user.csub("release", job_id)
    return job_id, stop


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def list_states(user: CsubUser, job_id: str) -> list[str]:
    return [row["state"] for _, row in sorted(user.members(job_id).items())]


def why(user: CsubUser, member: str) -> str:
    return " ".join(user.csub("why", member).stdout.split())


def targets(user: CsubUser, job_id: str) -> list[int]:
    return [event["target"] for event in journal(user, job_id, "ramp")]


def count_steps(user: CsubUser, job_id: str, number: int) -> int:
    latest = json.loads((pack_directory(user, job_id) / "latest.json").read_text())
    return int(latest["members"].get(str(number), {}).get("steps") or 0)


def find_ramp(user: CsubUser, job_id: str) -> dict[str, Any]:
    try:
        return dict(json.loads((pack_directory(user, job_id) / "ramp.json").read_text()))
    except FileNotFoundError:
        return {}


@pytest.mark.smoke
def test_members_are_added_until_the_sum_of_progress_stops_growing(mps_user: CsubUser) -> None:
    user = mps_user
    # By time slices each takes 0.2 ** 0.6 = 0.38 of the GPU: three are almost as many as fit.
    job_id, stop = submit(user, 5, 20, "--degree=5", start=1, solo=RATE, max_slowdown=3.0)
    user.wait_for_states(job_id, {1: "RUNNING"})
    with explained(user, job_id):
        wait_until(
            lambda: "being measured with 1 member" in (user.members(job_id)[2]["reason"] or ""),
            "it says why it waits",
        )
        assert f"{job_id}/2 PENDING: waits: the pack is being measured with 1 member" in why(
            user, f"{job_id}/2"
        )
        wait_until(
            lambda: find_ramp(user, job_id).get("state") == "SETTLED", "it settles", patience_s=180
        )
    assert targets(user, job_id) == [2, 3, 4, 3]
    assert list_states(user, job_id) == ["RUNNING"] * 4 + ["PENDING"]
    last = journal(user, job_id, "ramp")[-1]
    assert 2.4 < last["stp"] < 2.9
    reason = "no more than 3 run at once: with the 4th the sum of progress went from 2."
    assert f"{job_id}/5 PENDING: waits: {reason}" in why(user, f"{job_id}/5")
    assert reason in why(user, f"{job_id}/1")
    # Nobody takes the place of one too many, and somebody that of the next.
    (user.home / f"stop.{job_id}.1").touch()
    user.wait_for_states(job_id, {1: "COMPLETED"})
    assert list_states(user, job_id)[1:] == ["RUNNING"] * 3 + ["PENDING"]
    (user.home / f"stop.{job_id}.2").touch()
    user.wait_for_states(job_id, {2: "COMPLETED", 5: "RUNNING"})
    stop.touch()
    rows = user.finish(job_id)
    assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    assert targets(user, job_id) == [2, 3, 4, 3]


def test_a_joiner_of_an_unsettled_pack_waits_its_turn(mps_user: CsubUser) -> None:
    user = mps_user
    # Two of them fit beside each other, so they come one at a time.
    job_id, stop = submit(user, 3, 30, start=1, solo=RATE)
    user.wait_for_states(job_id, {1: "RUNNING"})
    user.csub("cancel", "--yes", f"{job_id}/3")
    # Shorter, so that it ends before the pack does.
    words = ("--join", "--no-probe", *OPTIONS, "--time=20", "train.sh", "--lr", "0.9")
    assert user.submit(*words) == f"{job_id}/4"
    with explained(user, job_id):
        wait_until(lambda: targets(user, job_id)[-1:] == [2], "the second is added")
        user.wait_for_states(job_id, {2: "RUNNING", 4: "PENDING"})
        wait_until(
            lambda: "being measured with 2 members" in why(user, f"{job_id}/4"), "it says so"
        )
        user.wait_for_states(job_id, {4: "RUNNING"})
    stop.touch()
    user.finish(job_id)


def test_a_bound_in_danger_ends_the_ramp(mps_user: CsubUser) -> None:
    user = mps_user
    # Two fit side by side, a third takes a quarter of the speed from each.
    job_id, stop = submit(user, 4, 30, start=1, solo=RATE, max_slowdown=1.2)
    with explained(user, job_id):
        wait_until(
            lambda: find_ramp(user, job_id).get("state") == "SETTLED", "it settles", patience_s=180
        )
    assert targets(user, job_id) == [2, 3, 2]
    last = journal(user, job_id, "ramp")[-1]["reason"]
    assert "times slower than alone, and 1.2 times is accepted" in last
    assert list_states(user, job_id) == ["RUNNING"] * 3 + ["PENDING"]
    # What was measured says to others that there is no room.
    user.csub("cancel", "--yes", f"{job_id}/4")
    words = ("--join", "--no-probe", *OPTIONS, "--time=20", "train.sh", "--lr", "0.9")
    told = user.csub("--explain", *words)
    assert "not joined: pack" in told.stderr
    assert "no more than 2 run at once" in " ".join(told.stderr.split())
    stop.touch()
    user.finish(job_id)


def test_the_newest_is_stopped_and_goes_on_later(mps_user: CsubUser) -> None:
    user = mps_user
    launcher = user.home / "runner.py"
    launcher.write_text(_LAUNCHER.format(python=sys.executable))
    launcher.chmod(0o755)
    write_settings(user, node_python=str(launcher))
    # Each needs all of the GPU, and together they reach 0.8 of what is known of one alone.
    options = ("--requeue", "--signal=B:USR1@20")
    job_id, stop = submit(user, 2, 100, *options, start=1, solo=RATE / 0.8, max_slowdown=5.0)
    with explained(user, job_id):
        wait_until(lambda: journal(user, job_id, "step_back"), "it steps back", patience_s=180)
        user.wait_for_states(job_id, {1: "RUNNING", 2: "PENDING"})
    assert (user.home / f"saved.{job_id}.2").exists()
    assert not (user.home / f"saved.{job_id}.1").exists()
    assert find_ramp(user, job_id)["state"] == "STEPPED_BACK"
    said = why(user, f"{job_id}/2")
    assert "to be started again (stopped so that fewer run at once)" in said
    assert "no more than 1 runs: 2 were slower than one after the other" in said
    (user.home / f"stop.{job_id}.1").touch()
    user.wait_for_states(job_id, {1: "COMPLETED", 2: "RUNNING"})
    stop.touch()
    rows = user.finish(job_id)
    assert (rows[2]["state"], rows[2]["starts"]) == ("COMPLETED", 2)
    text = user.output(f"slurm-{job_id}_2.out")
    assert [line for line in text.splitlines() if line.startswith("start")] == [
        "start restart=0",
        "start restart=1",
    ]


def test_what_cannot_be_measured_is_not_held_back(mps_user: CsubUser) -> None:
    user = mps_user
    job_id, stop = submit(user, 3, 10, start=1, solo=None)
    user.wait_for_states(job_id, "RUNNING")
    (event,) = journal(user, job_id, "ramp")
    assert (event["state"], event["target"]) == ("OFF", 3)
    assert event["reason"] == ("all may run at once: the rate alone of none of them is known")
    stop.touch()
    user.finish(job_id)


def test_a_script_that_is_not_known_and_then_is(mps_user: CsubUser) -> None:
    user = mps_user
    stop = user.home / "stop"
    (user.home / "train.py").write_text(TRAIN)
    user.script("train.sh", f'exec python3 "$HOME/train.py" 8 {stop}')
    words = ("--gres=gpu:1", "-c1", "--mem=700M", "--time=30")
    job_id = user.submit("--array=1-4", *words, "train.sh")
    user.wait_for_states(job_id, {1: "RUNNING"})
    with explained(user, job_id):
        wait_until(lambda: "runs alone first" in why(user, f"{job_id}/2"), "it says why it waits")
        wait_until(lambda: targets(user, job_id), "the first was measured", patience_s=180)
        # It takes 0.08 of the SMs.
        said = why(user, f"{job_id}/1")
        assert re.search(r"1 runs, and the sum of progress is [01]\.\d\d: 3 more are started", said)
        user.wait_for_states(job_id, "RUNNING")
        wait_until(
            lambda: find_ramp(user, job_id).get("state") == "SETTLED", "it settles", patience_s=180
        )
    assert targets(user, job_id) == [4, 4]
    assert re.search(
        r"4 run at once, as planned: the sum of progress is [34]\.", why(user, f"{job_id}/3")
    )
    with explained(user, job_id):
        wait_until(lambda: count_steps(user, job_id, 3) >= 20 * RATE, "they share for a while")
    stop.touch()
    user.finish(job_id)
    # csub wait has waited for it.
    assert (pack_directory(user, job_id) / "report" / "summary.json").exists()
    (summary,) = json.loads(user.csub("report", "--json", job_id).stdout)
    assert [member["solo"]["source"] for member in summary["members"]] == [
        "this run", "family", "family", "family",
    ]  # fmt: skip
    assert all(0.8 < member["slowdown"] < 1.3 for member in summary["members"])
    (profile,) = json.loads(user.csub("profile", "list", "--json").stdout)
    assert profile["steps_per_s"]["mean"] == pytest.approx(RATE, rel=0.1)
    # The same script again: known now, so nobody waits for a measurement.
    stop.unlink()
    again = user.submit("pack", *words, *["train.sh"] * 4)
    user.wait_for_states(again, "RUNNING")
    assert journal(user, again, "probe", "ramp") == []
    record = json.loads((pack_directory(user, again) / "pack.json").read_text())
    assert record["degree"] == 4
    stop.touch()
    user.finish(again)


def test_what_was_measured_beside_one_with_all_threads_is_measured_again(
    mps_user: CsubUser,
) -> None:
    user = mps_user
    stop = user.home / "stop"
    (user.home / "train.py").write_text(TRAIN)
    user.script("train.sh", f'exec python3 "$HOME/train.py" 45 {stop}')
    words = ("--gres=gpu:1", "-c1", "--mem=700M", "--time=30", "--max-slowdown=9")
    job_id = user.submit("--array=1-6", "--degree=6", *words, "train.sh")
    with explained(user, job_id):
        # Two fill the simulated GPU.
        wait_until(
            lambda: find_ramp(user, job_id).get("state") == "SETTLED", "it settles", patience_s=180
        )
    settled = targets(user, job_id)[-1]
    assert settled in (2, 3)
    shares = [event["gpu"]["thread_percentage"] for event in journal(user, job_id, "start")]
    # There is room for two by what the first takes, so four at most are likely, not six.
    assert shares == [100, *[50] * (len(shares) - 1)]
    (user.home / f"stop.{job_id}.1").touch()
    user.wait_for_states(job_id, {1: "COMPLETED"})
    with explained(user, job_id):
        wait_until(
            lambda: "one more is tried" in journal(user, job_id, "ramp")[-1]["reason"],
            "it goes on",
            patience_s=90,
        )
    assert targets(user, job_id)[-1] == settled + 1
    stop.touch()
    user.finish(job_id)


def test_who_would_be_ended_half_way_is_submitted_again(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("first.sh", 'until [ -e "$HOME/end" ]; do sleep 0.1; done')
    user.script("next.sh", 'echo "$SLURM_COLLOC_MEMBER" >>"$HOME/ran"')
    options = ("--gres=gpu:1", "-c1", "--mem=700M", "--time=30", "--degree=1", "--pack-size=3")
    job_id = user.submit("pack", "--hold", *options, "first.sh", "next.sh b", "next.sh c")
    pack = pack_directory(user, job_id)
    # As if most of the pack's time were over soon.
    request = json.loads((pack / "pack.json").read_text())["request"]
    edit(pack / "pack.json", request={**request, "time_limit_s": 1821})
    user.csub("release", job_id)
    user.wait_for_states(job_id, {1: "RUNNING"})
    with explained(user, job_id):
        wait_until(lambda: journal(user, job_id, "too_late"), "too little time is left")
    said = why(user, f"{job_id}/2")
    assert f"{job_id}/2 PENDING: waits: the pack has only 29:5" in said
    assert "left, and it may take 30:00: it is submitted again once the pack has ended" in said
    (user.home / "end").touch()
    user.wait_for_states(job_id, {1: "COMPLETED", 2: "REQUEUED", 3: "REQUEUED"})
    assert journal(user, job_id, "handed_back")[0]["members"] == [2, 3]
    new = user.members(job_id)[2]
    assert new["state"] == "REQUEUED"
    # It may have ended already, and is then no open pack any more.
    moved_to = read_moved(pack, 2)
    assert moved_to is not None
    new_id = (user.state / "packs" / moved_to / "slurm_job_id").read_text().strip()
    rows = user.finish(new_id)
    assert {number: row["state"] for number, row in rows.items()} == {
        2: "COMPLETED",
        3: "COMPLETED",
    }
    assert sorted((user.home / "ran").read_text().split()) == [f"{new_id}/2", f"{new_id}/3"]
