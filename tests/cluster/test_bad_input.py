"""Bad input and broken surroundings: one clear sentence, an exit code, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..commands.refusals import (
    check_refused,
    list_state,
    mounting_small_disk,
    pack_directory,
    put_state_at,
)
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other owners need root")

PACK = ("pack", "--gres=gpu:1", "-c1", "--mem=100M", "--time=5")


NOT_AVAILABLE = "Batch job submission failed: Requested node configuration is not available"

COMMAND_LINES = {
    "unknown partition": (
        ("--partition=nosuch", "ok.sh"),
        4,
        (
            "sbatch: invalid partition specified: nosuch; Batch job submission failed: Invalid "
            "partition name specified"
        ),
    ),
    "unknown partition for a pack": (
        (*PACK, "--partition=nosuch", "ok.sh", "ok.sh"),
        4,
        (
            "sbatch: invalid partition specified: nosuch; Batch job submission failed: Invalid "
            "partition name specified"
        ),
    ),
    "more GPUs than any node": (("--gres=gpu:9", "ok.sh"), 4, f"sbatch: {NOT_AVAILABLE}"),
    "more host memory than any node": (
        (*PACK, "--mem=900G", "ok.sh", "ok.sh"),
        3,
        (
            "ok.sh: it asks for 921600 MB of host memory, and a node of partition gpu has 16000 MB "
            "at most: ask for less, or for another partition"
        ),
    ),
    "unknown GPU type": (
        (*PACK, "--gres=gpu:nosuch:1", "ok.sh"),
        3,
        (
            "ok.sh: it asks for a GPU of type nosuch, and no node of partition gpu has any: sinfo "
            "-o '%P %c %m %G' shows what each partition has"
        ),
    ),
    "unknown gres": (
        ("--gres=nosuch:1", "ok.sh"),
        4,
        "sbatch: Invalid generic resource (gres) specification",
    ),
    "unreadable script": (("secret.sh",), 2, "cannot read the script secret.sh: Permission denied"),
    "dependency": (
        ("--dependency=nosuch", "ok.sh"),
        4,
        "sbatch: Batch job submission failed: Job dependency problem",
    ),
}


@pytest.fixture
def scripts(user: CsubUser) -> CsubUser:
    """A user with one good script and many bad ones."""
    user.script("ok.sh", "exit 0")
    (user.home / "folder").mkdir()
    for name, text in {
        "secret.sh": "#!/bin/sh\n",
    }.items():
        (user.home / name).write_text(text, newline="")
    (user.home / "secret.sh").chmod(0)
    return user


@pytest.mark.parametrize("case", COMMAND_LINES, ids=lambda case: case.replace(" ", "-"))
def test_a_wrong_call_is_refused_in_one_sentence(scripts: CsubUser, case: str) -> None:
    words, status, sentence = COMMAND_LINES[case]
    if case == "unreadable script" and scripts.uid == 0:
        pytest.skip("root can read everything")
    check_refused(scripts, words, status, sentence)


def test_what_slurm_accepts_but_cannot_run_is_shown_with_slurms_reason(scripts: CsubUser) -> None:
    # More CPUs than any node: Slurm takes it unless the site enforces limits, and so does csub.
    ended = scripts.csub("--parsable", "-c", "999", "ok.sh", check=False)
    # Slurm 24.11 refuses it at once; 22.05 and 26.05 do not.
    refuses = " 24.11." in scripts.run(["sbatch", "--version"]).stdout
    assert bool(ended.returncode) is refuses, ended.stderr
    if refuses:
        assert "Requested node configuration is not available" in ended.stderr
        return
    job_id = ended.stdout.strip()
    scripts.wait_for_states(job_id, "PENDING")
    assert "PartitionConfig" in scripts.csub("queue").stdout


# No Slurm, or none that answers ------------------------------------------------------------------


def test_slurm_without_a_configuration_is_said_so(scripts: CsubUser) -> None:
    environment = {**scripts.environment}
    del environment["SLURM_CONF"]
    if Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this machine has a Slurm configuration of its own")
    ended = subprocess.run(
        ["csub", "ok.sh"], env=environment, cwd=scripts.home, capture_output=True, text=True,
        check=False, **scripts.identity,
    )  # fmt: skip
    assert ended.stderr == (
        "csub: error: Slurm is installed but has no configuration here: set SLURM_CONF, or run "
        "without Slurm with csub --local\n"
    )
    assert (ended.returncode, ended.stdout) == (4, "")
    assert list_state(scripts) == set()


@pytest.fixture(scope="module")
def silent_cluster() -> Iterator[Sandbox]:
    """A cluster whose controller is down, with one pack of before."""
    with running_sandbox(nodes=1, extra_conf=("MessageTimeout=2",)) as sandbox:
        yield sandbox


@pytest.mark.smoke
def test_with_the_controller_down_nothing_changes_and_csub_says_why(
    silent_cluster: Sandbox, accounts: tuple[str, ...]
) -> None:
    with user_of(silent_cluster, accounts[0]) as user:
        user.script("ok.sh", "exit 0")
        job_id = user.submit(*PACK, "--hold", "ok.sh", "ok.sh")
        silent_cluster.stop_controller()
        try:
            before = list_state(user)
            for words in (("ok.sh",), (*PACK, "ok.sh", "ok.sh"), ("cancel", job_id)):
                ended = user.run(["csub", *words], check=False)
                assert ended.stderr.startswith("csub: error: Slurm's controller does not answer: ")
                assert ended.stderr.endswith(
                    ": nothing was changed; try again later, scontrol ping shows when it is back\n"
                )
                assert ended.stderr.count("\n") == 1
                assert (ended.returncode, ended.stdout) == (4, "")
                assert list_state(user) == before
            shown = user.run(["csub", "queue"], check=False)
            assert shown.returncode == 4
            assert f"{job_id}/2" in shown.stdout
            assert shown.stderr.startswith("csub: error: states are as the packs last wrote them: ")
        finally:
            silent_cluster.start_controller()
        user.wait_for_states(job_id, "PENDING")


# The state directory -----------------------------------------------------------------------------


@pytest.mark.smoke
@needs_root
@pytest.mark.parametrize("words", [("ok.sh",), (*PACK, "ok.sh", "ok.sh")], ids=["lone", "pack"])
def test_a_state_directory_that_cannot_be_written_is_named(
    scripts: CsubUser, words: tuple[str, ...]
) -> None:
    closed = scripts.home / "closed"
    closed.mkdir(mode=0o755)
    put_state_at(scripts, closed / "state")
    check_refused(
        scripts, words, 6,
        f"cannot make directory {closed / 'state'}: Permission denied: set state_dir in the "
        "settings to a directory you may write",
    )  # fmt: skip


@needs_root
def test_a_state_directory_of_somebody_else_is_not_used(scripts: CsubUser) -> None:
    foreign = scripts.home / "foreign"
    for name in ("", "packs", "open", "jobs", "making"):
        (foreign / name).mkdir()
    put_state_at(scripts, foreign)
    refused = (
        f"the state directory {foreign} belongs to root, you are {scripts.name}: you can read it, "
        "and only root can change it; for jobs of your own, set state_dir in the settings, or "
        "XDG_STATE_HOME, to a directory of yours"
    )
    check_refused(scripts, ("ok.sh",), 6, refused)
    foreign.chmod(0o700)
    check_refused(scripts, ("ok.sh",), 6, refused)
    unreadable = f"cannot read {foreign / 'open'}: Permission denied"
    check_refused(scripts, ("queue",), 6, unreadable)


@pytest.fixture
def small_disk(scripts: CsubUser) -> Iterator[CsubUser]:
    """A user whose state lies on a file system of 256 KB."""
    with mounting_small_disk(scripts) as user:
        yield user


@needs_root
def test_members_of_a_running_pack_outlive_a_full_disk(small_disk: CsubUser) -> None:
    user = small_disk
    user.script("a.sh", "until [ -e end ]; do sleep 0.1; done; exit 3")
    job_id = user.submit(*PACK, "a.sh", "a.sh")
    user.wait_for_states(job_id, "RUNNING")
    filler = user.home / "disk" / "filler"
    filler.write_bytes(b"")
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    user.script("end", "")
    (pack,) = (user.home / "disk" / "state" / "packs").iterdir()
    pid = json.loads((pack / "runner.json").read_text())["pid"]
    records = [path / "run.1.1.exit.tmp" for path in pack.glob("members/*")]
    wait_until(lambda: all(path.exists() for path in records), "the members have ended")
    assert Path(f"/proc/{pid}").exists()
    filler.unlink()
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["FAILED", "FAILED"]
    assert [row["exit_code"] for row in rows.values()] == [{"code": 3, "signal": 0}] * 2


@needs_root
def test_after_a_full_disk_a_member_has_ended_when_it_ended(small_disk: CsubUser) -> None:
    user = small_disk
    user.script("a.sh", "until [ -e end ]; do sleep 0.1; done; date +%s.%N >ended; exit 3")
    job_id = user.submit("--gres=gpu:1", "--time=10", "a.sh")
    user.wait_for_states(job_id, "RUNNING")
    filler = user.home / "disk" / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    user.script("end", "")
    wait_until(lambda: user.output("ended"), "the member ends")
    ended_at = float(user.output("ended"))
    wait_until(lambda: time.time() > ended_at + 4, "the disk is full for some time")
    filler.unlink()
    row = user.finish(job_id)[1]
    assert (row["state"], row["exit_code"]) == ("FAILED", {"code": 3, "signal": 0})
    assert ended_at - 1 <= row["ended_at"] <= ended_at + 3


@needs_root
def test_a_state_directory_that_the_nodes_do_not_see_is_said_on_the_node(
    scripts: CsubUser,
) -> None:
    mount = scripts.home / "local"
    mount.mkdir()
    put_state_at(scripts, mount / "state")
    # All of csub's calls see a file system that slurmd does not.
    steps = (
        f"mount -t tmpfs -o mode=1777 none {mount} || exit 99\n"
        f"exec setpriv --reuid={scripts.uid} --regid={scripts.gid} --clear-groups bash -c '\n"
        "lone=$(csub --parsable ok.sh); csub wait $lone; echo lone=$lone status=$?\n"
        f"pack=$(csub {' '.join(PACK)} --parsable ok.sh ok.sh); csub wait $pack\n"
        "echo pack=$pack status=$?; csub show $pack'\n"
    )
    ended = subprocess.run(
        ["unshare", "--mount", "--propagation=private", "bash", "-c", steps],
        env=scripts.environment, cwd=scripts.home, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    if ended.returncode == 99:
        pytest.skip("nothing can be mounted here")
    words = dict(word.split("=") for word in ended.stdout.split() if word.count("=") == 1)
    said = scripts.output(f"slurm-{words['lone']}.out")
    assert said.startswith(f"csub: error: {mount}/state/packs/")
    assert said.endswith(
        ": set state_dir in the settings to a path that login and compute nodes share\n"
    )
    state = scripts.run(["scontrol", "-o", "show", "job", words["lone"]]).stdout
    assert "ExitCode=6:0" in state
    # Not even the pack's log can be written there: the reader says what that means.
    assert "FAILED" in ended.stdout
    why = "Slurm could not start its batch script: do the compute nodes see the state directory?"
    assert why in ended.stdout
    assert "Traceback" not in ended.stderr


# Damaged files -----------------------------------------------------------------------------------


def test_a_runner_refuses_a_pack_that_it_cannot_read(scripts: CsubUser) -> None:
    job_id = scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")
    pack = pack_directory(scripts, job_id)
    (pack / "pack.json").write_bytes(b"{")
    scripts.run(["scontrol", "release", job_id])
    asked = ["squeue", "-h", "-j", job_id, "--states=all", "-o", "%T"]
    wait_until(lambda: scripts.run(asked).stdout == "FAILED\n", "the pack fails")
    assert "ExitCode=6:0" in scripts.run(["scontrol", "-o", "show", "job", job_id]).stdout
    log = (pack / "pack.log").read_text()
    assert f"csub: error: {pack / 'pack.json'} is damaged (" in log
    assert "Traceback" not in log
