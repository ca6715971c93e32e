"""Root's hooks with slurmd's part played: what each fault costs, and that nothing is left."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_colloc.host.control_groups import NAME, read_hierarchies
from slurm_colloc.host.lifecycle import UNSAFE_PROLOG
from slurm_colloc.host.mps_control import read_peer
from slurm_colloc.host.processes import identify, is_alive
from slurm_colloc.sandbox.simgpu.build import NoCompiler
from slurm_colloc.sandbox.simgpu.install import make_simulation, simulation_environment
from slurm_colloc.sandbox.simgpu.models import H200

from .hook_bed import COMMENT, NOBODY, NODE, OTHER, PATIENCE_S, Bed

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

FREEZER = Path("/sys/fs/cgroup/freezer")
DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS = 0, 2, 3


@pytest.fixture(scope="module")
def simulation() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="hk", dir="/var/tmp"))
    home.chmod(0o755)
    try:
        make_simulation(home / "sim", {NODE: [H200, H200]})
        yield home / "sim"
    except NoCompiler as problem:
        pytest.skip(str(problem))
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def bed(short_directory: Path, simulation: Path) -> Iterator[Bed]:
    found = Bed(short_directory, simulation)
    found.write_policy()
    found.fail_nvml()
    for gpu in found.node.read_gpus():
        set_mode(found, gpu.nvml_index, DEFAULT)
    yield found
    found.end_all()


def set_mode(bed: Bed, nvml_index: int, mode: int) -> None:
    """Set a compute mode as an administrator would."""
    gpu = bed.node.read_gpus()[nvml_index]
    bed.node.write_gpu(dataclasses.replace(gpu, compute_mode=mode))


def check_clean(bed: Bed) -> None:
    assert bed.list_left() == []


# -- as it should be ------------------------------------------------------------------------------


def test_prolog_and_epilog_leave_the_gpu_as_it_was(bed: Bed) -> None:
    before = bed.snapshot()
    ended = bed.prolog()
    assert (ended.status, ended.audit["action"], ended.audit["outcome"]) == (0, "prepared", "")
    setup = bed.setup()
    [gpu] = setup["gpus"]
    assert gpu == bed.node.read_gpus()[0].uuid
    assert setup["mode"] == "mps"
    assert setup["notes"] == []
    peer = bed.peer()
    assert (peer.uid, peer.gid) == (NOBODY, NOBODY)
    session = Path(f"/proc/{peer.pid}/stat").read_text().rpartition(")")[2].split()[3]
    assert int(session) == peer.pid
    for descriptor in Path(f"/proc/{peer.pid}/fd").iterdir():
        assert "/jobs/" not in str(descriptor.readlink())
        assert not str(descriptor.readlink()).endswith("/lock") or "/0/" in str(
            descriptor.readlink()
        )
    for mount in read_hierarchies():
        [group] = Path(mount, NAME).glob(f"{NODE}-11-*")
        assert str(peer.pid) in (group / "cgroup.procs").read_text().split()
    ended = bed.epilog()
    assert (ended.status, ended.audit["action"], ended.audit["outcome"]) == (0, "undone", "")
    assert identify(peer.pid) is None
    assert bed.snapshot() == before
    check_clean(bed)


def test_slurmds_kill_of_the_hooks_process_group_does_not_reach_the_daemon(bed: Bed) -> None:
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


def test_a_daemon_for_each_gpu_where_the_token_says_so(bed: Bed) -> None:
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


def test_status_tells_what_is_prepared(bed: Bed) -> None:
    assert bed.command("status")["jobs"] == []
    bed.prolog()
    [job] = bed.command("status")["jobs"]
    assert (job["job_id"], job["phase"], job["daemon_pids"]) == ("11", "ready", [bed.peer().pid])
    bed.epilog()
    assert bed.command("status")["jobs"] == []


# -- in any order ---------------------------------------------------------------------------------


def test_a_second_prolog_finds_all_done(bed: Bed) -> None:
    bed.prolog()
    first = bed.peer()
    ended = bed.prolog()
    assert (ended.status, ended.audit["outcome"]) == (0, "it was prepared already")
    assert bed.peer() == first
    bed.epilog()
    check_clean(bed)


def test_a_requeued_job_without_an_epilog_in_between_gets_a_fresh_daemon(bed: Bed) -> None:
    bed.prolog()
    first = identify(bed.peer().pid)
    assert first is not None
    ended = bed.prolog(SLURM_JOB_RESTART_COUNT="1", SLURM_JOB_GPUS="1")
    assert ended.audit["action"] == "prepared"
    assert not is_alive(first)
    assert bed.setup()["gpus"] == [bed.node.read_gpus()[1].uuid]
    bed.epilog()
    check_clean(bed)


def test_epilogs_without_a_prolog_and_after_another_do_nothing(bed: Bed) -> None:
    assert bed.epilog().status == 0
    assert not bed.run.exists()
    bed.prolog()
    assert bed.epilog().audit["action"] == "undone"
    again = bed.epilog()
    assert (again.status, again.audit) == (0, {})
    check_clean(bed)


def test_an_epilog_without_a_credential_undoes_by_the_jobs_number_alone(bed: Bed) -> None:
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


def test_hooks_of_one_job_at_the_same_moment_do_not_disturb_each_other(bed: Bed) -> None:
    with ThreadPoolExecutor(4) as pool:
        commands = ["prolog", "epilog", "prolog", "epilog"]
        ended = list(pool.map(lambda command: bed.hook(command, "11").status, commands))
    assert ended == [0, 0, 0, 0]
    bed.epilog()
    check_clean(bed)


def test_hooks_of_two_jobs_at_the_same_moment(bed: Bed) -> None:
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


def kill_at(bed: Bed, command: str, call: str, count: int) -> bool:
    """Run a hook that is killed at a system call of its own; whether it came so far."""
    ended = subprocess.run(
        [
            *("strace", "-o", "/dev/null", "-e", f"trace={call}"),
            *("-e", f"inject={call}:signal=KILL:when={count}", *bed.argv(command)),
        ],
        env=bed.environment("11"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), ended
    return ended.returncode != 0


# Every step that leaves something behind is one of these.
CALLS = ("mkdir,mkdirat", "rename,renameat,renameat2", "fchown", "fallocate", "connect", "wait4")


def require_strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")


@pytest.mark.parametrize("call", CALLS)
def test_a_prolog_killed_at_any_step_is_undone_by_the_epilog(bed: Bed, call: str) -> None:
    require_strace()
    before = bed.snapshot()
    bed.write_policy(exclusive_process=True)
    kills = 0
    for count in itertools.count(1, 1 if call != "wait4" else 2):
        killed = kill_at(bed, "prolog", call, count)
        ended = bed.epilog()
        assert ended.status == 0, ended.audit
        assert bed.list_left() == [], (call, count, ended.audit)
        assert bed.snapshot() == before, (call, count)
        if not killed:
            break
        kills += 1
    assert kills >= 1


@pytest.mark.parametrize("call", ["mkdir,mkdirat", "rename,renameat,renameat2", "connect"])
def test_a_prolog_killed_at_any_step_can_be_run_again(bed: Bed, call: str) -> None:
    require_strace()
    kills = 0
    for count in itertools.count(1):
        killed = kill_at(bed, "prolog", call, count)
        ended = bed.prolog()
        assert (ended.status, ended.audit["action"]) == (0, "prepared"), (call, count, ended.audit)
        assert len(bed.list_programs()) <= 2
        assert bed.peer().uid == NOBODY
        bed.epilog()
        check_clean(bed)
        if not killed:
            break
        kills += 1
    assert kills >= 2


@pytest.mark.parametrize("call", ["unlink,unlinkat", "rmdir", "pidfd_send_signal", "wait4"])
def test_an_epilog_killed_at_any_step_is_finished_by_the_next(bed: Bed, call: str) -> None:
    require_strace()
    before = bed.snapshot()
    bed.write_policy(exclusive_process=True)
    kills = 0
    for count in itertools.count(1):
        bed.prolog()
        if call == "pidfd_send_signal":
            os.kill(bed.peer().pid, signal.SIGSTOP)
        killed = kill_at(bed, "epilog", call, count)
        assert bed.epilog().status == 0
        assert bed.list_left() == [], (call, count)
        assert bed.snapshot() == before, (call, count)
        if not killed:
            break
        kills += 1
    assert kills >= 1


# -- rebooted, lost, held -------------------------------------------------------------------------


def test_after_a_reboot_files_go_and_no_process_is_touched(bed: Bed) -> None:
    bed.write_policy(exclusive_process=True)
    bed.prolog()
    daemon = identify(bed.peer().pid)
    assert daemon is not None
    bed.change_checkpoint(boot="another")
    state = bed.run / "11" / "0" / "state.json"
    state.write_text(state.read_text().replace(_boot(), "another"))
    told = bed.command("recover")
    assert told["status"] == 0
    [job] = told["jobs"]
    assert (job["job"], job["reason"], job["undone"]) == ("11", "the node has been rebooted", True)
    # Its pid could be anybody's by now, and so could the compute mode.
    assert is_alive(daemon)
    assert bed.node.read_gpus()[0].compute_mode == EXCLUSIVE_PROCESS
    assert not (bed.run / "11").exists()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_recover_leaves_alone_what_may_be_alive_and_what_is_not_ours(bed: Bed) -> None:
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


def test_a_gpu_that_another_job_holds_is_refused(bed: Bed) -> None:
    bed.prolog("11")
    ended = bed.prolog("12", SLURM_JOB_UID=str(OTHER), SLURM_JOB_GID=str(OTHER))
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert (bed.setup("12")["mode"], bed.setup("12")["daemons"]) == ("", [])
    assert bed.setup("12")["reason"].startswith("job 11 still holds GPU-")
    assert bed.peer("11").uid == NOBODY
    assert bed.epilog("12").status == 0
    bed.epilog("11")
    check_clean(bed)


def test_a_gpu_of_a_dead_job_is_cleared_for_the_next(bed: Bed) -> None:
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
def test_a_comment_that_asks_for_nothing_gets_nothing(bed: Bed, comment: str) -> None:
    ended = bed.prolog(SLURM_JOB_COMMENT=comment)
    assert (ended.status, ended.audit["action"]) == (0, "none")
    assert not bed.run.exists()


@pytest.mark.parametrize(
    ("policy", "variables", "reason"),
    [
        ({"partitions": ["cpu"]}, {}, "leaves out this partition"),
        ({"accounts": ["physics"]}, {}, "leaves out this account"),
        ({"modes": []}, {}, "has no mode mps"),
        ({}, {"SLURM_JOB_COMMENT": "[csub/1 mig=3g+2g]"}, "has no mode mig"),
        ({"max_gpus": 1}, {"SLURM_JOB_GPUS": "0,1"}, "takes 1 GPUs at most"),
        ({}, {"SLURM_JOB_UID": "0"}, "for ordinary users only"),
        ({}, {"SLURM_JOB_GID": None}, "for ordinary users only"),
    ],
)
def test_what_the_policy_denies_is_told_to_the_job(
    bed: Bed, policy: dict[str, object], variables: dict[str, str | None], reason: str
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
    bed: Bed, variables: dict[str, str | None], reason: str
) -> None:
    ended = bed.hook("prolog", "11", **variables)
    assert ended.status == 0
    assert reason in bed.setup()["reason"]
    bed.epilog()
    bed.write_policy(strict=True)
    assert bed.hook("prolog", "11", **variables).status == UNSAFE_PROLOG
    bed.epilog()
    check_clean(bed)


def test_one_switch_turns_the_prolog_off_and_leaves_the_epilog_on(bed: Bed) -> None:
    bed.prolog("11")
    bed.write_policy(enabled=False)
    ended = bed.prolog("12", SLURM_JOB_GPUS="1")
    assert (ended.status, ended.audit["outcome"]) == (0, "switched off by the policy")
    assert not (bed.run / "12").exists()
    assert bed.epilog("11").audit["action"] == "undone"
    check_clean(bed)


@pytest.mark.parametrize("text", ["enable = true", "\x00", None])
def test_a_policy_that_cannot_be_believed_prepares_nothing_and_undoes_all(
    bed: Bed, text: str | None
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


# -- hostile users --------------------------------------------------------------------------------


def test_links_that_a_user_has_planted_are_not_followed(bed: Bed) -> None:
    secret = bed.home / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    kept = bed.home / "kept"
    (kept / "inside").mkdir(parents=True)
    (kept / "inside" / "file").write_text("stays")
    bed.prolog()
    for name in ("p", "l"):
        place = bed.run / "11" / "0" / name
        (place / "control.log").unlink(missing_ok=True)
        (place / "control.log").symlink_to(secret)
        os.link(secret, place / "server.log")
        (place / "directory").symlink_to(kept)
        (place / "deep").mkdir()
        (place / "deep" / "up").symlink_to("/")
        for path in (place, *place.rglob("*")):
            if not path.is_symlink() and path.name != "server.log":
                os.chown(path, NOBODY, NOBODY)
    ended = bed.epilog()
    assert ended.status == 0
    assert secret.read_text() == "of root"
    assert (kept / "inside" / "file").read_text() == "stays"
    assert secret.stat().st_uid == 0
    check_clean(bed)


def test_a_run_directory_that_a_user_has_made_beforehand_is_not_used(bed: Bed) -> None:
    bed.run.mkdir()
    os.chown(bed.run, NOBODY, NOBODY)
    ended = bed.prolog()
    assert (ended.status, ended.audit["action"]) == (0, "none")
    assert "is not root's alone" in ended.audit["outcome"]
    assert bed.epilog().status == 0
    assert list(bed.run.iterdir()) == []
    bed.write_policy(strict=True)
    assert bed.prolog().status == UNSAFE_PROLOG


@pytest.mark.parametrize("kind", ["directory", "link", "file"])
def test_something_in_the_place_of_a_jobs_directory(bed: Bed, kind: str) -> None:
    target = bed.home / "target"
    target.mkdir()
    (target / "file").write_text("stays")
    bed.prolog("12")
    bed.epilog("12")
    place = bed.run / "11"
    if kind == "link":
        place.symlink_to(target)
    elif kind == "file":
        place.write_text("x")
    else:
        (place / "0" / "p").mkdir(parents=True)
        os.chown(place / "0" / "p", OTHER, OTHER)
    ended = bed.prolog()
    assert ended.status == 0
    assert ended.audit["action"] == ("prepared" if kind == "directory" else "none")
    assert (target / "file").read_text() == "stays"
    assert bed.epilog().status == 0
    assert bed.list_programs() == []


def test_another_user_listens_where_the_daemon_should(bed: Bed) -> None:
    bed.prolog()
    os.kill(bed.peer().pid, signal.SIGKILL)
    pipe = bed.run / "11" / "0" / "p"
    (pipe / "control").unlink()
    program = (
        "import socket, sys, time\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind(sys.argv[1]); s.listen(); print('up', flush=True); time.sleep(600)\n"
    )
    impostor = subprocess.Popen(
        [sys.executable, "-c", program, str(pipe / "control")],
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    try:
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == b"up\n"
        ended = bed.epilog()
        # It is no daemon of ours: left alone, and waited for no longer than any other.
        assert ended.status == 0
        assert impostor.poll() is None
        check_clean(bed)
    finally:
        impostor.kill()
        impostor.wait()
        assert impostor.stdout is not None
        impostor.stdout.close()


@pytest.mark.parametrize("size_kb", [4, 16, 64, 200, 264, 300])
def test_a_full_run_directory_costs_the_job_nothing(bed: Bed, size_kb: int) -> None:
    bed.run.mkdir()
    both = (
        f"mount -t tmpfs -o size={size_kb}k,mode=755 tmpfs {bed.run} || exit 99\n"
        f"head -c {max(0, size_kb - 12)}k /dev/zero > {bed.run}/notes\n"
        f"{_quote(bed.argv('prolog'))} || exit 98\n"
        f"{_quote(bed.argv('epilog'))} || exit 97\n"
        f"rm {bed.run}/notes; ls -A {bed.run} {bed.run}/jobs\n"
    )
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", both],
        env=bed.environment("11"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if ended.returncode == 1 and "unshare" in ended.stderr:
        pytest.skip("no mount namespaces here")
    assert ended.returncode in (0, 2), (ended.returncode, ended.stderr, bed.read_audit())
    first = bed.read_audit()[0]
    assert (first["exit"], first["action"]) in ((0, "none"), (0, "told"))
    assert first["outcome"]
    assert "11" not in ended.stdout.split()
    assert "11.json" not in ended.stdout
    assert bed.list_programs() == []


def _quote(argv: list[str]) -> str:
    return " ".join(f"'{word}'" for word in argv)


# -- NVML and processes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("absent", "NVML cannot be used"),
        ("no-driver", "NVML cannot be used"),
        ("lie=uuid", "CUDA finds none of the GPUs"),
        ("hang=30", "no answer within 4 s"),
    ],
)
def test_without_a_true_word_of_nvml_nothing_is_prepared(bed: Bed, fault: str, words: str) -> None:
    before = bed.snapshot()
    bed.fail_nvml(fault)
    ended = bed.prolog()
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert words in bed.setup()["reason"]
    assert bed.list_programs() == []
    assert bed.epilog().status == 0
    bed.fail_nvml()
    assert bed.snapshot() == before
    check_clean(bed)


@pytest.mark.parametrize("fault", ["absent", "hang=30", "lie=uuid"])
def test_an_epilog_that_cannot_ask_nvml_undoes_the_rest_and_says_so(bed: Bed, fault: str) -> None:
    bed.prolog()
    bed.fail_nvml(fault)
    ended = bed.epilog()
    assert ended.status == 0
    assert any("was not checked" in note for note in ended.audit["notes"])
    check_clean(bed)


def test_the_compute_mode_is_set_back_or_the_node_is_not_fit(bed: Bed) -> None:
    bed.write_policy(exclusive_process=True)
    before = bed.snapshot()
    bed.prolog()
    assert [gpu.compute_mode for gpu in bed.node.read_gpus()] == [EXCLUSIVE_PROCESS, DEFAULT]
    assert bed.setup()["compute_mode"] == "EXCLUSIVE_PROCESS"
    bed.fail_nvml("absent")
    ended = bed.epilog()
    assert ended.status == 1
    assert "the compute mode of GPU-" in ended.audit["outcome"]
    assert bed.list_programs() == []
    # Nothing is forgotten: the next epilog, prolog or recover goes on.
    assert bed.checkpoint_path().exists()
    bed.fail_nvml()
    told = bed.command("recover")
    assert (told["status"], told["jobs"][0]["undone"]) == (0, True)
    assert bed.snapshot() == before
    check_clean(bed)


def test_a_compute_mode_that_somebody_else_has_set_is_left(bed: Bed) -> None:
    bed.write_policy(exclusive_process=True)
    bed.prolog()
    set_mode(bed, 0, PROHIBITED)
    ended = bed.epilog()
    assert ended.status == 0
    assert any("somebody else has set" in note for note in ended.audit["notes"])
    assert bed.node.read_gpus()[0].compute_mode == PROHIBITED
    check_clean(bed)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_daemon_that_is_dead_or_hangs_is_undone_all_the_same(bed: Bed, number: int) -> None:
    before = bed.snapshot()
    bed.prolog()
    os.kill(bed.peer().pid, number)
    ended = bed.epilog()
    assert ended.status == 0, ended.audit
    assert bed.snapshot() == before
    check_clean(bed)


def start_client(bed: Bed, job_id: str = "11") -> subprocess.Popen[bytes]:
    """A process of the job's that uses the GPU through its daemon, and is seen to."""
    environment = simulation_environment(bed.simulation, {"PATH": "/usr/bin:/bin"})
    client = subprocess.Popen(
        [str(bed.simulation / "bin" / "simgpu"), "run", "--seconds", "600"],
        env={
            **environment,
            "SLURMD_NODENAME": NODE,
            "CUDA_MPS_PIPE_DIRECTORY": str(bed.run / job_id / "0" / "p"),
            "CUDA_VISIBLE_DEVICES": bed.setup(job_id)["gpus"][0],
        },
        stdin=subprocess.DEVNULL,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    deadline = time.monotonic() + PATIENCE_S
    while not any(p.pid == client.pid and p.type == "M+C" for p in bed.node.read_processes()):
        assert client.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return client


def test_a_client_that_outlived_its_job_is_ended(bed: Bed) -> None:
    before = bed.snapshot()
    bed.prolog()
    client = start_client(bed)
    try:
        assert bed.epilog().status == 0
        assert client.wait(PATIENCE_S) != 0
    finally:
        client.kill()
        client.wait()
    assert bed.snapshot() == before
    check_clean(bed)


def test_a_client_that_cannot_be_killed_makes_the_node_unfit_until_it_has_gone(bed: Bed) -> None:
    if not (FREEZER / "tasks").exists():
        pytest.skip("needs the freezer of cgroup v1, where a process sits in state D")
    before = bed.snapshot()
    bed.prolog()
    client = start_client(bed)
    group = FREEZER / f"colloc-test-{client.pid}"
    group.mkdir()
    try:
        (group / "tasks").write_text(str(client.pid))
        (group / "freezer.state").write_text("FROZEN")
        ended = bed.epilog()
        assert ended.status == 1
        assert str(client.pid) in ended.audit["outcome"]
        assert bed.checkpoint_path().exists()
        # The next job of ours there is told, and starts without.
        told = bed.prolog("12")
        assert told.status == 0
        assert bed.setup("12")["mode"] == ""
        assert bed.epilog("12").status == 0
        assert bed.epilog().status == 1
    finally:
        (group / "freezer.state").write_text("THAWED")
        client.kill()
        client.wait(PATIENCE_S)
        group.rmdir()
    assert bed.epilog().status == 0
    assert bed.snapshot() == before
    check_clean(bed)


def test_a_user_who_keeps_the_daemon_busy_does_not_keep_the_epilog(bed: Bed) -> None:
    bed.prolog()
    pipe = str(bed.run / "11" / "0" / "p")
    environment = simulation_environment(bed.simulation, {"PATH": "/usr/bin:/bin"})
    busy = subprocess.Popen(
        [str(bed.simulation / "bin" / "nvidia-cuda-mps-control")],
        env={**environment, "SLURMD_NODENAME": NODE, "CUDA_MPS_PIPE_DIRECTORY": pipe},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
    )
    try:
        time.sleep(0.5)
        assert read_peer(pipe) is not None
        assert bed.epilog().status == 0
        check_clean(bed)
    finally:
        busy.kill()
        busy.wait()
        assert busy.stdin is not None
        busy.stdin.close()


def test_a_hook_that_runs_out_of_its_time_lets_the_job_start(bed: Bed) -> None:
    bed.write_policy(deadline_s=2.5, stop_s=2.0)
    bed.fail_nvml("hang=30")
    ended = bed.prolog()
    assert (ended.status, ended.audit["action"]) == (0, "told")
    assert "out of its time" in bed.setup()["reason"]
    bed.fail_nvml()
    assert bed.epilog().status == 0
    check_clean(bed)


def test_only_root_and_slurmd_may_call_it(bed: Bed) -> None:
    ended = subprocess.run(
        bed.argv("prolog"),
        env=bed.environment("11"),
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    ended = subprocess.run(
        bed.argv("epilog"), env={}, capture_output=True, text=True, cwd="/", check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert COMMENT not in ended.stderr
