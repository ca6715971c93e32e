"""Planning a sandbox and starting those of its daemons that do not run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from slurm_colloc.errors import SlurmError, UsageProblem
from slurm_colloc.host.system.node_processes import list_running_processes
from slurm_colloc_lab.sandbox import daemons, sandbox_gpus
from slurm_colloc_lab.sandbox.accounting import find_accounting_programs, start_accounting
from slurm_colloc_lab.sandbox.cgroups import CgroupSupport, detect_cgroups, find_node_groups
from slurm_colloc_lab.sandbox.daemons import choose_free_ports, is_port_free, is_port_listening
from slurm_colloc_lab.sandbox.installation import Installation
from slurm_colloc_lab.sandbox.sandbox_files import write_files
from slurm_colloc_lab.sandbox.sandbox_gpus import make_simulated_gpus
from slurm_colloc_lab.sandbox.sandbox_processes import wait_until
from slurm_colloc_lab.sandbox.sandbox_record import SandboxRecord, write_record
from slurm_colloc_lab.sandbox.sandbox_spec import (
    Layout,
    SandboxSpec,
    choose_directory,
    choose_node_names,
)
from slurm_colloc_lab.sandbox.sandbox_status import NodeStatus, ask_nodes, run_command
from slurm_colloc_lab.sandbox.stop_sandbox import stop_everything

_ANSWER_S = 20.0
_NODES_S = 30.0
_TRIAL_END_S = 5.0
_MISSES = 20
# What slurmctld says of several nodes on one machine where it is not built for them.
_ONE_NODE_ONLY = "Duplicated NodeHostName"
_STARTED = " started on cluster "


def plan_sandbox(layout: Layout, spec: SandboxSpec, installation: Installation) -> SandboxRecord:
    """Decide what a new sandbox is made of, and remember it."""
    is_root = os.geteuid() == 0
    files = sandbox_gpus.choose_gpu_files(
        sandbox_gpus.find_real_gpus(),
        layout.dev,
        nodes=spec.nodes,
        per_node=spec.gpus_per_node,
        fake=spec.fake_gpus,
    )
    if spec.mig and files.real:
        raise UsageProblem("--mig is for simulated GPUs", hint="give --fake-gpus")
    plain = layout.directory == choose_directory(os.environ, is_root=is_root)
    names = choose_node_names(layout.directory, spec.nodes, plain=plain)
    if plain and find_node_groups(names):
        names = choose_node_names(layout.directory, spec.nodes, plain=False)
    if spec.accounting:
        find_accounting_programs(os.environ)
    ports = choose_free_ports(1 + spec.nodes + spec.accounting)
    return SandboxRecord(
        spec=spec,
        node_names=names,
        controller_port=ports[0],
        node_ports=ports[1 : 1 + spec.nodes],
        cgroups=detect_cgroups(is_root=is_root),
        gpus_are_real=files.real,
        gpu_reason=files.reason,
        version_text=installation.version_text,
        wanted=True,
        tried=False,
        accounting_port=ports[-1] if spec.accounting else None,
    )


def start_with_fallback(
    layout: Layout, record: SandboxRecord, installation: Installation, *, forget_jobs: bool
) -> tuple[str, ...]:
    """Start; where the host's cgroups fail in practice, start again without them.

    Only a trial step can show that. It runs once in the life of a sandbox, and not where extra
    lines of configuration (a failing prolog under test, say) could make it fail for their own
    reasons.
    """
    try:
        started = start_missing(layout, record, installation, forget_jobs=forget_jobs)
        if record.tried or not record.cgroups.version or record.spec.extra_conf:
            return started
        _try_step(layout, record)
    except SlurmError as error:
        reason = _find_cgroup_error(layout, record)
        if record.tried or not record.cgroups.version or not reason:
            raise
        stop_everything(layout, record)
        support = CgroupSupport(0, False, f"a trial step failed with them ({reason})")
        record = replace(record, cgroups=support)
        try:
            started = start_missing(layout, record, installation, forget_jobs=True)
        except SlurmError:
            raise error from None
    write_record(layout.record, replace(record, tried=True))
    return started


def start_missing(
    layout: Layout,
    record: SandboxRecord,
    installation: Installation,
    *,
    forget_jobs: bool,
    without: Sequence[str] = (),
) -> tuple[str, ...]:
    """Start every daemon that does not run, and wait until the nodes have registered.

    Args:
        layout: Whose.
        record: What the sandbox is made of.
        installation: The programs.
        forget_jobs: Begin with no jobs.
        without: Nodes that are down and stay so.

    Returns:
        The names of the daemons that were started.

    Raises:
        SlurmError: A daemon died, a port is taken or a node does not register.
    """
    table = list_running_processes()
    nodes = [
        (node, port)
        for node, port in zip(record.node_names, record.node_ports, strict=True)
        if node not in without and not daemons.find_slurmd(layout, table, node)
    ]
    munge_missing = not daemons.find_munged(layout, table)
    controller_missing = not daemons.find_slurmctld(layout, table)
    started: list[str] = []
    with ThreadPoolExecutor(max_workers=17) as pool:
        # The daemons' start is mostly waiting; meanwhile the compiler may work.
        simulated = None
        if nodes or munge_missing or controller_missing:
            files = write_files(layout, record, installation)
            simulated = pool.submit(make_simulated_gpus, layout, record, files)
        if munge_missing:
            daemons.start_daemon("munged", daemons.build_munged_argv(installation, layout), layout)
            started.append("munged")
        if record.accounting_port is not None:
            plugins = installation.plugin_directory
            started += start_accounting(layout, record.accounting_port, plugins)
        if controller_missing:
            _start_controller(layout, record, installation, forget_jobs=forget_jobs)
            started.append("slurmctld")

        def start_one(node: tuple[str, int]) -> None:
            _start_node(layout, node[0], node[1], installation)

        list(pool.map(start_one, nodes))
        started += [f"slurmd.{node}" for node, _ in nodes]
        _wait_for_nodes(layout, record, without)
        if simulated is not None:
            simulated.result()
    return tuple(started)


def _start_controller(
    layout: Layout, record: SandboxRecord, installation: Installation, *, forget_jobs: bool
) -> None:
    port = record.controller_port
    _need_free_port("slurmctld", port)
    argv = daemons.build_slurmctld_argv(installation, layout, forget_jobs=forget_jobs)
    daemons.start_daemon("slurmctld", argv, layout)
    _wait_for_port(layout, "slurmctld", port, argv)
    text = daemons.read_tail(layout.log / "slurmctld.log")
    if len(record.node_names) > 1 and _ONE_NODE_ONLY in text.rpartition(_STARTED)[2]:
        raise SlurmError(
            "this Slurm was built without --enable-multiple-slurmd, so a machine can be one node",
            hint="take the sandbox down, and start it with --nodes 1",
        )


def _start_node(layout: Layout, node: str, port: int, installation: Installation) -> None:
    _need_free_port(f"slurmd.{node}", port)
    argv = daemons.build_slurmd_argv(installation, layout, node)
    daemons.start_daemon(f"slurmd.{node}", argv, layout)
    _wait_for_port(layout, f"slurmd.{node}", port, argv)


def _need_free_port(name: str, port: int) -> None:
    # A daemon that was just killed may still be letting go of its port.
    if not wait_until(lambda: is_port_free(port), 2.0):
        raise SlurmError(
            f"TCP port {port} of {name} is taken by another program",
            hint="'csub sandbox down' and then 'up' choose new ports",
        )


def _wait_for_port(layout: Layout, name: str, port: int, argv: Sequence[str]) -> None:
    # Right after its double fork a daemon can be missing from one look at the process table.
    misses = 0

    def settled() -> bool:
        nonlocal misses
        misses = 0 if daemons.is_running(layout, name) else misses + 1
        return is_port_listening(port) or misses > _MISSES

    wait_until(settled, _ANSWER_S)
    if misses > _MISSES:
        raise daemons.build_daemon_error(name, argv, layout)
    if not is_port_listening(port):
        raise SlurmError(
            f"{name} of the sandbox does not listen on port {port}",
            hint=f"see {layout.log / name}.log",
            argv=argv,
        )


def _wait_for_nodes(layout: Layout, record: SandboxRecord, without: Sequence[str]) -> None:
    """Wait until the controller has heard from every node."""
    pending: list[NodeStatus] = []

    def ready() -> bool:
        pending[:] = [
            node
            for node in ask_nodes(layout, record, answering=True)
            if node.name not in without
            and (node.state.endswith("*") or node.state.startswith(("un", "down", "inval")))
        ]
        return not pending

    if not wait_until(ready, _NODES_S, poll_s=0.05):
        node = pending[0]
        log = layout.log / f"slurmd.{node.name}.log"
        reason = node.reason or daemons.find_last_error(daemons.read_tail(log))
        raise SlurmError(
            f"node {node.name} of the sandbox stays {node.state} ({reason})", hint=f"see {log}"
        )


def _try_step(layout: Layout, record: SandboxRecord) -> None:
    """Run one step on every node: the only proof that a set of options works on this host."""
    nodes = str(len(record.node_names))
    run_command(
        layout, ["srun", "-N", nodes, "-n", nodes, "--mem=16", "-t1", "-J", "sandbox_trial", "true"]
    )
    # Tests should find idle nodes; where the trial takes long to be cleared away they need not.
    wait_until(
        lambda: all(node.state == "idle" for node in ask_nodes(layout, record, answering=True)),
        _TRIAL_END_S,
        poll_s=0.05,
    )


def _find_cgroup_error(layout: Layout, record: SandboxRecord) -> str:
    for node in record.node_names:
        text = daemons.read_tail(layout.log / f"slurmd.{node}.log")
        about = [line for line in text.splitlines() if "cgroup" in line]
        if any("error" in line or "fatal" in line for line in about):
            return daemons.find_last_error("\n".join(about))
    return ""
