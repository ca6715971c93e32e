"""A training over several Slurm jobs (--chain), each submitted while the one before it runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import CsubUser

pytestmark = pytest.mark.slurm

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
"""


def read_links(user: CsubUser) -> list[dict[str, Any]]:
    (path,) = (user.state / "packs").glob("*/chain.json")
    return list(json.loads(path.read_text())["links"])


@pytest.mark.smoke
def test_a_training_longer_than_its_limit_runs_to_its_end(user: CsubUser) -> None:
    user.script("train.sh", STEPS)
    job_id = user.submit("--chain=4", "--gres=gpu:1", "--time=1", "train.sh", "a", "200")
    rows = user.finish(job_id)
    assert {number: row["state"] for number, row in rows.items()} == {1: "COMPLETED"}
    links = read_links(user)
    assert len(links) >= 2, links
    assert links[0]["job_id"] == job_id
    assert all(link["began_at"] and link["ended_at"] for link in links), links
    pairs = zip(links, links[1:], strict=False)
    assert all(link["began_at"] >= before["ended_at"] for before, link in pairs), links
    assert not user.exists("twice")
    assert len(user.output("starts.a").splitlines()) == len(links)
    assert user.output(f"slurm-{job_id}.out").count("finished at 200") == 1
