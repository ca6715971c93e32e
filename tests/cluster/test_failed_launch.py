"""A pack that Slurm could not start on its node, which Slurm holds since."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..bed import CsubUser, administrate, running_sandbox, user_of
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

OPTIONS = ("--gres=gpu:1", "--share=timeslice", "--degree=2", "--pack-size=2", "--time=5")
HELD = "launch failed requeued held"


@pytest.fixture
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prolog that fails while there is no file `whole` next to it."""
    folder = tmp_path_factory.mktemp("prolog")
    prolog = folder / "prolog.sh"
    prolog.write_text(f'#!/bin/sh\n[ -e "{folder}/whole" ]\n')
    prolog.chmod(0o755)
    return prolog


def read_reasons(user: CsubUser, job_id: str) -> dict[int, str | None]:
    return {number: row["reason"] for number, row in user.members(job_id).items()}


@pytest.mark.parametrize("command", ["csub", "scontrol"])
def test_why_says_that_slurm_holds_a_pack_that_it_could_not_start_and_release_starts_it(
    accounts: tuple[str, ...], fragile: Path, command: str
) -> None:
    extra = (f"Prolog={fragile}",)
    with (
        running_sandbox(nodes=1, gpus_per_node=1, cpus_per_node=8, extra_conf=extra) as sandbox,
        user_of(sandbox, accounts[0]) as user,
    ):
        user.script("work.sh", "true")
        # Three packs, of which squeue shows the waiting ones in one line.
        job_id = user.submit(*OPTIONS, "--array=1-6", "work.sh")
        wait_until(
            lambda: HELD in read_reasons(user, job_id).values(), "Slurm could not start a pack"
        )
        held = {number for number, why in read_reasons(user, job_id).items() if why == HELD}
        assert len(held) == 2
        told = user.csub("why", f"{job_id}/{min(held)}").stdout
        assert "Slurm could not start it on its node, and holds it since" in told
        assert f"csub release {job_id} lets it try again" in told
        fragile.with_name("whole").touch()
        node = f"nodename={sandbox.node_names[0]}"
        administrate(user, "scontrol", "update", node, "state=resume")
        user.wait_for_rows(
            job_id,
            lambda rows: all(
                row["state"] == "COMPLETED" for number, row in rows.items() if number not in held
            ),
            "the other packs have ended",
        )
        # It waits for somebody to release it.
        assert {why for why in read_reasons(user, job_id).values() if why} == {HELD}
        if command == "csub":
            released = user.csub("release", f"{job_id}/{min(held)}")
            assert "not held" not in released.stderr
        else:
            element = user.members(job_id)[min(held)]["slurm_job_id"]
            user.run(["scontrol", "release", element])
        rows = user.finish(job_id)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
