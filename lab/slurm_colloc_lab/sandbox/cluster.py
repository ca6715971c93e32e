"""A sandbox as a whole: up, down, status, and parts lost on purpose."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_colloc.errors import NotFound, UsageProblem
from slurm_colloc.host.system.node_processes import list_running_processes
from slurm_colloc.ownership import name_user
from slurm_colloc_lab.sandbox import daemons
from slurm_colloc_lab.sandbox.installation import find_installation
from slurm_colloc_lab.sandbox.sandbox_files import locked, make_directory, remove_files
from slurm_colloc_lab.sandbox.sandbox_gpus import (
    build_simulation_environment,
    describe_simulation,
    remove_simulated_gpus,
)
from slurm_colloc_lab.sandbox.sandbox_hooks import build_hook_environment, undo_prepared
from slurm_colloc_lab.sandbox.sandbox_processes import find_socket_owners
from slurm_colloc_lab.sandbox.sandbox_record import SandboxRecord, read_record, write_record
from slurm_colloc_lab.sandbox.sandbox_spec import Layout, SandboxSpec, choose_directory
from slurm_colloc_lab.sandbox.sandbox_status import DaemonStatus, SandboxStatus, ask_nodes
from slurm_colloc_lab.sandbox.start_sandbox import plan_sandbox, start_missing, start_with_fallback
from slurm_colloc_lab.sandbox.stop_sandbox import (
    cancel_all_jobs,
    stop_everything,
    stop_job_processes,
    stop_surely,
)


@dataclass(frozen=True)
class UpResult:
    """What `up` did: the names of the daemons it started, none where all of them ran."""

    started: tuple[str, ...]


class Sandbox:
    """The private cluster below one directory.

    Any number of these objects, in any processes, may speak of the same directory: nothing is
    remembered here that is not in its files.

    Args:
        directory: Where it lives; without it the default of this user.
    """

    def __init__(self, directory: Path | None = None) -> None:
        is_root = os.geteuid() == 0
        self.directory = directory or choose_directory(os.environ, is_root=is_root)
        self.layout = Layout(self.directory)

    # What users see

    def up(self, spec: SandboxSpec | None = None) -> UpResult:
        """Bring the cluster up, or bring back what is missing.

        A sandbox that runs, or that lost daemons, keeps its ports, its munge key and its jobs.

        Args:
            spec: What it should be. Without it a sandbox that was not taken down stays as it is,
                and a new one has the defaults.

        Raises:
            CollocError: It cannot be brought up, or it runs with other settings.
        """
        if spec is not None and spec.directory != self.directory:
            raise UsageProblem(f"the sandbox in {self.directory} cannot use {spec.directory}")
        (spec or SandboxSpec(self.directory)).check()
        installation = find_installation(os.environ)
        make_directory(self.directory, 0o755)
        with locked(self.layout):
            record = self._recall(spec)
            forget_jobs = record is None
            if record is None:
                stop_everything(self.layout, None)
                undo_prepared(self.layout)
                record = plan_sandbox(
                    self.layout, spec or SandboxSpec(self.directory), installation
                )
            record = replace(record, version_text=installation.version_text)
            return UpResult(
                start_with_fallback(self.layout, record, installation, forget_jobs=forget_jobs)
            )

    def down(self, *, purge: bool = False) -> bool:
        """End all jobs and daemons of this cluster, and nothing else.

        Logs stay, and so does the count of job ids.

        Args:
            purge: Remove the sandbox's files as well.

        Returns:
            Whether there was anything to end.

        Raises:
            SlurmError: A process did not end.
        """
        if not self.directory.is_dir():
            return False
        with locked(self.layout):
            record = read_record(self.layout.record)
            if record is not None and record.wanted:
                # From here on a next 'up' begins anew, even if this call does not come to its end.
                write_record(self.layout.record, replace(record, wanted=False))
            if record is not None:
                cancel_all_jobs(self.layout, record)
            ended = stop_everything(self.layout, record)
            undo_prepared(self.layout)
            remove_simulated_gpus(self.layout)
            if purge:
                remove_files(self.layout)
        return ended

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables with which Slurm's commands speak to this cluster.

        Args:
            base: The environment that they are added to, whose PATH and LD_LIBRARY_PATH are
                continued; this process's own where it is not given.

        Raises:
            NotFound: It is not up.
        """
        record = self._need_record()
        given = dict(os.environ if base is None else base)
        variables = {"SLURM_CONF": str(self.layout.slurm_conf)}
        if record.spec.hooks:
            variables |= build_hook_environment(self.layout)
        path = given.get("PATH", os.defpath)
        if shutil.which("scontrol", path=path) is None:
            commands = str(find_installation(os.environ).commands)
            variables["PATH"] = os.pathsep.join((commands, path))
        # In front, but nothing of Slurm is there: its commands stay the same.
        return variables | build_simulation_environment(self.layout, given | variables)

    def status(self) -> SandboxStatus:
        """Look at daemons and nodes.

        Raises:
            NotFound: There never was a sandbox in this directory.
        """
        record = read_record(self.layout.record)
        if record is None:
            raise self._not_found()
        table = list_running_processes()
        owner = self.layout.record.stat().st_uid
        munged = daemons.find_munged(self.layout, table, owner)
        controller = daemons.find_slurmctld(self.layout, table, owner)
        found = [
            DaemonStatus("munged", munged[0].pid if munged else None, None),
            DaemonStatus(
                "slurmctld", controller[0].pid if controller else None, record.controller_port
            ),
        ]
        if record.accounting_port is not None:
            slurmdbd = daemons.find_slurmdbd(self.layout, table, owner)
            database = daemons.find_database(self.layout, table, owner)
            found += [
                DaemonStatus("database", database[0].pid if database else None, None),
                DaemonStatus(
                    "slurmdbd", slurmdbd[0].pid if slurmdbd else None, record.accounting_port
                ),
            ]
        for node, port in zip(record.node_names, record.node_ports, strict=True):
            slurmd = daemons.find_slurmd(self.layout, table, node, owner)
            found.append(DaemonStatus(f"slurmd.{node}", slurmd[0].pid if slurmd else None, port))
        # A system may hide the processes of others.
        may_answer = bool(controller and munged) or owner != os.geteuid()
        return SandboxStatus(
            directory=self.directory,
            owner="" if owner == os.geteuid() else name_user(owner),
            wanted=record.wanted,
            slurm_version=record.version_text,
            daemons=tuple(found),
            nodes=ask_nodes(self.layout, record, answering=may_answer),
            cgroup_version=record.cgroups.version,
            cgroup_reason=record.cgroups.reason,
            gpu_reason=record.gpu_reason,
            simulation_reason=describe_simulation(self.layout, record),
        )

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes.

        Raises:
            NotFound: The cluster is not up.
        """
        return self._need_record().node_names

    # Losing parts on purpose

    def stop_controller(self) -> None:
        """End slurmctld alone; jobs go on, commands are refused."""
        with locked(self.layout):
            self._need_record()
            table = list_running_processes()
            controller = daemons.find_slurmctld(self.layout, table)
            stop_surely(self.layout, set(controller), term_s=10.0)

    def start_controller(self) -> None:
        """Start slurmctld again, with the jobs it knew."""
        self._repair()

    def kill_node(self, name: str, *, jobs: bool = False) -> None:
        """KILL the slurmd of one node.

        Args:
            name: The node.
            jobs: KILL its steps and jobs too, as if the whole node were lost.

        Raises:
            NotFound: There is no such node.
        """
        with locked(self.layout):
            record = self._need_record()
            if name not in record.node_names:
                raise NotFound(
                    f"the sandbox has no node '{name}'",
                    hint=f"it has {', '.join(record.node_names)}",
                )
            table = list_running_processes()
            # slurmd first: it must not report the loss of its steps as their end.
            slurmd = set(daemons.find_slurmd(self.layout, table, name))
            lost = daemons.find_job_processes(self.layout, (name,), table) if jobs else set()
            stop_surely(self.layout, slurmd, term_s=0)
            if jobs:
                # Nor may a slurmstepd report that its tasks have ended.
                stepds = lost & find_socket_owners(self.layout.spool, table).keys()
                stop_surely(self.layout, stepds, term_s=0)
                stop_surely(self.layout, lost, term_s=0)
                stop_job_processes(self.layout, (name,))

    def start_node(self, name: str) -> None:
        """Start the slurmd of one node again.

        Raises:
            NotFound: There is no such node.
        """
        if name not in self._need_record().node_names:
            raise NotFound(f"the sandbox has no node '{name}'")
        self._repair(only=f"slurmd.{name}")

    # Inside

    def _repair(self, only: str | None = None) -> None:
        installation = find_installation(os.environ)
        with locked(self.layout):
            record = self._need_record()
            without = () if only is None else self._find_lost_nodes(record, only)
            start_missing(self.layout, record, installation, forget_jobs=False, without=without)

    def _find_lost_nodes(self, record: SandboxRecord, only: str) -> tuple[str, ...]:
        """Nodes that are down and should stay so."""
        table = list_running_processes()
        return tuple(
            node
            for node in record.node_names
            if f"slurmd.{node}" != only and not daemons.find_slurmd(self.layout, table, node)
        )

    def _recall(self, spec: SandboxSpec | None) -> SandboxRecord | None:
        """The record to go on with, or None where the sandbox has to begin anew."""
        record = read_record(self.layout.record)
        if record is None or not record.wanted:
            return None
        if spec is None or spec == record.spec:
            return record
        table = list_running_processes()
        if not (
            daemons.find_slurmctld(self.layout, table)
            or daemons.find_all_slurmd(self.layout, table)
        ):
            return None
        old, new = record.spec.to_record(), spec.to_record()
        changes = ", ".join(
            f"{name} {old[name]}, not {new[name]}" for name in new if new[name] != old[name]
        )
        raise UsageProblem(
            f"the sandbox in {self.directory} runs with other settings ({changes})",
            hint="take it down first with 'csub sandbox down'",
        )

    def _need_record(self) -> SandboxRecord:
        record = read_record(self.layout.record)
        if record is None or not record.wanted:
            raise self._not_found()
        return record

    def _not_found(self) -> NotFound:
        return NotFound(
            f"no sandbox is up in {self.directory}", hint="start one with 'csub sandbox up'"
        )
