"""The commands `csub sandbox up | status | env | down`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from slurm_colloc.errors import CollocError
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_record import read_record
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec, check_directory_name
from slurm_colloc_lab.sandbox.sandbox_status import SandboxStatus

app = typer.Typer(
    name="sandbox",
    help="A private Slurm cluster on this machine, to try csub without touching a real one.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


class OutputFormat(StrEnum):
    """How the answer is written."""

    TEXT = "text"
    JSON = "json"


DirectoryOption = Annotated[
    Path | None, typer.Option("--dir", help="Where the cluster lives.", show_default=False)
]
FormatOption = Annotated[OutputFormat, typer.Option("--format", help="text or json.")]


def main(argv: Sequence[str]) -> int:
    """Run one command; the exit status. Problems are told on standard error."""
    try:
        app(args=list(argv), prog_name="csub sandbox")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 1
    except CollocError as problem:
        sys.stderr.write(f"csub: error: {problem}\n")
        return problem.exit_code
    return 0


@app.command()
def up(  # noqa: PLR0917 - typer calls it by keyword
    directory: DirectoryOption = None,
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes, default 2.", show_default=False)
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(
            help="GPUs of each node: default 2 fake ones, or an equal share of the real ones.",
            show_default=False,
        ),
    ] = None,
    cpus_per_node: Annotated[
        int | None,
        typer.Option(
            help="CPUs of each node: default the host's, at least 8 per GPU.", show_default=False
        ),
    ] = None,
    memory_per_node: Annotated[
        int | None,
        typer.Option(help="Host memory of each node in MB, default 16000.", show_default=False),
    ] = None,
    fake_gpus: Annotated[
        bool | None,
        typer.Option("--fake-gpus", help="Do not use the real GPUs.", show_default=False),
    ] = None,
    gpu_type: Annotated[
        str | None,
        typer.Option(
            help="GRES type, for example a100; h100,a100: half of each node's GPUs each.",
            show_default=False,
        ),
    ] = None,
    kill_wait: Annotated[
        int | None,
        typer.Option(help="Seconds between TERM and KILL, default 5.", show_default=False),
    ] = None,
    grace_time: Annotated[
        int | None,
        typer.Option(
            help="Seconds that a preempted job gets in partition preempt, default 5.",
            show_default=False,
        ),
    ] = None,
    slurmd_timeout: Annotated[
        int | None,
        typer.Option(help="Seconds until a silent node is down, default 30.", show_default=False),
    ] = None,
    simgpu: Annotated[
        bool | None,
        typer.Option(
            "--simgpu/--no-simgpu",
            help="Simulate NVML and MPS for fake GPUs, which is the default.",
            show_default=False,
        ),
    ] = None,
    hooks: Annotated[
        bool | None,
        typer.Option(
            "--hooks/--no-hooks",
            help="Let root's prolog and epilog prepare MPS; only for root.",
            show_default=False,
        ),
    ] = None,
    mig: Annotated[
        bool | None,
        typer.Option(
            "--mig/--no-mig",
            help="Turn MIG mode on, as a site does at boot; only for simulated GPUs.",
            show_default=False,
        ),
    ] = None,
    accounting: Annotated[
        bool | None,
        typer.Option(
            "--accounting/--no-accounting",
            help="Keep accounts, for sacct: needs slurmdbd and MariaDB.",
            show_default=False,
        ),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(help="A line for slurm.conf; may be repeated.", show_default=False),
    ] = None,
    output: FormatOption = OutputFormat.TEXT,
) -> None:
    """Start the cluster, or start again what is missing."""
    sandbox = _open(directory)
    given: dict[str, object] = {
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "cpus_per_node": cpus_per_node,
        "host_memory_mb_per_node": memory_per_node,
        "fake_gpus": fake_gpus,
        "gpu_type": gpu_type,
        "simgpu": simgpu,
        "kill_wait_s": kill_wait,
        "grace_time_s": grace_time,
        "slurmd_timeout_s": slurmd_timeout,
        "hooks": hooks,
        "mig": mig,
        "accounting": accounting,
        "extra_conf": tuple(conf) if conf else None,
    }
    started = sandbox.up(choose_spec(sandbox, given)).started
    status = sandbox.status()
    if output is OutputFormat.JSON:
        typer.echo(json.dumps({"started": list(started), **build_json(status)}, indent=2))
        return
    if not started:
        typer.echo(f"The sandbox in {status.directory} runs already, nothing to do.")
    elif len(started) < len(status.daemons):
        typer.echo(
            f"The sandbox in {status.directory} is whole again; started {', '.join(started)}."
        )
    else:
        typer.echo(f"The sandbox in {status.directory} is up.")
    typer.echo(f'Use it with: eval "$(csub sandbox env{_build_directory_option(directory)})"')


@app.command()
def status(directory: DirectoryOption = None, output: FormatOption = OutputFormat.TEXT) -> None:
    """Show daemons, nodes, and what the cluster could use of this host."""
    found = _open(directory).status()
    if output is OutputFormat.JSON:
        typer.echo(json.dumps(build_json(found), indent=2))
    else:
        typer.echo(render_status(found), nl=False)


@app.command()
def env(directory: DirectoryOption = None, output: FormatOption = OutputFormat.TEXT) -> None:
    """Print the variables to work with the cluster: eval "$(csub sandbox env)"."""
    variables = _open(directory).env()
    if output is OutputFormat.JSON:
        typer.echo(json.dumps(variables, indent=2))
        return
    for name, value in variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


@app.command()
def down(
    directory: DirectoryOption = None,
    purge: Annotated[bool, typer.Option("--purge", help="Remove its files too.")] = False,
) -> None:
    """End the cluster's jobs and daemons; logs stay."""
    sandbox = _open(directory)
    if sandbox.down(purge=purge):
        typer.echo(f"The sandbox in {sandbox.directory} is down.")
    else:
        typer.echo(f"Nothing runs in {sandbox.directory}.")


def choose_spec(sandbox: Sandbox, given: dict[str, object]) -> SandboxSpec | None:
    """What `up` should make: options that were not given stay as they are in a running sandbox."""
    values = {name: value for name, value in given.items() if value is not None}
    if not values:
        return None
    record = read_record(sandbox.layout.record)
    known = record.spec if record and record.wanted else SandboxSpec(sandbox.directory)
    return SandboxSpec.from_record({**known.to_record(), **values})


def build_json(status: SandboxStatus) -> dict[str, object]:
    """The status as JSON values."""
    return {
        "schema": 1,
        "directory": str(status.directory),
        "wanted": status.wanted,
        "running": status.running,
        "slurm_version": status.slurm_version,
        "daemons": [
            {"name": daemon.name, "pid": daemon.pid, "alive": daemon.alive, "port": daemon.port}
            for daemon in status.daemons
        ],
        "nodes": [
            {
                "name": node.name,
                "state": node.state,
                "cpus": node.cpus,
                "host_memory_mb": node.host_memory_mb,
                "gpus": node.gpus,
                "reason": node.reason,
            }
            for node in status.nodes
        ],
        "cgroups": {"version": status.cgroup_version, "reason": status.cgroup_reason},
        "gpus": status.gpu_reason,
        "simulation": status.simulation_reason,
    }


def render_status(status: SandboxStatus) -> str:
    """The status for people."""
    summary = _summarize(status)
    used = f"version {status.cgroup_version}" if status.cgroup_version else "none"
    lines = [
        f"sandbox  {status.directory}",
        f"state    {summary}",
        f"slurm    {status.slurm_version}",
        f"cgroups  {used}: {status.cgroup_reason}",
        f"gpus     {status.gpu_reason}",
        f"simgpu   {status.simulation_reason}",
        "",
    ]
    width = max(len(daemon.name) for daemon in status.daemons)
    for daemon in status.daemons:
        pid = f"pid {daemon.pid}" if daemon.alive else "does not run"
        port = f"  port {daemon.port}" if daemon.port else ""
        lines.append(f"{daemon.name:<{width}}  {pid}{port}")
    if status.wanted:
        lines.append("")
        lines += [
            f"{node.name:<{width}}  {node.state}  {node.cpus} CPUs  {node.host_memory_mb} MB  "
            f"{node.gpus} GPUs{f'  ({node.reason})' if node.reason else ''}"
            for node in status.nodes
        ]
    return "\n".join(lines) + "\n"


def _summarize(status: SandboxStatus) -> str:
    alive = sum(daemon.alive for daemon in status.daemons)
    of = f"; it is {status.owner}'s" if status.owner else ""
    if status.running:
        return f"up{of}"
    if not status.wanted and not alive:
        return f"down{of}"
    if status.owner and not alive:
        if any(node.state != "unreachable" for node in status.nodes):
            return f"up{of}, whose processes are hidden from you"
        return f"does not answer{of}, who can say more: csub sandbox status"
    repairs = f"{status.owner} can repair it" if status.owner else "'csub sandbox up' repairs it"
    return (
        f"{alive} of {len(status.daemons)} daemons run, {repairs}"
        if alive
        else f"lost all daemons, {repairs}"
    )


def _open(directory: Path | None) -> Sandbox:
    if directory is None:
        return Sandbox()
    absolute = directory.expanduser().absolute()
    check_directory_name(absolute)
    return Sandbox(absolute)


def _build_directory_option(directory: Path | None) -> str:
    return "" if directory is None else f" --dir {shlex.quote(str(directory))}"
