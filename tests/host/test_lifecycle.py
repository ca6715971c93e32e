"""Root's hooks with slurmd's part played: what they do, in any order, and for whom."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_colloc.host.lifecycle import UNSAFE_PROLOG
from slurm_colloc.host.mps.daemon_limits import DAEMON_GID
from slurm_colloc.host.system.control_groups import NAME, read_hierarchies
from slurm_colloc.host.system.node_processes import identify, is_alive

from .hook_node import (
    EXCLUSIVE_PROCESS,
    NOBODY,
    NODE,
    OTHER,
    PATIENCE_S,
    HookNode,
    check_clean,
)

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]


# -- as it should be ------------------------------------------------------------------------------


def test_prolog_and_epilog_leave_the_gpu_as_it_was(bed: HookNode) -> None:
    before = bed.snapshot()
    ended = bed.prolog()
    assert (ended.status, ended.audit["action"], ended.audit["outcome"]) == (0, "prepared", "")
    setup = bed.setup()
    [gpu] = setup["gpus"]
    assert gpu == bed.node.read_gpus()[0].uuid
    assert setup["mode"] == "mps"
    assert setup["notes"] == []
    peer = bed.peer()
    assert (peer.uid, peer.gid) == (NOBODY, DAEMON_GID)
    session = Path(f"/proc/{peer.pid}/stat").read_text().rpartition(")")[2].split()[3]
    assert int(session) == peer.pid
    for descriptor in Path(f"/proc/{peer.pid}/fd").iterdir():
        # It may just have closed one.
        with contextlib.suppress(FileNotFoundError):
            opened = str(descriptor.readlink())
            assert "/jobs/" not in opened
            assert not opened.endswith("/lock") or "/0/" in opened
    for hierarchy in read_hierarchies():
        [group] = Path(hierarchy.mount, NAME).glob(f"{NODE}-11-*")
        assert str(peer.pid) in (group / "cgroup.procs").read_text().split()
    ended = bed.epilog()
    assert (ended.status, ended.audit["action"], ended.audit["outcome"]) == (0, "undone", "")
    assert identify(peer.pid) is None
    assert bed.snapshot() == before
    check_clean(bed)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """A directory below which nothing can be written for a while, not even by root."""
    mount = ["mount", "--rbind", str(path), str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-R", "-l", str(path)], check=True)


def test_the_daemon_ends_and_the_node_is_unfit_where_roots_directory_cannot_be_written(
    bed: HookNode,
) -> None:
    assert bed.prolog().audit["action"] == "prepared"
    daemon = identify(bed.peer().pid)
    assert daemon is not None
    with read_only(bed.run):
        ended = bed.epilog()
        assert not is_alive(daemon)
        assert ended.status == 1
        assert "its checkpoint cannot be worked on" in ended.audit["outcome"]
        assert "Read-only file system" in ended.audit["outcome"]
        # A job for which nothing was prepared has nothing to fear from it.
        assert bed.epilog("12").status == 0
    ended = bed.epilog()
    assert (ended.status, ended.audit["outcome"]) == (0, "")
    check_clean(bed)


def test_without_the_file_of_the_locks_the_daemon_ends_all_the_same(bed: HookNode) -> None:
    bed.prolog()
    daemon = identify(bed.peer().pid)
    assert daemon is not None
    (bed.run / "lock").unlink()
    ended = bed.epilog()
    assert not is_alive(daemon)
    assert ended.status == 1
    assert "lock cannot be opened: No such file or directory" in ended.audit["outcome"]


def test_slurmds_kill_of_the_hooks_process_group_does_not_reach_the_daemon(bed: HookNode) -> None:
    hook = subprocess.Popen(
        bed.argv("prolog"), env=bed.environment("11"), start_new_session=True, cwd="/"
    )
    assert hook.wait(PATIENCE_S) == 0
    with pytest.raises(ProcessLookupError):
        os.killpg(hook.pid, signal.SIGKILL)
    daemon = identify(bed.peer().pid)
    assert daemon is not None
    bed.epilog()
    check_clean(bed)


def test_a_daemon_for_each_gpu_where_the_token_says_so(bed: HookNode) -> None:
    bed.prolog(SLURM_JOB_GPUS="0,1", SLURM_JOB_COMMENT="[csub/1 mps gpus=each]")
    setup = bed.setup()
    assert [daemon["gpus"] for daemon in setup["daemons"]] == [[gpu] for gpu in setup["gpus"]]
    assert len({bed.peer(name=name).pid for name in ("0", "1")}) == 2
    bed.epilog()
    bed.prolog(SLURM_JOB_GPUS="1,0")
    setup = bed.setup()
    [daemon] = setup["daemons"]
    assert daemon["gpus"] == setup["gpus"] == [g.uuid for g in bed.node.read_gpus()][::-1]
    bed.epilog()
    check_clean(bed)


def test_status_tells_what_is_prepared(bed: HookNode) -> None:
    assert bed.command("status")["jobs"] == []
    bed.prolog()
    [job] = bed.command("status")["jobs"]
    assert (job["job_id"], job["phase"], job["daemon_pids"]) == ("11", "ready", [bed.peer().pid])
    bed.epilog()
    assert bed.command("status")["jobs"] == []


# -- in any order ---------------------------------------------------------------------------------


def test_a_second_prolog_finds_all_done(bed: HookNode) -> None:
    bed.prolog()
    first = bed.peer()
    ended = bed.prolog()
    assert (ended.status, ended.audit["outcome"]) == (0, "it was prepared already")
    assert bed.peer() == first
    bed.epilog()
    check_clean(bed)


def test_a_requeued_job_without_an_epilog_in_between_gets_a_fresh_daemon(bed: HookNode) -> None:
    bed.prolog()
    first = identify(bed.peer().pid)
    assert first is not None
    ended = bed.prolog(SLURM_JOB_RESTART_COUNT="1", SLURM_JOB_GPUS="1")
    assert ended.audit["action"] == "prepared"
    assert not is_alive(first)
    assert bed.setup()["gpus"] == [bed.node.read_gpus()[1].uuid]
    bed.epilog()
    check_clean(bed)


def test_epilogs_without_a_prolog_and_after_another_do_nothing(bed: HookNode) -> None:
    assert bed.epilog().status == 0
    assert not bed.run.exists()
    bed.prolog()
    assert bed.epilog().audit["action"] == "undone"
    again = bed.epilog()
    assert (again.status, again.audit) == (0, {})
    check_clean(bed)


def test_an_epilog_without_a_credential_undoes_by_the_jobs_number_alone(bed: HookNode) -> None:
    bed.prolog()
    ended = bed.hook(
        "epilog",
        "11",
        SLURM_JOB_UID="0",
        SLURM_JOB_GID=None,
        SLURM_JOB_COMMENT=None,
        SLURM_JOB_PARTITION=None,
        SLURM_JOB_GPUS=None,
    )
    assert (ended.status, ended.audit["action"]) == (0, "undone")
    check_clean(bed)


def test_hooks_of_one_job_at_the_same_moment_do_not_disturb_each_other(bed: HookNode) -> None:
    with ThreadPoolExecutor(4) as pool:
        commands = ["prolog", "epilog", "prolog", "epilog"]
        ended = list(pool.map(lambda command: bed.hook(command, "11").status, commands))
    assert ended == [0, 0, 0, 0]
    bed.epilog()
    check_clean(bed)


def test_hooks_of_two_jobs_at_the_same_moment(bed: HookNode) -> None:
    def start(job_id: str, gpu: str, uid: int) -> int:
        return bed.prolog(
            job_id, SLURM_JOB_GPUS=gpu, SLURM_JOB_UID=str(uid), SLURM_JOB_GID=str(uid)
        ).status

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(start, ("11", "12"), "01", (NOBODY, OTHER))) == [0, 0]
    assert (bed.peer("11").uid, bed.peer("12").uid) == (NOBODY, OTHER)
    with ThreadPoolExecutor(2) as pool:
        assert [e.status for e in pool.map(bed.epilog, ("11", "12"))] == [0, 0]
    check_clean(bed)


# -- rebooted, lost, held -------------------------------------------------------------------------


def test_after_a_reboot_files_go_and_no_process_is_touched(bed: HookNode) -> None:
    bed.write_policy(exclusive_process=True)
    bed.prolog()
    daemon = identify(bed.peer().pid)
    assert daemon is not None
    bed.change_checkpoint(boot="another")
    told = bed.command("recover")
    assert told["status"] == 0
    [job] = told["jobs"]
    assert (job["job"], job["reason"], job["undone"]) == ("11", "the node has been rebooted", True)
    # Its pid could be anybody's by now, and so could the compute mode.
    assert is_alive(daemon)
    assert bed.node.read_gpus()[0].compute_mode == EXCLUSIVE_PROCESS
    assert not (bed.run / "11").exists()


def test_recover_leaves_alone_what_may_be_alive_and_what_is_not_ours(bed: HookNode) -> None:
    bed.prolog()
    stranger = bed.run / "notes"
    stranger.mkdir()
    told = bed.command("recover")
    assert (told["status"], told["jobs"][0]["undone"]) == (0, None)
    assert told["jobs"][0]["reason"] == "its job may be alive"
    assert bed.peer().uid == NOBODY
    assert stranger.is_dir()
    stranger.rmdir()
    bed.epilog()
    check_clean(bed)


def test_a_gpu_that_another_job_holds_is_refused(bed: HookNode) -> None:
    bed.prolog("11")
    ended = bed.prolog("12", SLURM_JOB_UID=str(OTHER), SLURM_JOB_GID=str(OTHER))
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert (bed.setup("12")["mode"], bed.setup("12")["daemons"]) == ("", [])
    assert bed.setup("12")["reason"].startswith("job 11 still holds GPU-")
    assert bed.peer("11").uid == NOBODY
    assert bed.epilog("12").status == 0
    bed.epilog("11")
    check_clean(bed)


def test_a_gpu_of_a_dead_job_is_cleared_for_the_next(bed: HookNode) -> None:
    bed.prolog("11")
    dead = identify(bed.peer("11").pid)
    assert dead is not None
    bed.change_checkpoint("11", made_at=time.time() - 3600)
    ended = bed.prolog("12")
    assert ended.audit["action"] == "prepared"
    assert [job["job"] for job in ended.audit["recovered"]] == ["11"]
    assert not is_alive(dead)
    bed.epilog("12")
    check_clean(bed)


# -- who may have it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "[csub/1 mps] ",
        "[csub/1 mps]x",
        "[csub/2 mps]",
        "[csub/1 mps",
        "[csub/1 off]",
        "x" * 2000,
    ],
)
def test_a_comment_that_asks_for_nothing_gets_nothing(bed: HookNode, comment: str) -> None:
    ended = bed.prolog(SLURM_JOB_COMMENT=comment)
    assert (ended.status, ended.audit["action"]) == (0, "none")
    assert not bed.run.exists()


@pytest.mark.parametrize(
    ("policy", "variables", "reason"),
    [
        ({"partitions": ["cpu"]}, {}, "leaves out this partition"),
        ({"accounts": ["physics"]}, {}, "leaves out this account"),
        ({"modes": []}, {}, "has no mode mps"),
        (
            {"modes": []},
            {"SLURM_JOB_COMMENT": "[csub/1 mig=3g+2g]"},
            "does not let jobs divide GPUs by MIG",
        ),
        ({"max_gpus": 1}, {"SLURM_JOB_GPUS": "0,1"}, "takes 1 GPUs at most"),
        ({}, {"SLURM_JOB_UID": "0"}, "for ordinary users only"),
        ({}, {"SLURM_JOB_GID": None}, "for ordinary users only"),
    ],
)
def test_what_the_policy_denies_is_told_to_the_job(
    bed: HookNode, policy: dict[str, object], variables: dict[str, str | None], reason: str
) -> None:
    # Strict is about the node's faults, not about this.
    bed.write_policy(strict=True, **policy)
    ended = bed.hook("prolog", "11", **variables)
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert reason in bed.setup()["reason"]
    assert bed.setup()["daemons"] == []
    assert bed.list_programs() == []
    bed.epilog()
    check_clean(bed)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"SLURM_JOB_GPUS": None}, "the job has no GPU on this node"),
        ({"SLURM_JOB_GPUS": "7"}, "NVML shows 0 GPUs with minor number 7"),
        ({"SLURM_JOB_GPUS": "0,0"}, "in a way that is not understood"),
        ({"SLURM_JOB_GPUS": "$(id)"}, "in a way that is not understood"),
    ],
)
def test_gpus_that_cannot_be_told_are_not_touched(
    bed: HookNode, variables: dict[str, str | None], reason: str
) -> None:
    ended = bed.hook("prolog", "11", **variables)
    assert ended.status == 0
    assert reason in bed.setup()["reason"]
    bed.epilog()
    bed.write_policy(strict=True)
    assert bed.hook("prolog", "11", **variables).status == UNSAFE_PROLOG
    bed.epilog()
    check_clean(bed)


def test_one_switch_turns_the_prolog_off_and_leaves_the_epilog_on(bed: HookNode) -> None:
    bed.prolog("11")
    bed.write_policy(enabled=False)
    ended = bed.prolog("12", SLURM_JOB_GPUS="1")
    assert (ended.status, ended.audit["outcome"]) == (0, "switched off by the policy")
    assert not (bed.run / "12").exists()
    assert bed.epilog("11").audit["action"] == "undone"
    check_clean(bed)


@pytest.mark.parametrize("text", ["enable = true", "\x00", None])
def test_a_policy_that_cannot_be_believed_prepares_nothing_and_undoes_all(
    bed: HookNode, text: str | None
) -> None:
    bed.prolog("11")
    if text is None:
        bed.policy.unlink()
    else:
        bed.policy.write_text(text)
    assert bed.prolog("12", SLURM_JOB_GPUS="1").status == 0
    assert not (bed.run / "12").exists()
    assert bed.epilog("11").status == 0
    check_clean(bed)
