"""Prolog and epilog with slurmd's part played, round after round, and where their time goes.

A cold round finds no process that holds the driver; a warm one finds NVML held open by another.
Only what is there is read: the persistence mode is never changed.
"""

from __future__ import annotations

import contextlib
import csv
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_colloc.host.mps.mps_control import (
    ACTIVE,
    ControlProgram,
    build_daemon_environment,
    find_programs,
)
from slurm_colloc.host.mps.mps_state import build_node_environment
from slurm_colloc.host.system.directories import Owner
from slurm_colloc.resources import data_path
from slurm_colloc_lab.sandbox.sandbox_hooks import set_constants

from .driver_use import measure_nvml, to_ms
from .gpu_node import HERE, GpuNode

LIMIT_S = 60.0
ACTIVE_S = 20.0
# The driver needs a moment to notice that its last user has gone.
SETTLE_S = 0.5
COMMENT = "a pack of the GPU suite [csub/1 mps]"
PROVED = "prolog: start to the proved socket"


class Rounds:
    """A node of its own for played hooks, on the machine's GPU.

    Args:
        bed: The machine, and the user whose jobs are played.
        directory: Where root's files lie.
    """

    def __init__(self, bed: GpuNode, directory: Path) -> None:
        self.bed = bed
        self.run = directory / "run"
        self._directory = directory
        self._trace = directory / "trace.jsonl"
        self._job = 100
        self._simulation = str(bed.sandbox.layout.simgpu) if bed.is_simulated else ""
        self._node = bed.sandbox.node_names[0]
        self._minor = str(bed.read_nvml()["minor_number"])
        self.rows: list[dict[str, Any]] = []
        self._write_files()

    def _write_files(self) -> None:
        launcher = self._directory / "prefix" / "bin" / "python"
        launcher.parent.mkdir(parents=True)
        traced = [sys.executable, "-I", "-B", str(HERE / "traced_hook.py"), str(self._trace)]
        launcher.write_text(f'#!/bin/sh\nexec {shlex.join(traced)} "$@"\n')
        launcher.chmod(0o755)
        policy = self._directory / "node.toml"
        policy.write_text(f'audit_log = "{self._directory}/log/hooks.log"\n')
        constants = {
            "prefix": str(self._directory / "prefix"),
            "run": str(self.run),
            "policy": str(policy),
            "driver": self._simulation,
        }
        for name in ("prolog", "epilog"):
            script = self._directory / f"{name}.sh"
            text = data_path("hooks", f"{name}.sh").read_text()
            script.write_text(set_constants(text, constants))
            script.chmod(0o755)

    # -- the hooks ------------------------------------------------------------------------------

    def play(self, hook: str, job_id: str) -> dict[str, Any]:
        """Run a hook as slurmd does: its status, its begin and end, and its trace."""
        user = self.bed.user
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "SLURM_JOB_ID": job_id,
            "SLURM_JOB_UID": str(user.uid),
            "SLURM_JOB_GID": str(user.gid),
            "SLURM_JOB_USER": user.name,
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_JOB_GPUS": self._minor,
            "SLURM_JOB_COMMENT": COMMENT,
            "SLURMD_NODENAME": self._node,
        }
        before = len(read_lines(self._trace))
        begin_s = time.monotonic()
        ended = subprocess.run(
            [str(self._directory / f"{hook}.sh")],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            start_new_session=True,
            check=False,
        )
        end_s = time.monotonic()
        assert ended.returncode == 0, ended.stderr
        traces = read_lines(self._trace)[before:]
        assert len(traces) == 1, f"{hook} left {len(traces)} traces: {ended.stderr}"
        audit = read_lines(self._directory / "log" / "hooks.log")[-1]
        return {"begin_s": begin_s, "end_s": end_s, "trace": traces[0], "audit": audit}

    def begin_job(self) -> tuple[str, dict[str, Any]]:
        """The prolog of a new job: the job's number, and how the hook went."""
        self._job += 1
        job_id = str(self._job)
        found = self.play("prolog", job_id)
        assert found["audit"]["action"] == "prepared", found["audit"]
        return job_id, found

    def end_job(self, job_id: str) -> dict[str, Any]:
        """The epilog of a job; nothing of it is left."""
        found = self.play("epilog", job_id)
        assert (found["audit"]["action"], found["audit"]["exit"]) == ("undone", 0), found["audit"]
        assert self.list_left() == []
        return found

    def list_left(self) -> list[str]:
        """What hooks have not taken back."""
        found = [str(e) for e in self.run.iterdir() if e.name not in ("jobs", "lock")]
        return found + [str(e) for e in (self.run / "jobs").iterdir()]

    def pipe_directory(self, job_id: str) -> str:
        """Where clients find a job's daemon."""
        setup = json.loads((self.run / job_id / "setup.json").read_text())
        return str(setup["daemons"][0]["pipe_directory"])

    def open_control(self, job_id: str) -> ControlProgram:
        """The control program of a job's daemon, as the job's user."""
        return open_control(self.bed, self.pipe_directory(job_id))

    def wait_for_active(self, job_id: str) -> float | None:
        """The moment when the daemon's server is ACTIVE; None where it never is."""
        control = self.open_control(job_id)
        deadline = time.monotonic() + ACTIVE_S
        while time.monotonic() < deadline:
            for server in control.read_servers() or ():
                if control.read_server_status(server) == ACTIVE:
                    return time.monotonic()
            time.sleep(0.005)
        return None

    # -- rounds ---------------------------------------------------------------------------------

    def measure(self, kind: str, number: int) -> None:
        """One round: NVML's own parts, a prolog, a server, an epilog."""
        for phase, ms in measure_nvml(self.bed):
            self._note(kind, number, phase, ms)
        time.sleep(SETTLE_S)
        job_id, prolog = self.begin_job()
        active_s = self.wait_for_active(job_id)
        assert active_s is not None, "the daemon has no server"
        self._note(kind, number, "prolog: start to ACTIVE", to_ms(active_s - prolog["begin_s"]))
        time.sleep(SETTLE_S)
        epilog = self.end_job(job_id)
        for hook, found in (("prolog", prolog), ("epilog", epilog)):
            for phase, ms in split_hook(hook, found):
                self._note(kind, number, phase, ms)

    def _note(self, kind: str, number: int, phase: str, ms: float) -> None:
        self.rows.append({"kind": kind, "round": number, "phase": phase, "ms": ms})

    def write(self, path: Path) -> None:
        """Write every figure, one a line."""
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["kind", "round", "phase", "ms"])
            writer.writeheader()
            writer.writerows(self.rows)

    def summarize(self) -> dict[str, dict[str, Any]]:
        """Median, lowest and highest of each phase, by kind."""
        values: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for row in self.rows:
            values[row["kind"], row["phase"]].append(row["ms"])
        found: dict[str, dict[str, Any]] = {}
        for (kind, phase), figures in values.items():
            found.setdefault(kind, {})[phase] = {
                "median_ms": round(statistics.median(figures), 1),
                "lowest_ms": min(figures),
                "highest_ms": max(figures),
                "rounds": len(figures),
            }
        return found


def split_hook(hook: str, found: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The phases of one run of a hook; pure. Those behind a colon are parts of another."""
    trace, begin_s = found["trace"], found["begin_s"]
    yield f"{hook}: whole", to_ms(found["end_s"] - begin_s)
    yield f"{hook}: script and start of Python", to_ms(trace["first_line_s"] - begin_s)
    # It loads the rest of itself once it has read the policy.
    policy_s = next(times for name, *times in trace["steps"] if name == "policy")
    work_s = next(times for name, *times in trace["steps"] if name == "work")
    yield f"{hook}: imports before the policy", to_ms(policy_s[0] - trace["first_line_s"])
    yield f"{hook}: imports after it", to_ms(work_s[0] - policy_s[1])
    yield f"{hook}: end of Python", to_ms(found["end_s"] - trace["end_s"])
    yield f"{hook}: by its own audit line", found["audit"]["ms"]
    total: defaultdict[str, float] = defaultdict(float)
    for name, step_begin_s, step_end_s in trace["steps"]:
        total[name] += step_end_s - step_begin_s
        if name == "daemon: proof":
            yield PROVED, to_ms(step_end_s - begin_s)
    for name, seconds in total.items():
        yield f"{hook}: {name}", to_ms(seconds)


def render_summary(summary: dict[str, dict[str, Any]]) -> str:
    """Cold and warm side by side, a phase a line; pure."""
    lines = []
    for phase in summary["cold"]:
        figures = [
            (kind, summary[kind][phase]) for kind in ("cold", "warm") if phase in summary[kind]
        ]
        told = [
            f"{kind} {figure['median_ms']:8.1f} ms "
            f"({figure['lowest_ms']:.1f} to {figure['highest_ms']:.1f})"
            for kind, figure in figures
        ]
        lines.append(f"{phase:40} {'   '.join(told)}")
    return "\n".join(lines)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A file of one JSON object a line; none where it is not there."""
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in path.read_text().splitlines()]
    return []


def open_control(bed: GpuNode, pipe_directory: str) -> ControlProgram:
    """The control program of a daemon, as the user whose daemon it is."""
    simulation = str(bed.sandbox.layout.simgpu) if bed.is_simulated else ""
    programs = find_programs(f"{simulation}/bin" if simulation else "")
    environment = build_daemon_environment(
        programs,
        gpus=(bed.gpu_before["uuid"],),
        pipe_directory=pipe_directory,
        log_directory=f"{Path(pipe_directory).parent}/l",
        added=build_node_environment(bed.sandbox.node_names[0]),
    )
    return ControlProgram(programs, environment, Owner(bed.user.uid, bed.user.gid, (bed.user.gid,)))


@contextlib.contextmanager
def playing_hooks(bed: GpuNode) -> Iterator[Rounds]:
    """A place for played hooks; daemons that a failed test has left are ended."""
    directory = Path(tempfile.mkdtemp(prefix="hr", dir="/var/tmp"))
    directory.chmod(0o755)
    rounds = Rounds(bed, directory)
    try:
        yield rounds
    finally:
        jobs = rounds.run / "jobs"
        for path in list(jobs.glob("*.json")) if jobs.is_dir() else []:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                rounds.play("epilog", path.stem)
        shutil.rmtree(directory, ignore_errors=True)
