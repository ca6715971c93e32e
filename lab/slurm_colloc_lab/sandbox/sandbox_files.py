"""The files of a sandbox: directories, key, devices, configuration and the lock."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc_lab.sandbox import sandbox_gpus
from slurm_colloc_lab.sandbox.installation import Installation
from slurm_colloc_lab.sandbox.sandbox_gpus import remove_simulated_gpus
from slurm_colloc_lab.sandbox.sandbox_hooks import install_hooks, remove_hooks
from slurm_colloc_lab.sandbox.sandbox_processes import wait_until
from slurm_colloc_lab.sandbox.sandbox_record import SandboxRecord, write_file, write_record
from slurm_colloc_lab.sandbox.sandbox_spec import Layout
from slurm_colloc_lab.sandbox.slurm_conf import (
    ClusterPlan,
    Host,
    NodePlan,
    render_cgroup_conf,
    render_gres_conf,
    render_slurm_conf,
)

_LOCK_S = 60.0
_MUNGE_KEY_BYTES = 128


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Hold the sandbox's lock; the kernel frees it with the process.

    Raises:
        StateError: It cannot be made, or another command holds it for a minute.
    """
    held: list[int] = []

    def take() -> bool:
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # 'down --purge' may have removed the file between the two calls.
            if os.path.samestat(os.fstat(descriptor), layout.lock.stat()):
                held.append(descriptor)
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            if not held:
                os.close(descriptor)
        return False

    try:
        taken = wait_until(take, _LOCK_S)
    except OSError as error:
        raise StateError(
            f"{layout.lock} cannot be opened ({error.strerror})",
            hint="use your own sandbox, or choose a directory with --dir",
        ) from error
    if not taken:
        raise StateError(
            f"another command has been at work on the sandbox in {layout.directory} "
            f"for {_LOCK_S:.0f} seconds",
            hint="wait for it to end and try again",
        )
    try:
        yield
    finally:
        os.close(held[0])


def make_directory(directory: Path, mode: int) -> None:
    """Make a directory of the sandbox, or take one that is already ours.

    Raises:
        StateError: It cannot be made, or belongs to another user.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise StateError(
                f"the sandbox directory {directory} belongs to somebody else",
                hint="choose another one with --dir",
            )
        directory.chmod(mode)
    except OSError as error:
        raise StateError(
            f"the sandbox directory {directory} cannot be made ({error.strerror})",
            hint="choose another one with --dir",
        ) from error


def write_files(
    layout: Layout, record: SandboxRecord, installation: Installation
) -> sandbox_gpus.GpuFiles:
    """Make directories, key, devices and configuration, then remember the sandbox; its GPUs."""
    is_root = os.geteuid() == 0
    for directory, mode in (
        (layout.etc, 0o755),
        (layout.run, 0o755),
        (layout.dev, 0o755),
        (layout.spool, 0o755),
        (layout.log, 0o700),
        (layout.state, 0o700),
        *((layout.spool / node, 0o755) for node in record.node_names),
    ):
        make_directory(directory, mode)
    write_record(layout.record, record)
    if not layout.munge_key.exists():
        write_file(layout.munge_key, os.urandom(_MUNGE_KEY_BYTES), mode=0o400)
    spec = record.spec
    files = sandbox_gpus.choose_gpu_files(
        sandbox_gpus.find_real_gpus(),
        layout.dev,
        nodes=spec.nodes,
        per_node=spec.gpus_per_node,
        fake=spec.fake_gpus,
    )
    if not files.real:
        sandbox_gpus.make_fake_gpus(
            tuple(file for node in files.per_node for file in node), is_root=is_root
        )
    plan = ClusterPlan(
        spec=spec,
        layout=layout,
        host=Host(
            name=socket.gethostname().partition(".")[0],
            cpus=len(os.sched_getaffinity(0)),
            user=pwd.getpwuid(os.geteuid()).pw_name,
            is_root=is_root,
        ),
        version=installation.version,
        controller_port=record.controller_port,
        nodes=tuple(
            NodePlan(name, port, gpu_files)
            for name, port, gpu_files in zip(
                record.node_names, record.node_ports, files.per_node, strict=True
            )
        ),
        cgroups=record.cgroups,
        plugin_directory=installation.plugin_directory,
        accounting_port=record.accounting_port,
    )
    if spec.hooks:
        install_hooks(layout, has_simulation=spec.simgpu and not files.real, may_divide=spec.mig)
    write_file(layout.slurm_conf, render_slurm_conf(plan), mode=0o644)
    write_file(layout.etc / "gres.conf", render_gres_conf(plan), mode=0o644)
    write_file(layout.etc / "cgroup.conf", render_cgroup_conf(plan), mode=0o644)
    return files


def remove_files(layout: Layout) -> None:
    """Remove the sandbox's files, and its directory where nothing else is in it."""
    for directory in (
        layout.etc,
        layout.run,
        layout.dev,
        layout.spool,
        layout.log,
        layout.state,
        layout.accounts,
    ):
        shutil.rmtree(directory, ignore_errors=True)
    remove_simulated_gpus(layout)
    remove_hooks(layout)
    layout.record.unlink(missing_ok=True)
    layout.lock.unlink(missing_ok=True)
    if not any(layout.directory.iterdir()):
        layout.directory.rmdir()
