"""What simulated GPUs and the processes on them are, as small files that processes share.

A simulation is one directory. Each node in it has

    gpus/N           a GPU by its nvml_index: for the owner of the simulation to write
    profiles/N       how it can be partitioned (partition_profiles.py)
    instances/N      its MIG instances, written by NVML for root (mig_instances.py)
    processes/PID    a process that holds a context, written by that process itself
    totals           what ended processes used, by GPU: written in place, under the lock
    lock             flock, held while what two processes depend on is changed

All files are `key=value` lines. nvml_state.c reads the same files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_colloc.errors import NotFound, StateError
from slurm_colloc.host.system.node_processes import read_process
from slurm_colloc_lab.simgpu.nvml.gpu_records import (
    SUMS,
    SimulatedGpu,
    SimulatedProcess,
    parse_gpu,
    parse_process,
    parse_totals,
    render_gpu,
    render_process,
    render_totals,
)

ROOT_VARIABLE = "SIMGPU_ROOT"

# What a user writes is never read beyond this.
_FILE_BYTES = 4096
# A line for each sum of each GPU; read and written under the lock.
_TOTALS_BYTES = 65536
_LOCK_S = 10.0
_POLL_S = 0.002


class Node:
    """One node of a simulation.

    Args:
        directory: SIM/nodes/NODE.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def name(self) -> str:
        """The node's name."""
        return self.directory.name

    def read_gpus(self) -> tuple[SimulatedGpu, ...]:
        """All GPUs, in the order of their nvml_index, whether this process may open them or not.

        Raises:
            StateError: A file is damaged.
        """
        folder = self.directory / "gpus"
        found = sorted(int(entry) for entry in _list_names(folder) if entry.isdigit())
        gpus = []
        for number in found:
            text = _read_regular(folder / str(number), None)
            try:
                gpus.append(parse_gpu(number, text or ""))
            except (TypeError, ValueError) as error:
                raise StateError(
                    f"{folder / str(number)} is damaged ({error})",
                    hint="make the simulation anew",
                ) from error
        return tuple(gpus)

    def read_visible_gpus(self) -> tuple[SimulatedGpu, ...]:
        """The GPUs that this process may open. Their order is the order NVML shows them in."""
        return tuple(gpu for gpu in self.read_gpus() if is_permitted(gpu.device))

    def write_gpu(self, gpu: SimulatedGpu) -> None:
        """Replace a GPU's file; only the owner of the simulation may."""
        write_file(self.directory / "gpus" / str(gpu.nvml_index), render_gpu(gpu), 0o644)

    def read_processes(self) -> tuple[SimulatedProcess, ...]:
        """The processes that are alive, by pid. Files of others are not believed."""
        found = []
        for pid in self._list_pids():
            process = self._read_process(pid)
            if process is not None and is_alive(process):
                found.append(process)
        return tuple(found)

    def write_process(self, process: SimulatedProcess) -> None:
        """Describe a process; only its owner can.

        Raises:
            StateError: It cannot be written.
        """
        folder = self.directory / "processes"
        write_file(folder / str(process.pid), render_process(process), 0o644)

    def remove_process(self, pid: int) -> None:
        """Take a process away and keep what it used. Nothing happens where it is gone already."""
        with self.locked():
            self._remove(pid)

    def reap(self) -> tuple[int, ...]:
        """Take away dead processes, as far as this user may; their pids."""
        dead = [
            pid
            for pid in self._list_pids()
            if (process := self._read_process(pid)) is None or not is_alive(process)
        ]
        if not dead:
            return ()
        reaped = []
        with self.locked():
            for pid in dead:
                # Looked at again under the lock: the number may be in use once more.
                process = self._read_process(pid)
                if (process is None or not is_alive(process)) and self._remove(pid):
                    reaped.append(pid)
        return tuple(reaped)

    def read_pace(self, uuid: str) -> float:
        """How fast a GPU is over what its model is; see `simgpu faults`."""
        text = _read_regular(self.directory.parent.parent / "faults", None) or ""
        for word in text.split():
            if word.startswith(f"paced={uuid}:"):
                return float(word.rpartition(":")[2])
        return 1.0

    def read_fallen(self) -> frozenset[str]:
        """The GPUs that have fallen off the bus, by UUID; see `simgpu faults`."""
        text = _read_regular(self.directory.parent.parent / "faults", None) or ""
        words = (word.partition("=") for word in text.split())
        return frozenset(uuid for name, _, uuid in words if name == "fallen")

    def read_totals(self) -> dict[str, dict[str, float]]:
        """What ended processes used, by UUID."""
        text = _read_regular(self.directory / "totals", None, _TOTALS_BYTES) or ""
        try:
            return parse_totals(text)
        except ValueError:
            return {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the node's lock; the kernel frees it with the process.

        Raises:
            StateError: It was held for ten seconds.
        """
        path = self.directory / "lock"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise StateError(
                f"{path} cannot be opened ({error.strerror})", hint="make the simulation anew"
            ) from error
        deadline = time.monotonic() + _LOCK_S
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StateError(f"{path} has been held for {_LOCK_S:.0f} s") from None
                    time.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _list_pids(self) -> list[int]:
        names = _list_names(self.directory / "processes")
        return sorted(int(name) for name in names if name.isdigit())

    def _read_process(self, pid: int) -> SimulatedProcess | None:
        text = _read_regular(self.directory / "processes" / str(pid), pid)
        return None if text is None else parse_process(pid, text)

    def _remove(self, pid: int) -> bool:
        """Under the lock: the file goes first, so that nothing is ever counted twice."""
        path = self.directory / "processes" / str(pid)
        text = _read_regular(path, None)
        process = None if text is None else parse_process(pid, text)
        try:
            path.unlink()
        except OSError:
            return False
        for name in _list_names(path.parent):
            if name.startswith(f".{pid}."):
                with contextlib.suppress(OSError):
                    (path.parent / name).unlink()
        if process is None:
            return True
        totals = self.read_totals()
        for uuid in name_totals(process):
            sums = totals.setdefault(uuid, dict.fromkeys(SUMS, 0.0))
            for name in SUMS:
                sums[name] = sums.get(name, 0.0) + getattr(process, name)
        data = render_totals(totals).encode()
        descriptor = os.open(self.directory / "totals", os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)
        return True


def name_totals(process: SimulatedProcess) -> tuple[str, ...]:
    """Under which names it is kept what a process used: its GPUs, and its GPU instance."""
    gpu_instance, _, _ = process.instance.partition("/")
    # A user wrote it.
    if not process.gpus or not re.fullmatch("[0-9]{1,2}", gpu_instance):
        return process.gpus
    return (*process.gpus, f"{process.gpus[0]}/{gpu_instance}")


def open_node(environment: Mapping[str, str]) -> Node:
    """The node that a process with this environment runs on.

    That is SLURMD_NODENAME where the simulation knows it, else its only or first node.

    Raises:
        NotFound: The environment names no simulation.
    """
    root = environment.get(ROOT_VARIABLE, "")
    names = sorted(_list_names(Path(root) / "nodes")) if root else []
    if not names:
        raise NotFound(
            f"{ROOT_VARIABLE}='{root}' is not a simulation of GPUs",
            hint="make one with 'csub sandbox up --fake-gpus' and use 'csub sandbox env'",
        )
    wanted = environment.get("SLURMD_NODENAME", "")
    return Node(Path(root) / "nodes" / (wanted if wanted in names else names[0]))


def read_starttime(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat (proc(5)), or None where the process is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name stands in parentheses and may itself hold blanks and parentheses.
    fields = text.rpartition(")")[2].split()
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def is_permitted(device: str) -> bool:
    """Whether this process may open a GPU's device file; without one, always.

    A device without a driver behind it answers ENXIO or ENODEV once it may be opened. Only a
    refusal hides a GPU, as a cgroup's device limit does.
    """
    if not device:
        return True
    try:
        os.close(os.open(device, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def is_alive(process: SimulatedProcess) -> bool:
    """Whether this very process still runs."""
    return read_starttime(process.pid) == process.starttime


def is_stopped(process: SimulatedProcess) -> bool:
    """Whether a signal has stopped it (proc(5), T or t)."""
    found = read_process(process.pid)
    return found is not None and found.state in "Tt"


def write_file(path: Path, text: str, mode: int) -> None:
    """Write a whole file: a reader sees the old content or the new, never half of it.

    Raises:
        StateError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            os.write(descriptor, text.encode())
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError as error:
        raise StateError(f"{path} cannot be written ({error.strerror})") from error


def read_small_file(path: Path) -> str | None:
    """The text of a small regular file, no matter who wrote it; None where there is none."""
    return _read_regular(path, None)


def _list_names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []


def _read_regular(path: Path, pid: int | None, size: int = _FILE_BYTES) -> str | None:
    """A small regular file's text; with `pid` only where that process's owner wrote it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        if pid is not None and Path(f"/proc/{pid}").stat().st_uid != status.st_uid:
            return None
        return os.read(descriptor, size).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
