"""`csub doctor` on a real Slurm: green where all is well, and the right words for each fault."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc import __version__
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..wait_until import wait_until
from .mps import Untouched, changed_gpus, only_node, simulation_of
from .test_bad_input import needs_root
from .test_mps_fallbacks import nvml_faults

pytestmark = pytest.mark.slurm

CHECKS = [
    "csub", "settings", "state", "slurm", "controller", "access", "nodes", "gres", "cgroup",
    "numbers", "job", "shared-state", "python", "steps", "tmpdir", "private-tmp", "nvml", "mps",
    "hooks",
]  # fmt: skip
SLOW = 60.0
FIELDS = Path(__file__).resolve().parents[2] / "docs" / "json.md"


def examine(user: CsubUser, *options: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """`csub doctor --json`; its findings by check, once everything that it made is gone."""
    ended = user.run(["csub", "doctor", "--json", *options], check=False)
    assert ended.returncode == status, ended.stdout + ended.stderr
    answer = json.loads(ended.stdout)
    assert (answer["schema"], answer["exit_status"]) == (1, status)
    assert [finding["check"] for finding in answer["findings"]] == CHECKS
    for finding in answer["findings"]:
        assert (finding["level"] == "yellow") <= bool(finding["lost"])
        assert (finding["level"] == "red") <= bool(finding["advice"])
        assert set(finding["values"]) <= documented_fields(finding["check"])
    expect_nothing_left(user)
    return {finding["check"]: finding for finding in answer["findings"]}


def documented_fields(check: str) -> set[str]:
    """The words in the row of a check."""
    text = FIELDS.read_text().partition("`csub doctor --json`")[2]
    row = next(line for line in text.splitlines() if line.startswith(f"| `{check}` |"))
    return {word.removesuffix("[]") for word in re.findall(r"`([-\w\[\]]+)`", row)[1:]}


def list_own_jobs(user: CsubUser) -> str:
    argv = ["squeue", "-h", "--me", "--name=csub-doctor", "-o", "%i %T"]
    return user.run(argv).stdout.strip()


def expect_nothing_left(user: CsubUser) -> None:
    """No job in the queue, no file in the state or in the directory of the call."""
    wait_until(lambda: not list_own_jobs(user), "the doctor's job is gone")
    assert list(user.home.glob("state/slurm_colloc/doctor*")) == []
    assert list(user.home.glob(".csub-doctor*")) == []
    assert list(user.home.glob("*.out")) == []


def levels(findings: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Those that are not green."""
    return {name: f["level"] for name, f in findings.items() if f["level"] != "green"}


def settings(user: CsubUser, *lines: str) -> None:
    """Settings of the user's own."""
    path = user.home / "settings.toml"
    path.write_text("".join(f"{line}\n" for line in lines))
    user.extra["SLURM_COLLOC_SETTINGS"] = str(path)


@pytest.fixture
def other_path(mps_user: CsubUser) -> Path:
    """A directory that comes first in the user's PATH."""
    folder = mps_user.home / "bin"
    folder.mkdir(mode=0o755)
    mps_user.extra["PATH"] = f"{folder}:{mps_user.environment['PATH']}"
    return folder


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.smoke
def test_where_all_is_well_all_is_green_and_nothing_stays(mps_user: CsubUser) -> None:
    user = mps_user
    untouched = Untouched(user)
    found = examine(user)
    # A sandbox has no hooks unless they are asked for; cgroups depend on the machine.
    assert set(levels(found)) <= {"hooks", "cgroup"}
    assert found["hooks"]["level"] == "yellow"
    node = only_node(user.sandbox)
    gpu = found["nvml"]["values"]["gpus"][0]
    assert gpu["uuid"] in {known.uuid for known in node.read_gpus()}
    assert (gpu["name"], gpu["gpu_memory_total_mb"]) == ("NVIDIA H200", 143771)
    assert (gpu["compute_mode"], gpu["mig_enabled"], gpu["processes"]) == ("DEFAULT", False, 0)
    assert found["mps"]["values"]["control_ms"] > 0
    assert found["mps"]["values"]["active_ms"] > 0
    assert found["mps"]["values"]["left"] == []
    assert found["steps"]["values"]["works"] is True
    assert found["python"]["values"]["package"] == __version__
    assert found["job"]["values"]["node"] == node.name
    untouched.check()


@pytest.mark.smoke
def test_the_lines_for_people_say_level_check_and_what_is_lost(mps_user: CsubUser) -> None:
    ended = mps_user.csub("doctor")
    lines = ended.stdout.splitlines()
    shown = [line.split()[:2] for line in lines if line[:1].strip() and not line[0].isdigit()]
    assert [check for _, check in shown] == CHECKS
    assert {level for level, _ in shown} <= {"green", "yellow"}
    at = next(n for n, line in enumerate(lines) if line.split()[:2] == ["yellow", "hooks"])
    assert lines[at + 1].strip().startswith("effect: packs start an MPS daemon of their own")
    assert lines[-1].endswith(" yellow: csub works here")
    assert "\x1b" not in ended.stdout
    assert ended.stderr == ""


def test_without_a_job_the_node_is_not_known(mps_user: CsubUser) -> None:
    before = mps_user.run(["squeue", "-h", "--states=all", "-o", "%i"]).stdout
    found = examine(mps_user, "--no-job")
    for check in CHECKS[CHECKS.index("job") :]:
        assert (found[check]["level"], found[check]["what"]) == ("unknown", "--no-job was given")
    assert mps_user.run(["squeue", "-h", "--states=all", "-o", "%i"]).stdout == before
    assert mps_user.csub("doctor", "--no-job").stdout.endswith(
        "csub works here, as far as could be seen\n"
    )


@needs_root
def test_a_state_directory_that_the_node_does_not_see_is_red(mps_user: CsubUser) -> None:
    user = mps_user
    mount = user.home / "local"
    mount.mkdir()
    # All that csub does here is on a file system that slurmd does not see.
    steps = (
        f"mount -t tmpfs -o mode=1777 none {mount} || exit 99\n"
        f"exec setpriv --reuid={user.uid} --regid={user.gid} --clear-groups csub doctor --json\n"
    )
    ended = subprocess.run(
        ["unshare", "--mount", "--propagation=private", "bash", "-c", steps],
        env={**user.environment, "XDG_STATE_HOME": str(mount)}, cwd=user.home,
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if ended.returncode == 99:
        pytest.skip("nothing can be mounted here")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = {finding["check"]: finding for finding in json.loads(ended.stdout)["findings"]}
    red = found["shared-state"]
    assert red["level"] == "red"
    # Not even which node it was can be told from there, but Slurm knows.
    job_id = found["job"]["values"]["job_id"]
    shown = user.run(["scontrol", "-o", "show", "job", job_id]).stdout
    fields = dict(word.partition("=")[::2] for word in shown.split())
    assert red["what"] == f"{mount}/slurm_colloc is not on {fields['BatchHost']}"
    assert red["advice"] == (
        "set state_dir in the settings to a path that login and compute nodes share"
    )
    assert found["job"]["level"] == "green"
    assert {found[name]["level"] for name in CHECKS[CHECKS.index("python") :]} == {"unknown"}


@pytest.mark.parametrize(
    ("python", "what", "advice"),
    [
        ("/nonexistent/python3", "there is no Python at /nonexistent/python3 on ",
         "set node_python in the settings to a Python that the nodes have"),
        ("/usr/bin/python3", "has no slurm_colloc (",
         f"install slurm_colloc {__version__} for it, or set node_python in the settings"),
    ],
    ids=["missing", "without-the-package"],
)  # fmt: skip
def test_a_python_that_cannot_run_packs_is_red(
    mps_user: CsubUser, python: str, what: str, advice: str
) -> None:
    settings(mps_user, f'node_python = "{python}"')
    found = examine(mps_user, status=1)
    assert (found["python"]["level"], found["python"]["advice"]) == ("red", advice)
    assert what in found["python"]["what"]
    assert found["shared-state"]["level"] == "green"
    assert found["nvml"]["level"] == "unknown"


def test_a_python_that_is_too_old_is_named(mps_user: CsubUser, other_path: Path) -> None:
    # What such a Python says of itself and of the package.
    old = other_path / "python3.6"
    write_program(old, '[ "$1" = -V ] && echo Python 3.6.8 && exit\necho SyntaxError >&2\nexit 1')
    settings(mps_user, f'node_python = "{old}"')
    found = examine(mps_user, status=1)
    assert found["python"]["level"] == "red"
    assert f"{old} on " in found["python"]["what"]
    assert found["python"]["what"].endswith(" is Python 3.6.8")


def test_without_the_mps_programs_it_says_what_is_lost(mps_user: CsubUser) -> None:
    user = mps_user
    own = simulation_of(user.sandbox) / "bin"
    user.extra["PATH"] = ":".join(
        word for word in user.environment["PATH"].split(":") if word != str(own)
    )
    found = examine(user)
    assert found["mps"]["level"] == "yellow"
    assert "nvidia-cuda-mps-control is not installed" in found["mps"]["what"]
    assert found["mps"]["lost"].startswith("members take turns on the GPU (time slices)")
    assert found["nvml"]["level"] == "green"
    # Who wants nothing else has to act.
    settings(user, 'share = "mps!"')
    assert examine(user, status=1)["mps"]["level"] == "red"


def test_an_mps_server_that_does_not_start_is_found(mps_user: CsubUser, other_path: Path) -> None:
    user = mps_user
    untouched = Untouched(user)
    real = simulation_of(user.sandbox) / "bin" / "nvidia-cuda-mps-control"
    (other_path / "nvidia-cuda-mps-control").symlink_to(real)
    write_program(other_path / "nvidia-cuda-mps-server", "exit 1")
    found = examine(user)
    assert found["mps"]["level"] == "yellow"
    assert "MPS does not work on " in found["mps"]["what"]
    assert "MPS server" in found["mps"]["what"]
    untouched.check()


def test_nvml_that_is_absent_is_yellow(mps_user: CsubUser, mps_cluster: Sandbox) -> None:
    with nvml_faults(mps_cluster, "absent"):
        found = examine(mps_user)
    assert found["nvml"]["level"] == "yellow"
    assert ": NVML cannot be used: " in found["nvml"]["what"]
    assert found["nvml"]["lost"] == "packs do not know which GPU is theirs, so MPS is not used"
    assert found["nvml"]["values"]["shown"] is None
    assert (found["mps"]["level"], found["mps"]["advice"]) == ("yellow", "see the line nvml")


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"compute_mode": 2}, "red", "compute mode PROHIBITED"),
        ({"compute_mode": 3}, "green", "compute mode EXCLUSIVE_PROCESS"),
    ],
    ids=["prohibited", "exclusive"],
)
def test_the_compute_mode_is_judged(
    mps_user: CsubUser, mps_cluster: Sandbox, changes: dict[str, Any], level: str, words: str
) -> None:
    with changed_gpus(mps_cluster, **changes):
        found = examine(mps_user, status=int(level == "red"))
    assert found["nvml"]["level"] == level
    assert words in found["nvml"]["what"]


def test_processes_that_earlier_jobs_left_on_the_gpus_are_seen(mps_user: CsubUser) -> None:
    user = mps_user
    node = only_node(user.sandbox)
    count = len(node.read_gpus())
    # Outside of Slurm, one on every GPU.
    lines = [f"CUDA_VISIBLE_DEVICES={n} simgpu run --seconds 300 &" for n in range(count)]
    script = user.script("stay.sh", "\n".join([*lines, "wait"]))
    with subprocess.Popen(
        ["setsid", str(script)], env=user.environment, cwd=user.home, **user.identity
    ) as stay:
        try:
            wait_until(lambda: len(node.read_processes()) == count, "they are on the GPUs")
            found = examine(user)
        finally:
            os.killpg(stay.pid, signal.SIGKILL)
    assert found["nvml"]["level"] == "yellow"
    assert found["nvml"]["what"].endswith("; 1 process of others on the GPU")
    assert found["nvml"]["values"]["gpus"][0]["processes"] == 1


@pytest.mark.parametrize("launcher", ["auto", "srun", "process"])
def test_steps_that_fail_cost_as_much_as_the_settings_make_of_it(
    mps_user: CsubUser, other_path: Path, launcher: str
) -> None:
    write_program(other_path / "srun", "echo 'srun: error: step creation is broken' >&2; exit 1")
    settings(mps_user, f'launcher = "{launcher}"')
    found = examine(mps_user, status=int(launcher == "srun"))
    steps = found["steps"]
    assert steps["level"] == {"auto": "yellow", "srun": "red", "process": "green"}[launcher]
    assert steps["values"]["works"] is False
    if launcher != "process":
        assert steps["what"] == "srun --overlap starts no step: step creation is broken"
    if launcher == "auto":
        assert steps["lost"].startswith("members are plain processes: no host memory limit")


def test_a_tmpdir_that_is_not_there_is_red(mps_user: CsubUser) -> None:
    template = mps_user.home / "templates"
    template.mkdir()
    own = Path(__file__).resolve().parents[2] / "templates" / "doctor.sbatch.j2"
    # As a site's prolog or profile sets it on its nodes.
    text = own.read_text().replace("umask 077\n", "umask 077\nexport TMPDIR=/nonexistent/tmp\n")
    (template / "doctor.sbatch.j2").write_text(text)
    settings(mps_user, f'templates_dir = "{template}"')
    found = examine(mps_user, status=1)
    assert found["tmpdir"]["level"] == "red"
    assert found["tmpdir"]["what"] == (
        "nothing can be written to /nonexistent/tmp: No such file or directory"
    )
    assert found["tmpdir"]["values"]["free_mb"] is None


def test_settings_that_cannot_be_read_are_red_and_no_job_runs(mps_user: CsubUser) -> None:
    settings(mps_user, 'launcher = "rocket"')
    found = examine(mps_user, status=1)
    assert found["settings"]["level"] == "red"
    assert "launcher = 'rocket' must be auto, srun or process" in found["settings"]["what"]
    assert found["controller"]["level"] == "green"
    assert found["job"]["what"] == "the settings cannot be read"


@pytest.mark.smoke
def test_a_controller_that_is_down_is_red_and_no_job_is_tried(mps_user: CsubUser) -> None:
    user = mps_user
    conf = Path(user.environment["SLURM_CONF"])
    lines = conf.read_text().splitlines()
    # Nobody listens on this port.
    dead = ["SlurmctldPort=1" if x.startswith("SlurmctldPort=") else x for x in lines]
    copy = user.home / "slurm.conf"
    copy.write_text("\n".join([*dead, "MessageTimeout=3", ""]).replace("MessageTimeout=10\n", ""))
    (user.home / "cgroup.conf").write_text((conf.parent / "cgroup.conf").read_text())
    (user.home / "gres.conf").write_text((conf.parent / "gres.conf").read_text())
    ended = user.run(
        ["csub", "doctor", "--json"], check=False, environment={"SLURM_CONF": str(copy)}
    )
    assert ended.returncode == 1, ended.stderr
    found = {finding["check"]: finding for finding in json.loads(ended.stdout)["findings"]}
    assert found["slurm"]["level"] == "green"
    assert found["controller"]["level"] == "red"
    assert "does not answer" in found["controller"]["what"]
    assert "scontrol ping" in found["controller"]["advice"]
    assert "csub --local" in found["controller"]["advice"]
    assert found["job"]["what"] == "the controller does not answer"
    expect_nothing_left(user)


def test_where_there_is_no_slurm_it_says_so(mps_user: CsubUser) -> None:
    environment = {"PATH": "/nonexistent"}
    program = str(Path(sys.executable).with_name("csub"))
    ended = mps_user.run([program, "doctor", "--json"], check=False, environment=environment)
    assert ended.returncode == 1
    found = {finding["check"]: finding for finding in json.loads(ended.stdout)["findings"]}
    assert found["slurm"]["level"] == "red"
    assert "there is no Slurm here: sinfo is not installed or not in PATH" in found["slurm"]["what"]
    assert found["job"]["what"] == "there is no Slurm here"


@pytest.mark.smoke
def test_a_cluster_without_gpus_is_red_and_its_nodes_are_still_looked_at(
    accounts: tuple[str, ...],
) -> None:
    with (
        running_sandbox(nodes=1, gpus_per_node=0) as sandbox,
        user_of(sandbox, accounts[0]) as user,
    ):
        found = examine(user, status=1)
        assert found["gres"]["level"] == "red"
        assert "Slurm knows of no GPU on any node" in found["gres"]["what"]
        assert "gres.conf" in found["gres"]["advice"]
        for check in ("nvml", "mps", "hooks"):
            assert found[check]["what"] == "the job asked for no GPU"
        assert found["steps"]["level"] == "green"
        # What Slurm itself does not give.
        refused = examine(user, "--gres=gpu:1", status=1)["job"]
        assert refused["level"] == "red"
        assert refused["what"].startswith("sbatch: ")


# Root's hooks -----------------------------------------------------------------------------------


@needs_root
def test_the_daemon_of_the_nodes_own_prolog_is_used_and_left_to_its_epilog(
    accounts: tuple[str, ...],
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("the simulated NVML library needs a C compiler")
    with (
        running_sandbox(nodes=1, gpus_per_node=1, simgpu=True, hooks=True) as sandbox,
        user_of(sandbox, accounts[0]) as user,
    ):
        untouched = Untouched(user)
        found = examine(user)
        assert set(levels(found)) <= {"cgroup"}
        assert found["hooks"]["what"] == f"the prolog of {only_node(sandbox).name} has prepared MPS"
        assert found["hooks"]["values"] == {"installed": True, "prepared": True, "used": True}
        assert found["mps"]["values"]["by"] == "prolog"
        assert found["mps"]["what"].startswith("the node's own daemon (prolog) works")
        untouched.check()
        # A site that says no is told apart from one that has no hooks.
        settings(user, 'hooks = "never"')
        found = examine(user)
        assert found["hooks"]["level"] == "yellow"
        assert found["hooks"]["what"].endswith(" has hooks, and its prolog did nothing for the job")
        assert found["mps"]["values"]["by"] == "runner"
        untouched.check()


# The job waits ----------------------------------------------------------------------------------


@contextlib.contextmanager
def all_gpus_taken(user: CsubUser) -> Iterator[None]:
    """Somebody uses every GPU."""
    script = user.script("sleep.sh", "sleep 600")
    node = only_node(user.sandbox)
    count = len(node.read_gpus())
    argv = ["sbatch", "--parsable", f"--gres=gpu:{count}", "-t10", "-o/dev/null", str(script)]
    job_id = user.run(argv).stdout.strip()
    shown = ["squeue", "-h", "-j", job_id, "-o", "%T"]
    try:
        wait_until(lambda: user.run(shown).stdout == "RUNNING\n", "all GPUs are taken")
        yield
    finally:
        user.run(["scancel", job_id])
        wait_until(
            lambda: not user.run(["squeue", "-h", "--me"]).stdout.strip(), "the GPUs are free again"
        )


def test_a_job_that_finds_no_room_is_cancelled_and_its_reason_told(mps_user: CsubUser) -> None:
    with all_gpus_taken(mps_user):
        found = examine(mps_user, "--timeout=3")
        assert found["job"]["level"] == "yellow"
        assert "did not start within 3 s, and was cancelled: " in found["job"]["what"]
        assert "(Resources)" in found["job"]["what"] or "(Priority)" in found["job"]["what"]
        assert found["job"]["lost"] == "nothing is known about the nodes"
        assert "--timeout=6" in found["job"]["advice"]
        assert found["job"]["values"]["state"] == "PENDING"
        assert found["steps"]["what"] == "no job ran"


def test_a_job_that_can_never_start_is_red(user: CsubUser, cluster: Sandbox) -> None:
    name = cluster.status().nodes[0].name
    root = ["scontrol", "update", f"NodeName={name}"]
    environment = {**user.environment, "HOME": "/root"}
    drain = [*root, "State=DRAIN", "Reason=for a test"]
    subprocess.run(drain, env=environment, check=True, capture_output=True)
    try:
        found = examine(user, f"--nodelist={name}", "--timeout=4", status=1)
    finally:
        subprocess.run([*root, "State=RESUME"], env=environment, check=True, capture_output=True)
    assert found["nodes"]["level"] == "green"
    assert "for a test" in found["nodes"]["what"]
    assert found["job"]["level"] == "red"
    assert (
        "a node that it needs is down, drained or reserved (ReqNodeNotAvail"
        in (found["job"]["what"])
    )
    assert "sinfo -R" in found["job"]["advice"]


def test_what_slurm_refuses_is_red_in_its_own_words(user: CsubUser) -> None:
    found = examine(user, "--partition=nowhere", status=1)
    assert found["nodes"]["what"] == "there is no partition nowhere"
    assert found["nodes"]["advice"] == "name one with --partition: gpu, preempt, whole"
    assert found["job"]["what"] == "no node takes jobs"
    refused = examine(user, "--constraint=nosuchfeature", status=1)["job"]
    assert refused["level"] == "red"
    assert refused["what"].startswith("sbatch: ")
    assert "--constraint" in refused["advice"] or "--account" in refused["advice"]


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
    ids=["ctrl-c", "term", "hangup"],
)
def test_who_interrupts_it_while_the_job_waits_leaves_no_job(
    mps_user: CsubUser, number: int
) -> None:
    user = mps_user
    with all_gpus_taken(user):
        doctor = user.start(["csub", "doctor", "--timeout=300"])
        try:
            wait_until(lambda: "PENDING" in list_own_jobs(user), "its job waits")
            job_id = list_own_jobs(user).split()[0]
            doctor.send_signal(number)
            out, err = doctor.communicate(timeout=SLOW)
        finally:
            doctor.kill()
        assert doctor.returncode == 130, out + err
        assert err == f"csub: error: interrupted; job {job_id} has been cancelled\n"
        expect_nothing_left(user)


def test_who_interrupts_it_while_the_job_runs_leaves_nothing_on_the_node(
    mps_user: CsubUser, mps_cluster: Sandbox
) -> None:
    user = mps_user
    untouched = Untouched(user)
    with nvml_faults(mps_cluster, "hang=30"):
        doctor = user.start(["csub", "doctor"])
        try:
            wait_until(lambda: "RUNNING" in list_own_jobs(user), "its job runs")
            doctor.send_signal(signal.SIGINT)
            out, err = doctor.communicate(timeout=SLOW)
        finally:
            doctor.kill()
    assert doctor.returncode == 130, out + err
    expect_nothing_left(user)
    untouched.check()


def test_a_job_that_takes_too_long_is_cancelled(mps_user: CsubUser, mps_cluster: Sandbox) -> None:
    untouched = Untouched(mps_user)
    with nvml_faults(mps_cluster, "hang=30"):
        found = examine(mps_user, "--timeout=4", status=1)
    assert found["job"]["level"] == "red"
    assert "is RUNNING after " in found["job"]["what"]
    assert "--timeout" in found["job"]["advice"]
    untouched.check()


def test_a_killed_call_leaves_a_job_that_slurm_ends(mps_user: CsubUser) -> None:
    user = mps_user
    with all_gpus_taken(user):
        doctor = user.start(["csub", "doctor", "--timeout=300"])
        try:
            wait_until(lambda: "PENDING" in list_own_jobs(user), "its job waits")
        finally:
            doctor.kill()
            doctor.communicate()
        job_id = list_own_jobs(user).split()[0]
        fields = dict(
            word.partition("=")[::2]
            for word in user.run(["scontrol", "-o", "show", "job", job_id]).stdout.split()
        )
        assert fields["TimeLimit"] == "00:02:00"
        assert fields["Deadline"] != "N/A"
        user.run(["scancel", job_id])


def test_words_that_make_no_sense_are_refused(mps_user: CsubUser) -> None:
    for words, said in (
        (["--timeout=0"], "--timeout=0 must be from 1 to 86400 seconds"),
        (["--gres=gpu:x:y:z"], "--gres=gpu:x:y:z: "),
        (["--nosuch"], "No such option"),
    ):
        ended = mps_user.run(["csub", "doctor", *words], check=False)
        assert ended.returncode == 2
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr
