"""Record what Slurm's commands answer here: `python tests/slurm/record.py` in any Slurm release.

It starts a sandbox of its own with the Slurm in PATH, starts the jobs of `scenario.py`, asks
everything that csub asks, and writes one file for each command into `recorded/RELEASE/`: the
command, its exit status and what it wrote. Where pyslurm matches that Slurm, its job objects are
kept as well. Names of this machine are replaced.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from slurm_colloc.errors import SlurmError
from slurm_colloc.host.system.node_processes import list_running_processes
from slurm_colloc.slurm import run_command, slurm_commands
from slurm_colloc.slurm.pyslurm_backend import JOB_FIELDS
from slurm_colloc_lab.sandbox import daemons
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.installation import parse_version
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec
from tests.slurm import scenario

RECORDED = Path(__file__).parent / "recorded"
UNKNOWN_JOB = "999999"
KEPT_CONFIG = ("ClusterName", "KillWait", "MessageTimeout", "SchedulerParameters", "SLURM_VERSION",
               "Slurmctld(primary)", "SlurmctldHost[0]")  # fmt: skip
HIDDEN = "PartitionName=hidden Nodes=ALL Hidden=YES MaxTime=60 State=UP"


class Recorder:
    """Takes the place of run_slurm: runs the command, and writes down what came of it."""

    def __init__(self, folder: Path, replace: Callable[[str], str]) -> None:
        self.folder = folder
        self.replace = replace
        self.name = ""

    def __call__(
        self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None, **_: Any
    ) -> run_command.Output:
        env = (
            run_command.build_client_environment(os.environ) if environment is None else environment
        )
        ended = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
        stdout = ended.stdout
        if argv[-2:] == ["show", "config"] or tuple(argv[-2:]) == ("show", "config"):
            stdout = "".join(
                line for line in stdout.splitlines(keepends=True) if line.startswith(KEPT_CONFIG)
            )
        text = (
            f"$ {json.dumps(list(argv))}\n"
            f"exit {ended.returncode}\n"
            f"--- stdout\n{stdout}--- stderr\n{ended.stderr}"
        )
        (self.folder / f"{self.name}.txt").write_text(self.replace(text))
        if ended.returncode:
            raise run_command.build_slurm_error(argv, ended.returncode, ended.stderr)
        return run_command.Output(ended.stdout, ended.stderr)

    def record(self, name: str, question: Callable[[], object]) -> None:
        self.name = name
        try:
            print(f"{name}: {str(question())[:70]}")
        except SlurmError as error:
            print(f"{name}: {type(error).__name__}: {error}")


def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="rec", dir="/var/tmp"))
    directory.chmod(0o755)
    sandbox = Sandbox(directory / "c")
    conf = (HIDDEN, "MessageTimeout=2")
    os.chdir(directory)
    try:
        sandbox.up(
            SandboxSpec(
                sandbox.directory, nodes=1, fake_gpus=True, gpu_type="a100", extra_conf=conf
            )
        )
        record_all(sandbox)
    finally:
        sandbox.down(purge=True)
        os.chdir("/")
        directory.rmdir()


def record_all(sandbox: Sandbox) -> None:
    os.environ.update(sandbox.env())
    version = parse_version(scenario.run("sinfo", "--version"))
    assert version is not None
    folder = RECORDED / f"{version[0]}.{version[1]:02}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    jobs = scenario.start_jobs(hidden_partition="hidden")

    def replace(text: str) -> str:
        text = text.replace(sandbox.node_names[0][:-1], "node")
        text = text.replace(str(sandbox.directory.parent), "/home/ada")
        text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "login1", text)
        return re.sub(r"\b(UserId|GroupId)=\w+\(\d+\)", r"\1=ada(1000)", text)

    recorder = Recorder(folder, replace)
    vars(slurm_commands)["run_slurm"] = recorder
    slurm = slurm_commands.SlurmAccess()
    (folder / "jobs.json").write_text(json.dumps(jobs, indent=1) + "\n")
    ask = recorder.record
    record_pyslurm(folder, replace)
    ask("list_jobs", slurm.list_jobs)
    ask("list_nodes", slurm.list_nodes)
    ask("list_nodes_of_a_list", lambda: slurm.list_nodes(sandbox.node_names[0]))
    ask("read_job", lambda: slurm.read_job(jobs["running"]))
    ask("read_unknown_job", lambda: slurm.read_job(UNKNOWN_JOB))
    ask("list_steps", lambda: slurm.list_steps(jobs["running"]))
    ask("list_steps_of_unknown_job", lambda: slurm.list_steps(UNKNOWN_JOB))
    ask("read_config", slurm.read_config)
    ask("read_accounting", lambda: slurm.read_accounting([jobs["completed"]]))
    ask("update", lambda: slurm.update_job(jobs["held"], {"Comment": "new", "TimeLimit": "15"}))
    ask("update_refused", lambda: slurm.update_job(jobs["running"], {"NumCPUs": "4"}))
    ask("update_unknown_job", lambda: slurm.update_job(UNKNOWN_JOB, {"TimeLimit": "5"}))
    ask("update_too_large", lambda: slurm.update_job(jobs["pending"], {"NumCPUs": "4000"}))
    ask("release", lambda: slurm.release(jobs["held"]))
    ask("hold", lambda: slurm.hold(jobs["held"]))
    ask("hold_ended_job", lambda: slurm.hold(jobs["completed"]))
    ask("requeue_unknown_job", lambda: slurm.requeue(UNKNOWN_JOB))
    ask("cancel_unknown_job", lambda: slurm.cancel(UNKNOWN_JOB))
    ask("cancel", lambda: slurm.cancel(jobs["held"]))
    record_silence(sandbox, recorder, slurm, jobs)


def record_silence(
    sandbox: Sandbox,
    recorder: Recorder,
    slurm: slurm_commands.SlurmAccess,
    jobs: Mapping[str, str],
) -> None:
    """A controller that does not answer, one that is away, and no configuration."""
    ask = recorder.record
    controller = daemons.find_slurmctld(sandbox.layout, list_running_processes())[0].pid
    os.kill(controller, signal.SIGSTOP)
    try:
        ask("list_jobs_timeout", slurm.list_jobs)
        ask("update_timeout", lambda: slurm.update_job(jobs["pending"], {"TimeLimit": "5"}))
    finally:
        os.kill(controller, signal.SIGCONT)
    sandbox.stop_controller()
    ask("list_jobs_dead_controller", slurm.list_jobs)
    ask("list_nodes_dead_controller", slurm.list_nodes)
    ask("read_job_dead_controller", lambda: slurm.read_job(jobs["running"]))
    ask("update_dead_controller", lambda: slurm.update_job(jobs["pending"], {"TimeLimit": "5"}))
    ask("cancel_dead_controller", lambda: slurm.cancel(jobs["pending"]))
    os.environ["SLURM_CONF"] = "/nonexistent/slurm.conf"
    ask("list_jobs_without_configuration", slurm.list_jobs)


def record_pyslurm(folder: Path, replace: Callable[[str], str]) -> None:
    from slurm_colloc.slurm.pyslurm_backend import find_pyslurm

    finding = find_pyslurm(os.environ, "")
    if finding.obstacle:
        print(f"without pyslurm: {finding.obstacle}")
        return
    import pyslurm

    from slurm_colloc.slurm import pyslurm_backend

    with pyslurm_backend._whole_task_lists():
        loaded = pyslurm.Jobs.load().values()
    rows = [{name: getattr(job, name) for name in JOB_FIELDS} for job in loaded]
    for row in rows:
        row["user_id"] = 1000
    kept = {
        "made by": f"pyslurm {finding.pyslurm}, Slurm {finding.slurm}: pyslurm.Jobs.load()",
        "jobs": rows,
    }
    (folder / "pyslurm.json").write_text(replace(json.dumps(kept, indent=1)) + "\n")


if __name__ == "__main__":
    main()
