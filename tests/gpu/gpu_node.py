"""The test bed of the MPS suite: one node with the real GPU, an ordinary user, and what is written.

With CSUB_GPU_SIMULATED=1 the GPU is the sandbox's simulated one and programs are stand-ins: that
tries the suite itself, and its figures mean nothing. CSUB_GPU_LANE=2/4 takes the third of the
host's GPUs and the third quarter of its cores, so that four runs share a host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from slurm_colloc.host.nvml import nvml_child
from slurm_colloc.host.system.directories import BASES, PREFIX
from slurm_colloc.host.system.node_processes import list_processes, read_uid
from slurm_colloc.store.atomic_files import write_atomic
from slurm_colloc_lab.sandbox import sandbox_files, sandbox_gpus
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.slurm_conf import ClusterPlan, render_cgroup_conf

from ..bed import CsubUser, can_reach_checkout, running_sandbox, user_of
from .driver_use import read_settings

HERE = Path(__file__).parent
GONE_WITHIN_S = 30.0


def read_number(name: str, default: float) -> float:
    """A size of the suite that the environment may change."""
    return float(os.environ.get(name, default))


LANE, _, LANES = os.environ.get("CSUB_GPU_LANE", "").partition("/")
"""Which of how many parts of the host is this run's; empty for all of it."""


SHOW_PLACE = """
import ctypes, json, os, sys
cuda, device, uuid = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), (ctypes.c_ubyte * 16)()
assert not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), 0)
assert not cuda.cuDeviceGetUuid(uuid, device)
print(bytes(uuid).hex(), json.dumps(sorted(os.sched_getaffinity(0))))
print({k: v for k, v in os.environ.items() if "CUDA" in k or "GPU" in k}, file=sys.stderr)
"""


def take_lane() -> list[int]:
    """This process's cores from now on, those of its lane where there are lanes."""
    cores = sorted(os.sched_getaffinity(0))
    if LANES:
        share = len(cores) // int(LANES)
        cores = cores[share * int(LANE) : share * (int(LANE) + 1)]
        os.sched_setaffinity(0, cores)
    return cores


@dataclass(frozen=True)
class Scale:
    """How much of everything; smaller where the suite itself is tried."""

    members: int = int(read_number("CSUB_GPU_MEMBERS", 7))
    cpus: int = int(read_number("CSUB_GPU_CPUS", 1))
    window_s: float = read_number("CSUB_GPU_WINDOW_S", 60)
    timeslice_window_s: float = read_number("CSUB_GPU_TIMESLICE_WINDOW_S", 30)
    files_window_s: float = read_number("CSUB_GPU_FILES_WINDOW_S", 20)
    # A little more than the fastest training does, so that the window fits into the work.
    images_per_s: float = read_number("CSUB_GPU_IMAGES_PER_S", 22000)
    files: int = int(read_number("CSUB_GPU_FILES", 8192))
    innocent_s: float = read_number("CSUB_GPU_INNOCENT_S", 5)


@dataclass
class GpuNode:
    """Where packs run, and what was found.

    Args:
        sandbox: The Slurm.
        user: Who submits.
        out: Where results go.
        is_simulated: The GPU is not real.
        archive: Where the logs of all packs and members go.
    """

    sandbox: Sandbox
    user: CsubUser
    out: Path
    is_simulated: bool
    archive: str = "kept.tar.gz"
    scale: Scale = field(default_factory=Scale)
    jobs: dict[str, str] = field(default_factory=dict)
    gpu_before: dict[str, Any] = field(default_factory=dict)

    # -- packs ------------------------------------------------------------------------------------

    def submit(self, name: str, *words: str) -> str:
        """Submit with csub; the job id, under which the pack's files are kept as `name`."""
        job_id = self.user.submit(*words)
        self.jobs[name] = job_id
        return job_id

    def finish(self, job_id: str, *, patience_s: float) -> dict[int, dict[str, Any]]:
        """Wait until a pack is over; its members."""
        try:
            rows = self.user.finish(job_id, patience_s=patience_s)
        except subprocess.TimeoutExpired:
            told = self.user.describe(job_id)
            self.user.csub("cancel", "--yes", job_id, check=False)
            pytest.fail(f"{job_id} was not over after {patience_s:g} s\n{told}")
        # Its last member ends a moment before Slurm has written down that the job is over.
        running = ["squeue", "-h", "-j", job_id, "--states=RUNNING"]
        self.wait(
            lambda: not self.user.run(running, check=False).stdout, f"Slurm has ended {job_id}"
        )
        return rows

    def find_pack(self, job_id: str) -> Path:
        """The directory of a pack."""
        for path in self.list_packs(job_id):
            return path
        raise LookupError(f"no pack has the Slurm job {job_id}")

    def list_packs(self, job_id: str) -> list[Path]:
        """The directories of a job's packs: several where they are tasks of one array."""
        return [
            path.parent
            for path in sorted((self.user.state / "packs").glob("*/slurm_job_id"))
            if path.read_text().strip().partition("_")[0] == job_id
        ]

    def read_setup(self, job_id: str) -> dict[str, Any]:
        """How the node was prepared for a pack; empty where nothing was."""
        return _read_json(self.find_pack(job_id) / "setup.json")

    def read_events(self, job_id: str) -> list[dict[str, Any]]:
        """The runner's log of a pack."""
        path = self.find_pack(job_id) / "events.jsonl"
        with contextlib.suppress(FileNotFoundError):
            lines = path.read_text(errors="replace").splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]
        return []

    def wait_for_event(self, job_id: str, name: str, **wanted: Any) -> dict[str, Any]:
        """Wait until a pack's log has such an event; the newest of them."""

        def look() -> list[dict[str, Any]]:
            return [
                event
                for event in self.read_events(job_id)
                if event["event"] == name
                and all(event.get(key) == value for key, value in wanted.items())
            ]

        found: list[dict[str, Any]] = self.wait(look, f"{name} {wanted} in the log of {job_id}")
        return found[-1]

    def wait(self, condition: Callable[[], Any], what: str, patience_s: float = 60.0) -> Any:
        """Wait for something to become true and return it."""
        deadline = time.monotonic() + patience_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                pytest.fail(f"not within {patience_s:g} s: {what}")
            time.sleep(0.05)
        return found

    # -- what is there ----------------------------------------------------------------------------

    def read_nvml(self) -> dict[str, Any]:
        """What NVML says of the first GPU."""
        # Slurm's variables would name a node of another simulation.
        environment = {**os.environ, **self.sandbox.env()}
        ended = subprocess.run(
            [sys.executable, "-I", nvml_child.__file__],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        answer = json.loads(ended.stdout.splitlines()[-1])
        assert not answer["problem"], answer["problem"]
        gpu: dict[str, Any] = answer["gpus"][0 if self.is_simulated else int(LANE or 0)]
        return {**gpu, "driver_version": answer["driver_version"]}

    def read_gpu_state(self) -> dict[str, Any]:
        """What must be the same before and after."""
        gpu = self.read_nvml()
        names = (
            "name",
            "uuid",
            "driver_version",
            "compute_mode",
            "mig_enabled",
            "gpu_memory_used_mb",
            "processes",
            "mps_processes",
        )
        return {
            **{name: gpu[name] for name in names},
            "settings": {} if self.is_simulated else read_settings(),
        }

    def find_leftovers(self) -> dict[str, Any]:
        """What packs of the user have left on the machine; empty for nothing."""
        uid = self.user.uid
        found: dict[str, Any] = {}
        processes = []
        for process in list_processes():
            is_mps = process.name.startswith("nvidia-cuda-mps")
            # Of root, who stands in for a user where none can be made, only these are ours.
            if not process.has_ended and read_uid(process.id.pid) == uid and (uid or is_mps):
                processes.append(f"{process.id.pid} {process.name}")
        entries = [
            str(entry)
            for base in dict.fromkeys((*BASES, "/dev/shm"))
            for entry in Path(base).iterdir()
            if entry.name.startswith(PREFIX) or (uid and base == "/dev/shm")
            if _read_owner(entry) == uid
        ]
        gpu = self.read_nvml()
        if processes:
            found["processes"] = processes
        if entries:
            found["directories"] = entries
        if gpu["processes"] != []:
            found["nvml_processes"] = gpu["processes"]
        # Not every driver tells these.
        if gpu["mps_processes"]:
            found["nvml_mps_processes"] = gpu["mps_processes"]
        if gpu["compute_mode"] != self.gpu_before["compute_mode"]:
            found["compute_mode"] = gpu["compute_mode"]
        return found

    def wait_until_nothing_is_left(self) -> dict[str, Any]:
        """Give the end of a pack some time; what is left then, and how long it took."""
        begin = time.monotonic()
        while True:
            left = self.find_leftovers()
            waited_s = time.monotonic() - begin
            if not left or waited_s > GONE_WITHIN_S:
                return {"left": left, "gone_after_s": round(waited_s, 2)}
            time.sleep(0.2)

    # -- results ----------------------------------------------------------------------------------

    def write(self, name: str, value: Any) -> None:
        """Write a result; called whenever there is something new."""
        write_atomic(self.out / name, f"{json.dumps(value, indent=1)}\n".encode())

    def keep_files(self) -> None:
        """Keep the logs of all packs and members in one archive."""
        with tarfile.open(self.out / self.archive, "w:gz") as archive:
            for name, job_id in self.jobs.items():
                for pack in self.list_packs(job_id):
                    with contextlib.suppress(OSError):
                        for path in sorted(pack.rglob("*")):
                            if path.is_file() and path.name not in ("env", "script"):
                                archive.add(path, f"{name}/{pack.name}/{path.relative_to(pack)}")
                for path in sorted(self.user.home.glob(f"slurm-{job_id}*")):
                    archive.add(path, f"{name}/{path.name}")
            for path in sorted(self.sandbox.layout.log.glob("*.log")):
                archive.add(path, f"slurm/{path.name}")


def _read_owner(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.lstat().st_uid
    return None


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        value: dict[str, Any] = json.loads(path.read_text())
        return value
    return {}


def write_task_prolog() -> Path:
    """A script that names this lane's GPU to each job: Slurm numbers those that it has from 0."""
    path = Path(tempfile.mkdtemp(dir="/var/tmp")) / "task_prolog.sh"
    names = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
    path.write_text("#!/bin/sh\n" + "".join(f"echo export {name}={LANE}\n" for name in names))
    for each, mode in ((path.parent, 0o755), (path, 0o755)):
        each.chmod(mode)
    return path


def check_lane(bed: GpuNode, cores: list[int]) -> None:
    """See that a job has this lane's GPU and cores: others would measure each other."""
    ended = bed.user.run(["srun", "--gres=gpu:1", sys.executable, "-c", SHOW_PLACE])
    uuid, used = ended.stdout.split(maxsplit=1)
    assert uuid == bed.gpu_before["uuid"].removeprefix("GPU-").replace("-", ""), ended
    assert json.loads(used) == cores, ended


@contextlib.contextmanager
def choosing_gpu() -> Iterator[None]:
    """Sandboxes that are made in it have the GPU and the cores of this lane alone."""
    if not LANES:
        yield
        return
    chosen = sandbox_gpus.find_real_gpus()[int(LANE) : int(LANE) + 1]

    def render(plan: ClusterPlan) -> str:
        text = render_cgroup_conf(plan)
        for what in ("Cores", "Devices"):
            text = text.replace(f"Constrain{what}=yes", f"Constrain{what}=no")
        return text

    with (
        mock.patch.object(sandbox_gpus, "find_real_gpus", return_value=chosen),
        mock.patch.object(sandbox_files, "render_cgroup_conf", render),
    ):
        yield


@contextlib.contextmanager
def running_gpu_node(
    make: Callable[..., contextlib.AbstractContextManager[Sandbox]] = running_sandbox,
    archive: str = "kept.tar.gz",
    **changes: Any,
) -> Iterator[GpuNode]:
    """One node with the machine's GPUs and CPUs, and a user who was made for this."""
    is_simulated = os.environ.get("CSUB_GPU_SIMULATED") == "1"
    if os.geteuid() != 0:
        pytest.skip("needs to be root")
    if not is_simulated and not Path("/dev/nvidia0").exists():
        pytest.skip("needs an NVIDIA GPU")
    out = Path(os.environ.get("GPU_SUITE_OUT", "/tmp"))
    cores = take_lane()
    if LANES:
        # Slurm would bind the steps of each lane to the same first cores.
        extra = (
            f"FirstJobId={2001 + 1000 * int(LANE)}",
            "TaskPlugin=task/cgroup",
            f"TaskProlog={write_task_prolog()}",
        )
        changes = {"extra_conf": extra, **changes}
    settings = {
        "nodes": 1,
        "gpus_per_node": 1,
        # Simulated work needs no CPUs to speak of.
        "cpus_per_node": 16 if is_simulated else len(cores),
        "host_memory_mb_per_node": 64000,
        "fake_gpus": is_simulated,
        "simgpu": is_simulated,
        **changes,
    }
    name = f"csubg{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", name], check=True, capture_output=True)
    try:
        if not can_reach_checkout(name):
            pytest.fail(f"an ordinary user cannot use {sys.executable} with this checkout")
        with (
            choosing_gpu(),
            make(**settings) as sandbox,
            user_of(sandbox, name) as user,
        ):
            bed = GpuNode(sandbox, user, out, is_simulated, archive)
            bed.gpu_before = bed.read_gpu_state()
            if LANES and not is_simulated:
                check_lane(bed, cores)
            try:
                yield bed
            finally:
                bed.keep_files()
                for entry in bed.find_leftovers().get("directories", []):
                    shutil.rmtree(entry, ignore_errors=True)
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)
