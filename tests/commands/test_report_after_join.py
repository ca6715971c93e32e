"""`csub report` of a pack into whose free place somebody has just come."""

from __future__ import annotations

import json
import re

from ..bed import CsubUser

WAIT = "until [ -e end-$1 ]; do sleep 0.1; done"
TOTALS = ("Together", "In a row", "Saved")


def test_report_right_after_a_join_tells_of_the_joiner_alone_and_that_it_runs(
    user: CsubUser,
) -> None:
    user.script("go.sh", WAIT, directives="#SBATCH --gres=gpu:1 --time=9 --mem=100M")
    job_id = user.submit("pack", "go.sh a", "go.sh b", "go.sh c")
    user.wait_for_states(job_id, "RUNNING")
    user.run(["touch", "end-a"])
    user.wait_for_states(job_id, {1: "COMPLETED"})
    joined = user.csub("--join", "--open=never", "--time=5", "go.sh", "d")
    joiner = joined.stdout.split()[-1]
    assert f"{job_id}/4, joined the running pack" in joined.stderr
    user.wait_for_states(job_id, {4: "RUNNING"})
    told = user.csub("report", joiner).stdout
    headline, table = told.split("MEMBER ", 1)
    assert headline.startswith(f"{joiner} runs with 2 others")
    rows = [line for line in table.splitlines() if re.match(rf"{joiner}|{job_id}/", line)]
    assert [row.split()[0] for row in rows] == [joiner]
    assert "RUNNING" in rows[0]
    assert "has not started" not in told
    assert "no member has started" not in told
    assert not any(word in told for word in TOTALS)
    # Nor of the one that has ended, or of what is unknown of the pack.
    assert not re.search(rf"\bmember 1\b|{job_id}/1\b|[Ee]nergy saved", told)
    detail = user.csub("report", "--detail", joiner).stdout
    assert "no member has started" not in detail
    (value,) = json.loads(user.csub("report", "--json", joiner).stdout)
    assert [member["id"] for member in value["members"]] == [joiner]
    assert value["members"][0]["starts"] == 1
    assert value["members"][0]["job_id"] == joiner
    assert f"csub report {job_id} {joiner} shows all 4 members" in detail
    own = user.csub("report", job_id).stdout
    assert f"{job_id}/2" in own
    assert joiner not in own
    for name in "bcd":
        user.run(["touch", f"end-{name}"])
    user.finish(job_id)


def test_report_of_a_joiner_that_waits_for_its_pack_says_that_it_has_not_started(
    user: CsubUser,
) -> None:
    user.script("go.sh", "exit 0", directives="#SBATCH --gres=gpu:1 --time=5")
    first = user.submit("--begin=2099-01-01T12:00", "go.sh", "1")
    user.csub("--join", "--open=never", "--begin=2099-01-01T12:00", "go.sh", "2")
    for told in (user.csub("report", f"{first}/2").stdout, user.csub("report", first).stdout):
        assert re.search(r"ha(s|ve) not started yet|None of the 2 jobs has started yet", told)
        assert "RUNNING" not in told
    user.csub("cancel", "--yes", first)
