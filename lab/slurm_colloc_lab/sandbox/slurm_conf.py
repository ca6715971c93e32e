"""The text of slurm.conf, gres.conf and cgroup.conf; pure.

Only options that exist from Slurm 22.05 to 26.05 are written, or those of the release at hand
(slurm.conf(5), cgroup.conf(5) and gres.conf(5) of these releases).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc_lab.sandbox.cgroups import CgroupSupport
from slurm_colloc_lab.sandbox.sandbox_spec import Layout, SandboxSpec

_FIRST_WITH_PLUGIN_DISABLED = (23, 11)
_LAST_WITH_AUTOMOUNT = (23, 2)
_CPUS_PER_GPU = 8
_DEFAULT_HOST_MEMORY_MB = 16000
_MAX_ARRAY_SIZE = 20001
# A job starts at once where it can; the backfill window is as long as the longest job.
_SCHEDULER_PARAMETERS = (
    "batch_sched_delay=0",
    "sched_interval=2",
    "sched_min_interval=0",
    "bf_interval=2",
    "bf_window=10080",
    "bf_resolution=60",
)


@dataclass(frozen=True)
class NodePlan:
    """One slurmd: its name, its port and the device files of its GPUs."""

    name: str
    port: int
    gpu_files: tuple[Path, ...]


@dataclass(frozen=True)
class Host:
    """What the configuration has to know of this machine.

    Args:
        name: Short host name; slurmctld refuses to serve under another one.
        cpus: CPUs that a process here may use.
        user: Name of the user who runs the daemons.
        is_root: Whether that is root.
    """

    name: str
    cpus: int
    user: str
    is_root: bool


@dataclass(frozen=True)
class ClusterPlan:
    """Everything the configuration files are made from."""

    spec: SandboxSpec
    layout: Layout
    host: Host
    version: tuple[int, int]
    controller_port: int
    nodes: tuple[NodePlan, ...]
    cgroups: CgroupSupport
    plugin_directory: str | None = None
    accounting_port: int | None = None

    @property
    def cpus_per_node(self) -> int:
        """CPUs of each node."""
        if self.spec.cpus_per_node is not None:
            return self.spec.cpus_per_node
        gpus = max(len(node.gpu_files) for node in self.nodes)
        return max(self.host.cpus, _CPUS_PER_GPU * gpus)

    @property
    def host_memory_mb_per_node(self) -> int:
        """Memory of each node."""
        return self.spec.host_memory_mb_per_node or _DEFAULT_HOST_MEMORY_MB

    @property
    def process_tracking(self) -> str:
        """The value of ProctrackType without its prefix."""
        if self.cgroups.version:
            return "cgroup"
        return "linuxproc" if self.host.is_root else "pgid"


def render_slurm_conf(plan: ClusterPlan) -> str:
    """The whole of slurm.conf."""
    spec, layout, host = plan.spec, plan.layout, plan.host
    cpus, host_memory_mb = plan.cpus_per_node, plan.host_memory_mb_per_node
    with_cgroups = plan.cgroups.version > 0
    # Slurm binds steps to cores only where there are as many as the node claims.
    unit = "CR_Core_Memory" if cpus <= host.cpus else "CR_CPU_Memory"
    lines = [
        "# Written by 'csub sandbox up', which writes it anew at each start.",
        "ClusterName=sandbox",
        f"SlurmctldHost={host.name}(127.0.0.1)",
        f"SlurmctldPort={plan.controller_port}",
        f"SlurmUser={host.user}",
        f"SlurmdUser={host.user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={layout.munge_socket},cred_expire={spec.requeue_delay_s}",
        "CredType=cred/munge",
        *([f"PluginDir={plan.plugin_directory}"] if plan.plugin_directory else []),
        "",
        f"StateSaveLocation={layout.state}",
        f"SlurmdSpoolDir={layout.spool}/%n",
        f"SlurmctldPidFile={layout.run}/slurmctld.pid",
        f"SlurmdPidFile={layout.run}/slurmd.%n.pid",
        f"SlurmctldLogFile={layout.log}/slurmctld.log",
        f"SlurmdLogFile={layout.log}/slurmd.%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "MailProg=/bin/true",
        "",
        f"ProctrackType=proctrack/{plan.process_tracking}",
        f"TaskPlugin={'task/cgroup,task/affinity' if with_cgroups else 'task/affinity'}",
        f"JobAcctGatherType=jobacct_gather/{'cgroup' if with_cgroups else 'linux'}",
        "JobAcctGatherFrequency=task=5",
        f"PrologFlags={'Alloc,Contain' if with_cgroups else 'Alloc'}",
        *(render_hook_lines(layout) if spec.hooks else ()),
        "SlurmdParameters=config_overrides",
        "MpiDefault=none",
        "GresTypes=gpu",
        "",
        "SelectType=select/cons_tres",
        f"SelectTypeParameters={unit}",
        f"DefMemPerCPU={max(1, host_memory_mb // cpus)}",
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={','.join(_SCHEDULER_PARAMETERS)}",
        "PriorityType=priority/basic",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        f"MaxArraySize={_MAX_ARRAY_SIZE}",
        "MaxJobCount=50000",
        "MinJobAge=300",
        "JobRequeue=1",
        "",
        *render_accounting_lines(layout, plan.accounting_port),
        f"KillWait={spec.kill_wait_s}",
        "MessageTimeout=10",
        f"SlurmdTimeout={spec.slurmd_timeout_s}",
        "ReturnToService=2",
        "",
    ]
    # A line that was asked for takes the place of ours: Slurm complains of two.
    own = {line.partition("=")[0].strip().lower() for line in spec.extra_conf}
    lines = [line for line in lines if line.partition("=")[0].lower() not in own]
    lines += [*spec.extra_conf, ""] if spec.extra_conf else []
    for node in plan.nodes:
        counts = Counter(spec.name_gpu_types(len(node.gpu_files)))
        gres = ",".join(
            f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in counts.items()
        )
        gres = gres and f" Gres={gres}"
        lines.append(
            f"NodeName={node.name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={node.port} "
            f"CPUs={cpus} RealMemory={host_memory_mb}{gres}"
        )
    names = ",".join(node.name for node in plan.nodes)
    grace_s = spec.grace_time_s
    shared = f"Nodes={names} DefaultTime=60 MaxTime=7-0 State=UP"
    lines += [
        f"PartitionName=gpu {shared} Default=YES PriorityTier=10 PreemptMode=OFF",
        f"PartitionName=preempt {shared} PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}",
        f"PartitionName=whole {shared} PriorityTier=10 PreemptMode=OFF OverSubscribe=EXCLUSIVE",
    ]
    return "\n".join(lines) + "\n"


def render_accounting_lines(layout: Layout, port: int | None) -> tuple[str, ...]:
    """That slurmdbd listens on this port; nothing where there is none."""
    if port is None:
        return ()
    return (
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={port}",
        # With munge this is no password but the socket (slurm.conf(5)).
        f"AccountingStoragePass={layout.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
    )


def render_hook_lines(layout: Layout) -> tuple[str, ...]:
    """Root's hooks, with more time than their own deadline."""
    return (
        f"Prolog={layout.hooks}/prolog.sh",
        f"Epilog={layout.hooks}/epilog.sh",
        "PrologEpilogTimeout=60",
    )


def render_gres_conf(plan: ClusterPlan) -> str:
    """One line per GPU."""
    lines = [
        f"NodeName={node.name} Name=gpu{f' Type={kind}' if kind else ''} File={file}"
        for node in plan.nodes
        for kind, file in zip(
            plan.spec.name_gpu_types(len(node.gpu_files)), node.gpu_files, strict=True
        )
    ]
    return "\n".join(["AutoDetect=off", *lines]) + "\n"


def render_cgroup_conf(plan: ClusterPlan) -> str:
    """All limits where the host has cgroups; nothing of them where it has not."""
    support = plan.cgroups
    if not support.version:
        # Before 23.11 there is no 'disabled'. The v1 plugin touches nothing that is not used.
        disabled = plan.version >= _FIRST_WITH_PLUGIN_DISABLED
        return f"CgroupPlugin={'disabled' if disabled else 'cgroup/v1'}\n"
    lines = [f"CgroupPlugin=cgroup/v{support.version}"]
    if support.version == 2:
        lines.append("IgnoreSystemd=yes")
    else:
        lines.append("CgroupMountpoint=/sys/fs/cgroup")
        if plan.version <= _LAST_WITH_AUTOMOUNT:
            lines.append("CgroupAutomount=yes")
    lines += [
        "ConstrainCores=yes",
        "ConstrainRAMSpace=yes",
        f"ConstrainSwapSpace={'yes' if support.swap else 'no'}",
        "ConstrainDevices=yes",
    ]
    return "\n".join(lines) + "\n"
