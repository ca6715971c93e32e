"""What a plan says of the start of a pack is what its runner does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from slurm_colloc.runtime.pack_monitor import find_obstacle
from slurm_colloc.runtime.pause_members import find_measuring_obstacle
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import State

from ..bed import CsubUser

OPTIONS = ("--gres=gpu:1", "--time=3", "--degree=4", "--pack-size=4", "--array=0-3")


def write_settings(user: CsubUser, **values: object) -> Settings:
    """The user's settings: in their file, and as the runner reads them."""
    path = user.home / ".config" / "slurm_colloc" / "settings.toml"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return dataclasses.replace(Settings(), **values)  # type: ignore[arg-type]


def find_runners_obstacle(user: CsubUser, settings: Settings) -> str:
    """Why the runner of the one pack that there is would measure nothing; empty where it would."""
    (path,) = user.state.glob("packs/*")
    record = State(user.state, "").read_pack(Path(path).name)
    assert record is not None
    assert record.request is not None
    unwatched = find_obstacle(settings, record.request.host_memory_mb)
    return find_measuring_obstacle(settings, unwatched[1] if unwatched else "")


@pytest.mark.parametrize(
    ("options", "values", "said"),
    [
        (("--mem=1G",), {}, ""),
        # Four of them and what starts them are less than a monitor is started for.
        (("--mem=200M",), {}, "host memory"),
        (("--mem=250M",), {}, ""),
        (("--mem=1G",), {"pause": False}, "the setting pause is off"),
        (("--mem=1G",), {"monitor": False}, "monitor = false"),
    ],
)
def test_a_plan_calls_a_pack_measured_where_its_runner_measures(
    user: CsubUser, options: tuple[str, ...], values: dict[str, object], said: str
) -> None:
    settings = write_settings(user, **values)
    user.script("sim.sh", "exit 0")
    told = user.csub("plan", "--json", *OPTIONS, *options, "sim.sh")
    (pack,) = json.loads(told.stdout)["packs"]
    user.submit("--hold", *OPTIONS, *options, "sim.sh")
    obstacle = find_runners_obstacle(user, settings)
    assert said in obstacle
    assert pack["is_measured"] is (obstacle == ""), obstacle
    shown = " ".join(user.csub("plan", *OPTIONS, *options, "sim.sh").stdout.split())
    assert ("measured as it starts" in shown) is (obstacle == "")


@pytest.mark.parametrize("option", ["--no-pause", "--no-instrument"])
def test_of_members_that_can_not_be_measured_no_pack_is_called_so(
    user: CsubUser, option: str
) -> None:
    user.script("sim.sh", "exit 0")
    told = user.csub("plan", "--json", *OPTIONS, "--mem=1G", option, "sim.sh")
    (pack,) = json.loads(told.stdout)["packs"]
    assert pack["is_measured"] is False


def test_as_many_start_at_once_as_the_plan_says_however_short_they_are(user: CsubUser) -> None:
    user.script("sim.sh", "until [ -e go ]; do sleep 0.1; done")
    options = (*OPTIONS, "--mem=100M")
    told = json.loads(user.csub("plan", "--json", *options, "sim.sh").stdout)
    assert [pack["degree"] for pack in told["packs"]] == [4]
    # Neither does it say that fewer begin.
    shown = user.csub("plan", *options, "sim.sh").stdout
    assert "Pack 1: 4 members, 4 at once, mps, time limit " in shown
    job_id = user.submit(*options, "sim.sh")
    rows = user.wait_for_states(job_id, "RUNNING")
    assert len(rows) == 4
    user.run(["touch", "go"])
    user.finish(job_id)
