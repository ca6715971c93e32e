"""A daemon that root has prepared for this job: found, trusted, and taken over for watching.

Also: MIG instances that root has made for this job, as its setup.json tells of them.

Who: the job's user; where: with the runner. Nothing is believed that anyone but root could have
written, and the daemon has to answer before it is relied on.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.hook_job import SETUP, SETUP_SCHEMA
from slurm_colloc.host.mps.mps_control import (
    find_library_path,
    find_programs,
    parse_pids,
    read_peer,
)
from slurm_colloc.host.mps.mps_logs import write_logs
from slurm_colloc.host.mps.mps_state import DaemonState, MpsOptions, StopReport
from slurm_colloc.host.mps.start_daemon import RunningMps
from slurm_colloc.host.nvml.nvml_query import UUID
from slurm_colloc.host.system.directories import PIPE, PrivateDirectory, read_trusted_uids
from slurm_colloc.host.system.node_processes import identify
from slurm_colloc.model.mig_profiles import InstanceProfile, parse_profile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# ---- MIG instances that root has made for this job, as its setup.json tells of them --------------
#
# Who: the job's user; where: with the runner. That only root can have written the file has been
# seen to by prepared_daemon.

_PROFILE = re.compile(r"[0-9a-z.+-]{2,40}", re.ASCII)


@dataclass(frozen=True)
class MigInstance:
    """A compute instance that a member can have.

    Attributes:
        uuid: What CUDA calls it, `MIG-...`.
        profile: NVML's name of its profile, `3g.40gb`; `3c.7g.80gb` where it has a part of one.
        gpu_instance: The id of that.
        compute_instance: Its own id in there.
        sms: Its streaming multiprocessors.
        memory_mb: Its memory (MiB); common to all that share the GPU instance.
    """

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    sms: int
    memory_mb: int

    @property
    def slices(self) -> int:
        """What it computes with."""
        return count_slices(self.profile)


def count_slices(name: str) -> int:
    """Compute slices of what a profile or a layout's word names: 3 of `3g.40gb` and `3c.7g`."""
    match = re.match(r"(?:([1-7])c\.)?([1-7])g", name)
    return 0 if match is None else int(match[1] or match[2])


@dataclass(frozen=True)
class PreparedGpu:
    """A GPU that is cut into instances.

    Attributes:
        uuid: The GPU's.
        name: Its model.
        instances: What stands on it for this job.
        profiles: What can be made there, by NVML.
    """

    uuid: str
    name: str
    instances: tuple[MigInstance, ...]
    profiles: tuple[InstanceProfile, ...] = ()


@dataclass(frozen=True)
class PreparedMig:
    """What root has made.

    Attributes:
        gpus: The GPUs.
        mps_inside: The site allows an MPS daemon in an instance.
        layout: Its words; empty where in its place one instance has the whole GPU.
    """

    gpus: tuple[PreparedGpu, ...]
    mps_inside: bool = False
    layout: str = ""


def parse_mig(value: Mapping[str, Any]) -> PreparedMig:
    """Read the part `mig` of a setup.json.

    Raises:
        KeyError: Something is missing.
        TypeError: It is something else.
        ValueError: Likewise.
    """
    gpus = tuple(
        PreparedGpu(
            _match(UUID, gpu["uuid"]),
            str(gpu["name"]),
            tuple(map(_parse_instance, gpu["instances"])),
            tuple(parse_profile(profile) for profile in gpu["profiles"]),
        )
        for gpu in value["gpus"]
    )
    return PreparedMig(gpus, bool(value["mps_inside"]), str(value["layout"]))


def _parse_instance(value: Mapping[str, Any]) -> MigInstance:
    return MigInstance(
        _match(UUID, value["uuid"]),
        _match(_PROFILE, value["profile"]),
        int(value["gpu_instance"]),
        int(value["compute_instance"]),
        int(value["sms"]),
        int(value["memory_mb"]),
    )


def _match(pattern: re.Pattern[str], text: Any) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ValueError(f"{str(text)[:40]!a} is none")
    return text


# ---- A daemon that root has prepared for this job: found, trusted, and taken over for watching ---

ANSWER_S = 3.0
"""How long the daemon may take to answer before the pack starts one of its own."""

_LIMIT_BYTES = 64 * 1024
_OPEN_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class PreparedDaemon:
    """One daemon of the node's.

    Args:
        gpus: UUIDs.
        pipe_directory: Its CUDA_MPS_PIPE_DIRECTORY.
        control_ms: From its start to the proved control socket; None where not told.
    """

    gpus: tuple[str, ...]
    pipe_directory: str
    control_ms: float | None = None


@dataclass(frozen=True)
class PreparedSetup:
    """What root has prepared.

    Args:
        mode: `mps`, `mig`, or empty for nothing.
        reason: Why so.
        by: Which hook.
        daemons: The daemons.
        compute_mode: The GPUs' compute mode; None where unknown.
        notes: What else is worth knowing.
        mig: The MIG instances; None for none.
    """

    mode: str
    reason: str
    daemons: tuple[PreparedDaemon, ...] = ()
    mig: PreparedMig | None = None


def open_root_directory(path: str) -> int:
    """Open a directory to pass through, by parents that only root can change.

    Raises:
        NodeError: Someone else could.
        OSError: It cannot be opened.
    """
    trusted = read_trusted_uids()
    if os.geteuid() != 0:
        trusted -= {os.geteuid()}
    descriptor = os.open("/", _OPEN_PATH)
    try:
        for part in filter(None, path.split("/")):
            inner = os.open(part, _OPEN_PATH, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            status = os.fstat(descriptor)
            open_to_all = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
            if status.st_uid not in trusted or open_to_all:
                raise NodeError(f"somebody else than root could change {path}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_prepared(run: str, job_id: str) -> PreparedSetup | None:
    """Read what root has prepared for a job; None where it has done nothing for it.

    Args:
        run: Root's directory on this node.
        job_id: Slurm's number of the job.

    Raises:
        NodeError: It cannot be trusted, or cannot be read.
    """
    path = os.path.join(run, job_id)
    try:
        directory = open_root_directory(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NodeError(f"{path} cannot be opened ({error.strerror})") from error
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(SETUP, flags, dir_fd=directory)
    except FileNotFoundError:
        # The hook was killed before it could say anything.
        return None
    except OSError as error:
        raise NodeError(f"{path}/{SETUP} cannot be read ({error.strerror})") from error
    finally:
        os.close(directory)
    with open(opened, "rb") as file:
        status = os.fstat(opened)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_mode & 0o022
            or (os.geteuid() != 0 and status.st_uid == os.geteuid())
            or status.st_uid not in read_trusted_uids()
        ):
            raise NodeError(f"{path}/{SETUP} is not a file that only root can write")
        data = file.read(_LIMIT_BYTES)
    try:
        value = json.loads(data.decode("ascii"))
        if value["schema"] > SETUP_SCHEMA:
            raise NodeError(f"{path}/{SETUP} was written by a newer version")
        return _parse(value, job_id)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise NodeError(f"{path}/{SETUP} is damaged ({error})") from error


def _parse(value: Mapping[str, Any], job_id: str) -> PreparedSetup:
    if value["job_id"] != job_id:
        raise ValueError("it is of another job")
    return PreparedSetup(
        mode=str(value["mode"]),
        reason=str(value["reason"]),
        daemons=tuple(
            PreparedDaemon(
                tuple(map(str, daemon["gpus"])),
                str(daemon["pipe_directory"]),
                None if daemon["control_ms"] is None else float(daemon["control_ms"]),
            )
            for daemon in value["daemons"]
        ),
        mig=parse_mig(value["mig"]) if value.get("mig") else None,
    )


def adopt_daemon(options: MpsOptions) -> RunningMps:
    """Take over the watching of a daemon that root has started as this user.

    Args:
        options: `adopt` names its pipe directory.

    Raises:
        NodeError: It cannot be trusted, does not answer, or cannot be watched from here.
    """
    pipe = options.adopt
    path, name = os.path.split(pipe)
    if name != PIPE:
        raise NodeError(f"{pipe} is not a pipe directory of the node's MPS daemon")
    programs = find_programs(options.path)
    try:
        descriptor = open_root_directory(path)
    except OSError as error:
        raise NodeError(f"{path} cannot be reached from here ({error.strerror})") from error
    directory = PrivateDirectory(path, descriptor, -1)
    try:
        peer = read_peer(pipe)
        if peer is None:
            raise NodeError("no process listens on the control socket of the node's MPS daemon")
        if peer.uid != os.geteuid():
            raise NodeError(f"the node's MPS daemon is user {peer.uid}'s")
        daemon = identify(peer.pid) if peer.pid > 0 else None
        if daemon is None:
            raise NodeError("the node's MPS daemon is in another pid namespace than the job")
        keeper = identify(os.getpid())
        assert keeper is not None
        state = DaemonState(
            label=options.label,
            gpus=options.gpus,
            programs=programs,
            added={**find_library_path(os.environ), **options.environment},
            keeper=keeper,
            daemon=daemon,
        )
        running = RunningMps.take_over(options, directory, state)
        answer = running.control.ask("get_server_list", ANSWER_S)
        if parse_pids(answer) is None:
            words = answer.problem or (answer.stderr + answer.stdout).strip() or "an empty answer"
            raise NodeError(f"the node's MPS daemon does not answer: {words}")
    except BaseException:
        directory.close()
        raise
    # What it has written before is no news: another keeper may have told it already.
    running.logs.read()
    running.logs.flush()
    return running


def release_daemon(running: RunningMps, logs_prefix: str) -> StopReport:
    """Stop watching: the node's epilog ends the daemon.

    Args:
        running: The daemon; `running.options.logs_to` gets its logs.
        logs_prefix: What the names of the copies begin with.
    """
    notes = []
    logs: tuple[str, ...] = ()
    if running.options.logs_to is not None:
        try:
            logs = write_logs(running.options.logs_to, logs_prefix, running.logs.read_whole())
        except OSError as error:
            notes.append(f"the MPS logs could not be copied: {error}")
    running.logs.close()
    running.directory.close()
    return StopReport(elapsed_ms=0.0, directory_removed=True, logs=logs, notes=tuple(notes))
