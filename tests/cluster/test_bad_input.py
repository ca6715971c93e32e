"""Bad input and broken surroundings: one clear sentence, an exit code, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.sandbox.cluster import Sandbox

from .conftest import CsubUser, running_sandbox, user_of, wait_until

pytestmark = pytest.mark.slurm

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other owners need root")

PACK = ("pack", "--gres=gpu:1", "-c1", "--mem=100M", "--time=5")


def list_state(user: CsubUser) -> set[str]:
    """What a submission leaves: packs, job ids, marks, locks and unfinished files."""
    folders = [user.state / name for name in ("packs", "open", "jobs", "making")]
    left = {str(path) for folder in folders if folder.exists() for path in folder.iterdir()}
    return left | {str(path) for path in user.state.glob("*.tmp*")}


def list_jobs(user: CsubUser) -> list[str]:
    return user.run(["squeue", "-h", "--me", "-o", "%i"]).stdout.split()


def check_refused(user: CsubUser, words: tuple[str, ...], status: int, sentence: str) -> None:
    """csub says exactly this on standard error, and has changed nothing."""
    before, jobs = list_state(user), list_jobs(user)
    ended = user.run(["csub", *words], check=False)
    assert ended.stderr == f"csub: error: {sentence}\n"
    assert (ended.returncode, ended.stdout) == (status, "")
    assert list_state(user) == before
    assert list_jobs(user) == jobs


TIMES = "write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS, or UNLIMITED"
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
        4,
        f"sbatch: Memory specification can not be satisfied; {NOT_AVAILABLE}",
    ),
    "unknown GPU type": ((*PACK, "--gres=gpu:nosuch:1", "ok.sh"), 4, f"sbatch: {NOT_AVAILABLE}"),
    "unknown gres": (
        ("--gres=nosuch:1", "ok.sh"),
        4,
        "sbatch: Invalid generic resource (gres) specification",
    ),
    "malformed gres": (
        ("--gres=gpu:a:b:c", "ok.sh"),
        2,
        (
            "the command line: --gres=gpu:a:b:c: --gres=gpu:a:b:c: 'c' is no number of GPUs: write "
            "for instance gpu:1"
        ),
    ),
    "more GPU memory than stated is no size": (
        ("--gpu-mem=lots", "ok.sh"),
        2,
        (
            "the command line: --gpu-mem=lots: 'lots' is no GPU memory size: write a number and "
            "its unit, as in 20G or 800M"
        ),
    ),
    "unreadable script": (("secret.sh",), 2, "cannot read the script secret.sh: Permission denied"),
    "missing script": (
        ("missing.sh",),
        2,
        "cannot read the script missing.sh: No such file or directory: is it in this directory?",
    ),
    "one missing script of a pack": (
        (*PACK, "ok.sh", "missing.sh"),
        2,
        "cannot read the script missing.sh: No such file or directory: is it in this directory?",
    ),
    "directory as script": (("folder",), 2, "cannot read the script folder: Is a directory"),
    "directory as output": (
        ("--output=folder", "ok.sh"),
        2,
        (
            "the command line: --output=folder is a directory, and a file is needed: "
            "--output=folder/%x-%a.out names one in it"
        ),
    ),
    "empty script": (("empty.sh",), 2, "empty.sh: the batch script is empty"),
    "no interpreter line": (
        ("plain.sh",),
        2,
        (
            "plain.sh: this does not look like a batch script, for its first line does not begin "
            "with #! and the path of an interpreter: begin it for instance with #!/bin/bash, or "
            "give a command with --wrap"
        ),
    ),
    "DOS line ends": (
        ("dos.sh",),
        2,
        (
            "dos.sh:1: the batch script has DOS line breaks: convert it, for instance with: "
            "sed -i 's/\\r$//' dos.sh"
        ),
    ),
    "malformed value in a directive": (
        ("bad_time.sh",),
        2,
        f"bad_time.sh:3: --time=abc: 'abc' is no time limit: {TIMES}",
    ),
    "unknown directive": (
        ("bad_name.sh",),
        2,
        "bad_name.sh:2: --tiem is no sbatch option: did you mean --time?",
    ),
    "open quote in a directive": (
        ("bad_quote.sh",),
        2,
        "bad_quote.sh:2: the quote ' is never closed: close it on the same line",
    ),
    "heterogeneous job": (
        ("het.sh",),
        2,
        (
            "het.sh:2: #SBATCH hetjob asks for a heterogeneous job, which cannot be packed: submit "
            "it with sbatch"
        ),
    ),
    "heterogeneous job on the command line": (
        ("-n1", ":", "-n1", "ok.sh"),
        2,
        (
            "a ':' between options asks for a heterogeneous job, which cannot be packed: submit it "
            "with sbatch"
        ),
    ),
    "empty array": (
        ("--array=", "ok.sh"),
        2,
        "the command line: --array=: array '' names no task: write numbers or ranges, as in 0-7",
    ),
    "array backwards": (
        ("--array=5-1", "ok.sh"),
        2,
        "the command line: --array=5-1: array '5-1': the range 5-1 runs backwards",
    ),
    "time": (
        ("--time=1:2:3:4", "ok.sh"),
        2,
        f"the command line: --time=1:2:3:4: '1:2:3:4' is no time limit: {TIMES}",
    ),
    "host memory": (
        ("--mem=12Q", "ok.sh"),
        2,
        (
            "the command line: --mem=12Q: '12Q' is no host memory size: write a whole number and "
            "K, M, G or T, as in 16G"
        ),
    ),
    "signal": (
        ("--signal=NOPE@1", "ok.sh"),
        2,
        "the command line: --signal=NOPE@1: there is no signal 'NOPE'",
    ),
    "degree": (
        ("--degree=0", "ok.sh"),
        2,
        "the command line: --degree=0: a number of at least 1 is needed",
    ),
    "unknown option": (
        ("--gers=gpu:1", "ok.sh"),
        2,
        "--gers is no sbatch or csub option: did you mean --gres?",
    ),
    "uid": (
        ("--uid=0", "ok.sh"),
        2,
        (
            "the command line: csub cannot do --uid: a pack belongs to the user and group that "
            "call csub: submit it with sbatch"
        ),
    ),
    "clusters": (
        ("--clusters=other", "ok.sh"),
        2,
        (
            "the command line: csub follows the jobs of one cluster only: call it on a login node "
            "of the other cluster, or submit with sbatch"
        ),
    ),
    "dependency": (
        ("--dependency=nosuch", "ok.sh"),
        4,
        "sbatch: Batch job submission failed: Job dependency problem",
    ),
    "no such member": (
        ("show", "4711:3"),
        2,
        (
            "'4711:3' names neither a pack nor a member: write 4711 for all members of a "
            "submission, 4711/3 or 4711/2-5 for some, last for the newest submission, or all"
        ),
    ),
}


@pytest.fixture
def scripts(user: CsubUser) -> CsubUser:
    """A user with one good script and many bad ones."""
    user.script("ok.sh", "exit 0")
    (user.home / "folder").mkdir()
    for name, text in {
        "secret.sh": "#!/bin/sh\n",
        "empty.sh": "",
        "plain.sh": "echo hello\n",
        "dos.sh": "#!/bin/bash\r\necho hello\r\n",
        "bad_time.sh": "#!/bin/bash\n\n#SBATCH --time=abc\n",
        "bad_name.sh": "#!/bin/bash\n#SBATCH --tiem=5\n",
        "bad_quote.sh": "#!/bin/bash\n#SBATCH --job-name='a\n",
        "het.sh": "#!/bin/bash\n#SBATCH hetjob\n",
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


@pytest.mark.smoke
@pytest.mark.parametrize("command", ["show", "logs", "cancel", "wait"])
def test_unknown_and_malformed_ids_are_told_apart(user: CsubUser, command: str) -> None:
    for job_id in ("99999", "99999/1"):
        check_refused(
            user, (command, job_id), 7,
            f"csub has no job 99999 in {user.state}: csub queue --all lists what it knows; a plain "
            "Slurm job is seen with squeue",
        )  # fmt: skip
    for text in ("x", "1/", "1/x", "L", "1_2", ""):
        check_refused(
            user, (command, text), 2,
            f"{text!r} names neither a pack nor a member: write 4711 for all members of a "
            "submission, 4711/3 or 4711/2-5 for some, last for the newest submission, or all",
        )  # fmt: skip


@pytest.mark.parametrize("command", ["show", "logs", "cancel", "wait"])
def test_an_unknown_member_of_a_known_pack_is_not_found(scripts: CsubUser, command: str) -> None:
    job_id = scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")
    check_refused(
        scripts, (command, f"{job_id}/7"), 7,
        f"job {job_id} has no member 7: csub show {job_id} lists its 2 members",
    )  # fmt: skip


def test_a_queue_without_any_state_is_empty_and_asks_nobody(user: CsubUser) -> None:
    shown = user.run(["csub", "queue"], environment={"PATH": str(Path(sys.executable).parent)})
    assert shown.stdout == "MEMBER  NAME  STATE  MODE  NODE:GPU  TIME  LEFT  REASON\n"
    assert shown.stderr == ""
    assert not user.state.exists()


@pytest.mark.smoke
def test_one_call_asks_slurm_once_for_all_packs(scripts: CsubUser) -> None:
    folder = scripts.home / "bin"
    folder.mkdir()
    calls = scripts.home / "calls"
    for name in ("squeue", "scontrol", "sacct", "sinfo"):
        (folder / name).write_text(f'#!/bin/sh\necho {name} >>{calls}\nexec /usr/bin/{name} "$@"\n')
        (folder / name).chmod(0o755)
    calls.touch()
    os.chown(calls, scripts.uid, scripts.gid)
    held = [scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh") for _ in range(3)]
    ended = scripts.submit(*PACK, "ok.sh")
    scripts.finish(ended)
    scripts.extra["PATH"] = f"{folder}:{scripts.environment['PATH']}"
    shown = scripts.csub("queue").stdout
    assert all(f"{job_id}/2" in shown for job_id in held)
    assert calls.read_text() == "squeue\n"
    for words in (("show", *held), ("queue", "--all")):
        calls.write_text("")
        scripts.csub(*words)
        assert calls.read_text() == "squeue\n"


# No Slurm, or none that answers ------------------------------------------------------------------


@pytest.mark.smoke
def test_without_slurm_csub_says_so_and_names_the_way_out(scripts: CsubUser) -> None:
    path = {"PATH": str(Path(sys.executable).parent)}
    for words, program in ((("ok.sh",), "sbatch"), ((*PACK, "ok.sh", "ok.sh"), "sinfo")):
        ended = scripts.run(["csub", *words], check=False, environment=path)
        assert ended.stderr == (
            f"csub: error: there is no Slurm here: {program} is not installed or not in PATH: call "
            "csub where sbatch works, or run without Slurm with csub --local\n"
        )
        assert (ended.returncode, ended.stdout) == (4, "")
    assert list_state(scripts) == set()


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


def put_state_at(user: CsubUser, path: Path) -> None:
    settings = user.home / "settings.toml"
    settings.write_text(f'state_dir = "{path}"\n')
    user.extra["SLURM_COLLOC_SETTINGS"] = str(settings)


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


def test_a_file_in_the_place_of_the_state_directory_is_named(scripts: CsubUser) -> None:
    put_state_at(scripts, scripts.home / "ok.sh")
    for words in (("ok.sh",), ("queue",), ("queue", "--all"), ("show", "1")):
        ended = scripts.run(["csub", *words], check=False)
        folder = "open"
        assert ended.stderr == (
            f"csub: error: cannot read {scripts.home / 'ok.sh' / folder}: Not a directory\n"
        )
        assert ended.returncode == 6


@pytest.fixture
def small_disk(scripts: CsubUser) -> Iterator[CsubUser]:
    """A user whose state lies on a file system of 256 KB."""
    disk = scripts.home / "disk"
    disk.mkdir()
    argv = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        f"size=256k,uid={scripts.uid},mode=0700",
        "none",
        str(disk),
    ]
    if subprocess.run(argv, check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    put_state_at(scripts, disk / "state")
    try:
        yield scripts
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@needs_root
def test_a_disk_that_fills_at_any_write_leaves_nothing_and_submits_nothing(
    small_disk: CsubUser,
) -> None:
    user = small_disk
    state = user.home / "disk" / "state"
    user.run(["csub", "queue"])
    jobs = list_jobs(user)
    filler = user.home / "disk" / "filler"
    refused = 0
    for free_pages in range(64):
        # 64 pages of 4 KB: fill all but some of them.
        filler.write_bytes(b"")
        used = shutil.disk_usage(filler.parent)
        filler.write_bytes(b"x" * max(0, used.free - 4096 * free_pages))
        ended = user.run(["csub", *PACK, "ok.sh", "ok.sh"], check=False)
        if ended.returncode == 0:
            break
        refused += 1
        assert ended.returncode == 6
        assert ended.stderr.startswith("csub: error: cannot ")
        assert ended.stderr.endswith(
            ": No space left on device: the disk is full: make room, then try again; nothing was "
            "submitted half\n"
        )
        assert ended.stderr.count("\n") == 1
        # Only the rendered batch script is kept from one submission to the next, and for an hour
        # what Slurm has said of its QoS.
        left = [path.name for path in state.rglob("*") if path.is_file()]
        assert [n for n in left if not n.startswith("script.") and n != "qos.json"] == []
        assert list_jobs(user) == jobs
    assert refused >= 5
    assert ended.returncode == 0
    job_id = ended.stdout.split()[3]
    filler.unlink()
    assert list(user.members(job_id)) == [1, 2]


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
    pid = int((pack / "runner_pid").read_text())
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


def test_a_file_size_limit_is_a_failed_write_like_any_other(scripts: CsubUser) -> None:
    scripts.csub("queue")
    scripts.script("large.sh", "#" * 5000)
    before, jobs = list_state(scripts), list_jobs(scripts)
    ended = scripts.run(
        ["bash", "-c", 'ulimit -f 4; exec "$@"', "csub", "csub", *PACK, "large.sh", "large.sh"],
        check=False,
    )
    assert ended.returncode == 6
    assert "csub: error: cannot write " in ended.stderr
    assert ended.stderr.endswith(": File too large\n")
    assert list_state(scripts) == before
    assert list_jobs(scripts) == jobs


@needs_root
def test_a_state_directory_that_the_nodes_do_not_see_is_said_on_the_node(
    scripts: CsubUser,
) -> None:
    mount = scripts.home / "local"
    mount.mkdir()
    put_state_at(scripts, mount / "state")
    # All of csub's calls see a file system that slurmd does not.
    steps = (
        f"mount -t tmpfs -o mode=0777 none {mount} || exit 99\n"
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
    assert "LOST" in ended.stdout
    assert "it ended before the pack began: do the compute nodes see the state directory?" in (
        ended.stdout
    )
    assert "Traceback" not in ended.stderr


# Damaged files -----------------------------------------------------------------------------------


def pack_directory(user: CsubUser, job_id: str) -> Path:
    index = json.loads(user.index(job_id).read_text())
    return user.state / "packs" / f"{index['submission']}.{index['indices'][0]}"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "is damaged ("),
        (b"", "is damaged ("),
        (b'{"schema": 1}', "is damaged ("),
        (b'{"schema": 99}', ("was written by a newer version (schema 99, this one reads 1): use "
         "the csub that submitted it")),
    ],
    ids=["half", "empty", "incomplete", "newer"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["pack.json", "members/0001/spec.json"])
def test_a_damaged_or_newer_file_is_named_and_other_packs_are_still_served(
    scripts: CsubUser, name: str, content: bytes, says: str
) -> None:
    good = scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")
    bad = scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")
    path = pack_directory(scripts, bad) / name
    path.write_bytes(content)
    shown = scripts.run(["csub", "show", bad], check=False)
    assert shown.returncode == 6
    assert str(path) in shown.stderr
    assert says in shown.stderr
    assert "Traceback" not in shown.stderr
    assert len(scripts.members(good)) == 2
    queue = scripts.run(["csub", "queue"], check=False)
    assert f"{good}/2" in queue.stdout
    assert str(path) in queue.stderr
    assert "Traceback" not in queue.stderr
    # And a new submission is not held up by it.
    scripts.submit(*PACK, "--hold", "ok.sh", "ok.sh")


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
