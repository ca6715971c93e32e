"""What every call looks at first: one pack of which something is wrong hides no other."""

from __future__ import annotations

from pathlib import Path

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import pack_directory

PACK = ("pack", "--gres=gpu:1", "-c1", "--mem=100M", "--time=5")


def test_a_damaged_pack_that_is_over_keeps_no_other_from_being_swept(
    scripts: CsubUser, slurm: FakeSlurm
) -> None:
    slurm.pause()
    bad = scripts.submit(*PACK, "ok.sh", "ok.sh")
    good = scripts.submit(*PACK, "ok.sh", "ok.sh")
    folders = [pack_directory(scripts, job_id) for job_id in (bad, good)]
    # As after a crash of the file server, while its job was cancelled by others.
    (folders[0] / "attempt").write_text("x")
    scripts.run(["scancel", bad, good])
    queue = scripts.run(["csub", "queue"], check=False)
    damaged = f"{folders[0]}/attempt is damaged"
    assert f"csub: {damaged}; the next call of csub looks at its pack again\n" in queue.stderr
    assert "Traceback" not in queue.stderr
    assert [path.name for path in (scripts.state / "open").iterdir()] == [folders[0].name]
    # And a new submission is not held up by it.
    submitted = scripts.csub(*PACK, "--parsable", "--hold", "ok.sh", "ok.sh")
    assert submitted.stdout.strip().isdecimal()
    assert damaged in submitted.stderr
    (folders[0] / "attempt").unlink()
    scripts.csub("queue")
    assert not (scripts.state / "open" / folders[0].name).exists()


def test_a_submission_whose_lock_cannot_be_looked_at_is_left_alone(
    scripts: CsubUser, slurm: FakeSlurm
) -> None:
    """It may be one that another csub is just at."""
    slurm.pause()
    job_id = scripts.submit(*PACK, "ok.sh", "ok.sh")
    folder = pack_directory(scripts, job_id)
    (folder / "slurm_job_id").unlink()
    lock = scripts.state / "making" / f"{folder.name.partition('.')[0]}.lock"
    # It is there, and cannot be opened, as on a file system that fails.
    lock.symlink_to(lock.name)
    # squeue does not show it.
    scripts.run(["scancel", job_id])
    queue = scripts.run(["csub", "queue"], check=False)
    assert f"cannot read {lock}: Too many levels of symbolic links" in queue.stderr
    assert "Traceback" not in queue.stderr
    assert folder.is_dir()
    assert Path(scripts.state / "open" / folder.name).exists()
