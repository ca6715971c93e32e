"""Packs that csub's monitor watches: started, looked at from outside, and kept as recordings.

The same script, without arguments, serves for a training alone and for every member of a pack, so
that all have one signature and a pack finds the usage profile of the training alone. What differs
from run to run stands in a file that the script reads.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_colloc.host.system.node_processes import list_processes
from slurm_colloc.store.report_files import list_sample_files

from .comparison import parse_compute_apps, parse_processes_xml, sum_by_member
from .gpu_node import HERE, GpuNode

OPTIONS = ("--gres=gpu:1", "--mem=6G", "--time=8")
STARTED_PATIENCE_S = 90.0
# Secrets, programs of ours, and what says nothing about what was measured.
_NOT_KEPT = frozenset({"env", "bin", "mps"})
_COMPUTE_APPS = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
# The simulated GPU has no nvidia-smi; the same table from its NVML.
_SIMULATED_APPS = """\
import pynvml as n
n.nvmlInit()
for p in n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0)):
    print(f"{p.pid}, {p.usedGpuMemory >> 20}")
"""


@dataclass
class Recordings:
    """What is kept of the packs, and written anew whenever there is more.

    Attributes:
        path: The archive.
        jobs: Job ids by name.
        texts: Other files: their name in the archive, and what is in them.
    """

    path: Path
    jobs: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def write(self, bed: GpuNode) -> None:
        """Write the archive: a state directory whose packs csub can report on again."""
        packs = {name: bed.find_pack(job_id) for name, job_id in self.jobs.items()}
        names = {name: {"job": self.jobs[name], "pack": packs[name].name} for name in packs}
        draft = self.path.with_suffix(".draft")
        # Members of one script have it as hard links; a file of its own for each is easier to keep.
        with tarfile.open(draft, "w:gz", dereference=True) as archive:
            for pack in packs.values():
                archive.add(pack, f"state/packs/{pack.name}", filter=_choose_file)
            profiles = bed.user.state / "profiles"
            if profiles.exists():
                archive.add(profiles, "state/profiles", filter=_choose_file)
            progress = bed.user.home / "progress"
            if progress.exists():
                archive.add(progress, "progress", filter=_choose_file)
            for name, text in {**self.texts, "names.json": json.dumps(names, indent=1)}.items():
                content = text.encode("utf-8", "surrogateescape")
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                entry.mtime = int(time.time())
                archive.addfile(entry, io.BytesIO(content))
        draft.replace(self.path)


def _choose_file(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.name.rpartition("/")[2] in _NOT_KEPT or not (entry.isreg() or entry.isdir()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


# -- packs -----------------------------------------------------------------------------------------


def write_training(bed: GpuNode) -> Path:
    """The script of the small training."""
    progress = bed.user.home / "progress"
    progress.mkdir(exist_ok=True)
    os.chown(progress, bed.user.uid, bed.user.gid)
    program = [sys.executable, str(HERE / "train_small.py"), "--cores", "1"]
    if bed.is_simulated:
        program += ["--device", "cpu", "--batch", "2"]
    lines = [
        f'. "{bed.user.home}/options"',
        *use_simulated_gpu(bed),
        f'{shlex.join(program)} --seconds "$for_s" --progress "{find_progress_words(bed)}"',
        *leave_simulated_gpu(bed),
    ]
    return bed.user.script("training.sh", "\n".join(lines))


def find_progress_words(bed: GpuNode) -> str:
    """Where a member writes its progress, for its shell."""
    return f"{bed.user.home}/progress/$SLURM_JOB_ID.${{SLURM_COLLOC_MEMBER##*/}}"


def use_simulated_gpu(bed: GpuNode) -> list[str]:
    """Lines of a script; none where the GPU is real."""
    # PyTorch cannot use it, so another program of the member does.
    if not bed.is_simulated:
        return []
    # Later than the start, as a program that loads its libraries first.
    return ["(sleep 5; exec simgpu run --seconds 600 --gpu-memory 2G --sm 30 --dram 5) & other=$!"]


def leave_simulated_gpu(bed: GpuNode) -> list[str]:
    """The lines that follow it."""
    if not bed.is_simulated:
        return []
    return ["status=$?", "kill $other", "wait $other", "exit $status"]


def write_options(bed: GpuNode, seconds: float, *, limit_threads: bool = True) -> None:
    """What the next trainings do.

    Args:
        bed: Where.
        seconds: How long they train after their warm-up.
        limit_threads: Keep the thread limit that csub gives members under MPS.
    """
    lines = [f"for_s={seconds:g}"]
    if not limit_threads:
        # csub has no option for it; a client may ask for anything up to the daemon's own limit.
        lines.append("export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100")
    (bed.user.home / "options").write_text("\n".join([*lines, ""]))


def write_program(bed: GpuNode, name: str, words: Sequence[str], *, progress: bool = False) -> Path:
    """A script of a program of this folder; it writes its progress where trainings do."""
    program = [sys.executable, str(HERE / words[0]), *words[1:]]
    if bed.is_simulated:
        program += ["--device", "cpu", "--batch", "2"]
    line = shlex.join(program)
    if progress:
        line += f' --progress "{find_progress_words(bed)}"'
    lines = [*use_simulated_gpu(bed), line, *leave_simulated_gpu(bed)]
    return bed.user.script(name, "\n".join(lines))


def read_progress(bed: GpuNode, job_id: str, number: int) -> str:
    """What a member has written of its progress; empty before."""
    path = bed.user.home / "progress" / f"{job_id}.{number}"
    with contextlib.suppress(FileNotFoundError):
        return path.read_text()
    return ""


def wait_until_all_train(bed: GpuNode, job_id: str, members: int) -> None:
    """Wait until every member has gone through its warm-up."""

    def look() -> bool:
        return all(read_progress(bed, job_id, n).count("\n") > 1 for n in range(1, members + 1))

    try:
        bed.wait(look, f"{members} members of {job_id} train", STARTED_PATIENCE_S)
    except BaseException as error:
        error.add_note(bed.user.describe(job_id))
        raise


# -- looks from outside ----------------------------------------------------------------------------


def take_look(bed: GpuNode, job_id: str, recordings: Recordings, name: str) -> dict[str, Any]:
    """What nvidia-smi says at this moment of the members' gpu_memory, in MiB.

    Args:
        bed: Where.
        job_id: The pack.
        recordings: Takes the raw output.
        name: What the look is called there.
    """
    owners = find_owners(bed, job_id)
    before = time.time()
    text = _ask(bed, _COMPUTE_APPS)
    after = time.time()
    sizes = parse_compute_apps(text)
    source = "nvidia-smi --query-compute-apps"
    by_member = sum_by_member(sizes, owners)
    recordings.texts[f"nvidia-smi/{name}.csv"] = text
    if None in by_member.values() or set(by_member) != set(owners.values()):
        # Clients of MPS stand in the long output with some drivers alone.
        text = _ask(bed, ("-q", "-x"))
        recordings.texts[f"nvidia-smi/{name}.xml"] = text
        more = sum_by_member(parse_processes_xml(text), owners)
        source = "nvidia-smi -q -x"
        by_member = {n: more.get(n, by_member.get(n)) for n in {*more, *by_member}}
    return {
        "at": (before + after) / 2,
        "took_s": round(after - before, 3),
        "source": source,
        "members_mb": {str(number): size for number, size in sorted(by_member.items())},
        "others_mb": {str(pid): size for pid, size in sizes.items() if pid not in owners},
    }


def _ask(bed: GpuNode, words: Sequence[str]) -> str:
    argv, environment = ["nvidia-smi", *words], dict(os.environ)
    if bed.is_simulated:
        argv = [sys.executable, "-c", _SIMULATED_APPS]
        environment.update(bed.sandbox.env())
    ended = subprocess.run(
        argv,
        env=environment,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        check=False,
    )
    return ended.stdout + ended.stderr


def keep_long_output(bed: GpuNode, recordings: Recordings, name: str) -> None:
    """Keep all that nvidia-smi says of the GPU now."""
    if not bed.is_simulated:
        recordings.texts[f"nvidia-smi/{name}-all.xml"] = _ask(bed, ("-q", "-x"))


def find_owners(bed: GpuNode, job_id: str) -> dict[int, int]:
    """The member of each process of a pack, by pid; wrappers themselves left out."""
    wrappers = {}
    for path in bed.find_pack(job_id).glob("members/*/run.*.started"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            wrappers[int(json.loads(path.read_text())["wrapper_pid"])] = int(path.parent.name)
    parents = {process.id.pid: process.parent_pid for process in list_processes()}
    owners = {}
    for pid in parents:
        above = parents.get(pid)
        while above is not None and above not in wrappers:
            above = parents.get(above)
        if above is not None:
            owners[pid] = wrappers[above]
    return owners


def find_monitor(bed: GpuNode, job_id: str) -> int:
    """The pid of a pack's monitor."""
    return int(bed.wait_for_event(job_id, "monitor")["pid"])


def read_cpu_s(pid: int) -> float | None:
    """Processor time of a process and all its threads, in seconds (proc(5)); None: it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(bed: GpuNode, *words: str) -> str:
    """What csub prints for the user, kept in seen.txt."""
    ended = bed.user.run(["csub", *words], environment={"COLUMNS": "140"}, check=False)
    text = ended.stdout + ended.stderr
    with (bed.out / "seen.txt").open("a", errors="surrogateescape") as file:
        file.write(f"$ csub {' '.join(words)}\n{text}\n")
    assert ended.returncode == 0, text
    assert "Traceback" not in text
    return text


# -- what was measured -----------------------------------------------------------------------------


def read_report(bed: GpuNode, job_id: str) -> dict[str, Any]:
    """The pack's summary by `csub report --json`."""
    (summary,) = json.loads(bed.user.csub("report", "--json", job_id).stdout)
    return dict(summary)


def read_rows(pack: Path, table: str) -> list[dict[str, Any]]:
    """All samples of a pack's table, a dictionary each."""
    import pyarrow.parquet as pq

    files = list_sample_files(pack, table)
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def read_monitor_record(pack: Path) -> dict[str, Any]:
    """What the monitor says of itself."""
    value: dict[str, Any] = json.loads((pack / "report" / "monitor.json").read_text())
    return value
