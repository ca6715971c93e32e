"""A pack with real members and a real monitor, without Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_colloc.runtime.step_command import WRAPPER
from slurm_colloc.store.pack_directory import Setup, write_setup
from slurm_colloc.store.report_files import latest_path, list_sample_files, monitor_path

from ..simgpu.conftest import Simulation
from ..wait_until import wait_until

Row = dict[str, Any]


@dataclass
class WatchedPack:
    """A pack's directory, and the processes that a test started for it."""

    directory: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.pack / "members").mkdir(parents=True)
        self.progress.mkdir()

    @property
    def pack(self) -> Path:
        return self.directory / "pack"

    @property
    def progress(self) -> Path:
        return self.directory / "progress"

    def write_setup(self, *gpus: str) -> None:
        setup = Setup(attempt=1, asked="mps", mode="mps", reason="", node="n1", gpus=gpus)
        write_setup(self.pack, setup)

    def start_member(
        self,
        number: int,
        script: str,
        *,
        start: int = 1,
        extra: Mapping[str, str] | None = None,
        cpus: tuple[int, ...] = (),
    ) -> subprocess.Popen[str]:
        """Start a member as the runner does, by the real wrapper."""
        directory = self.pack / "members" / f"{number:04d}"
        directory.mkdir(exist_ok=True)
        program = directory / "script"
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(0o755)
        prefix = f"{directory}/run.1.{start}"
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "SLURM_COLLOC_PACK": str(self.pack),
            "SLURM_COLLOC_START": prefix,
            **(extra or {}),
        }
        launch = {
            "schema": 1,
            "argv": [str(program)],
            "environment": sorted(environment.items()),
            "directory": str(directory),
            "cpus": list(cpus),
            "input": None,
            "output": str(directory / "out"),
            "error": None,
            "truncate": False,
            "umask": 0o077,
            "prefix": prefix,
            "runner_pid": os.getpid(),
            "kill_wait_s": 2.0,
            "passes_on": False,
            "own_tmpdir": "",
            "is_step": False,
            "together": 0,
            "shares_cgroup": False,
        }
        Path(f"{prefix}.launch").write_text(json.dumps(launch))
        (self.progress / f"{number:04d}.{start}").mkdir()
        process = subprocess.Popen(
            [sys.executable, "-IB", "-S", WRAPPER, f"{prefix}.launch"], text=True
        )
        self.started.append(process)
        return process

    def start_monitor(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        attempt: int = 1,
        interval_s: float = 0.2,
        progress: Path | None = None,
        activity: str = "gpm",
    ) -> subprocess.Popen[str]:
        """Start the monitor, and wait for its first sample."""
        Path(latest_path(self.pack)).unlink(missing_ok=True)
        process = subprocess.Popen(
            [
                *self._argv(attempt, progress or self.progress, interval_s),
                *("--activity", activity),
            ],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **(environ or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        wait_until(lambda: self.latest is not None or process.poll() is not None, "a sample")
        return process

    def start_runner(self, pid_file: Path) -> subprocess.Popen[str]:
        """Start a process that starts the monitor, tells its pid, and waits."""
        code = (
            "import subprocess, sys; p = subprocess.Popen(sys.argv[2:]);"
            "open(sys.argv[1], 'w').write(str(p.pid)); p.wait()"
        )
        process = subprocess.Popen(
            [sys.executable, "-IB", "-c", code, str(pid_file), *self._argv(1, self.progress, 0.2)],
            text=True,
        )
        self.started.append(process)
        return process

    def _argv(self, attempt: int, progress: Path, interval_s: float) -> list[str]:
        return [
            *(sys.executable, "-IB", "-m", "slurm_colloc.monitor"),
            *(str(self.pack), str(attempt), str(progress), "--interval", str(interval_s)),
        ]

    def end_monitor(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """End it as the runner does; what it says of itself."""
        for _ in range(120):
            # Told again, as the runner does: one of Slurm's that is pending swallows this one.
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
                break
        _, errors = process.communicate(timeout=1)
        assert process.returncode == 0, errors
        if errors:
            raise AssertionError(errors)
        return self.monitor

    @property
    def latest(self) -> dict[str, Any] | None:
        path = Path(latest_path(self.pack))
        return dict(json.loads(path.read_text())) if path.exists() else None

    @property
    def monitor(self) -> dict[str, Any]:
        return dict(json.loads(Path(monitor_path(self.pack)).read_text()))

    def wait_for(self, condition: Callable[[dict[str, Any]], Any], what: str) -> Any:
        """Wait until latest.json says so."""
        return wait_until(lambda: (now := self.latest) is not None and condition(now), what)

    def rows(self, table: str) -> list[Row]:
        """All rows of a table that are on the disk."""
        from pyarrow import parquet

        rows: list[Row] = []
        for path in list_sample_files(self.pack, table):
            with parquet.ParquetFile(path) as file:
                rows += file.read(use_threads=False).to_pylist()
        return rows

    def member_rows(self, number: int) -> list[Row]:
        return [row for row in self.rows("members") if row["member"] == number]

    def ask_for_rows(self, monitor: subprocess.Popen[str], number: int) -> list[Row]:
        """Let the monitor write what it has, as a SIGTERM of Slurm's does; a member's rows so far.

        It writes at its next look, and by itself only every ten seconds.
        """
        # A child sends it: from its parent, which is this process, it would end the monitor.
        subprocess.run(["kill", "-TERM", str(monitor.pid)], check=True)
        return self.member_rows(number)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            if process.stderr is not None:
                process.stderr.close()


def environment_of(simulation: Simulation) -> dict[str, str]:
    """What makes a program see the simulated GPUs."""
    environ = simulation.environment()
    return {name: environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "SIMGPU_ROOT")}
