"""Whether the node's prolog has prepared an MPS daemon for this pack, and whether it will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.errors import NodeError
from slurm_colloc.host.hooks.hook_job import DEFAULT_RUN, is_job_id
from slurm_colloc.host.keeper.prepared_daemon import (
    PreparedDaemon,
    PreparedGpu,
    PreparedSetup,
    read_prepared,
)
from slurm_colloc.model.late_definitions import dataclass

RUN_VARIABLE = "SLURM_COLLOC_RUN"
"""Where the hooks of a node work, if not in the usual place; `%n` is the node's name. Whatever it
names is believed only where only root can have written it."""

POLICY_VARIABLE = "SLURM_COLLOC_POLICY"
"""The policy of these hooks. To people that look, and to `csub doctor`, it is what holds there."""


@dataclass(frozen=True)
class PreparedFinding:
    """What was found.

    Attributes:
        daemon: The daemon to use; None for none.
        notes: Why the node's own is not used, a sentence each; empty where it has prepared nothing.
    """

    daemon: PreparedDaemon | None = None
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> tuple[str, ...]:
        """The daemon's GPUs; empty without one."""
        return () if self.daemon is None else self.daemon.gpus


def find_prepared(environ: Mapping[str, str], gpus: Sequence[str]) -> PreparedFinding:
    """Look for what the prolog has prepared.

    Args:
        environ: The batch script's environment; empty where there is no Slurm.
        gpus: The pack's GPUs by UUID; empty where they are not known.
    """
    try:
        setup = _read_setup(environ)
    except NodeError as error:
        return PreparedFinding(notes=(f"the node's own MPS daemon is not used: {error.message}",))
    if setup is None:
        return PreparedFinding()
    if setup.mode != "mps":
        return PreparedFinding(notes=(f"the node has prepared no MPS: {setup.reason}",))
    daemon, reason = choose_daemon(setup, gpus)
    if daemon is None:
        return PreparedFinding(notes=(f"the node's own MPS daemon is not used: {reason}",))
    return PreparedFinding(daemon)


@dataclass(frozen=True)
class InstancesFinding:
    """The MIG instances that the prolog has made.

    Attributes:
        reason: Why there is no layout; empty where there is one.
        gpu: The GPU with its instances; None for none. With a reason, too, where the layout could
            not be had and one instance has all of the GPU, because no process finds a GPU there
            without any.
        mps_inside: The site lets MPS run inside an instance.
    """

    reason: str
    gpu: PreparedGpu | None = None
    mps_inside: bool = False


def find_instances(environ: Mapping[str, str]) -> InstancesFinding:
    """Look for the MIG instances that the prolog has made.

    Args:
        environ: The batch script's environment; empty where there is no Slurm.
    """
    try:
        setup = _read_setup(environ)
    except NodeError as error:
        return InstancesFinding(f"the node's MIG instances are not used: {error.message}")
    if setup is None:
        return InstancesFinding(
            "only a node's prolog can make MIG instances, and it has prepared nothing"
        )
    if setup.mode != "mig" or setup.mig is None:
        return InstancesFinding(f"the node has made no MIG instances: {setup.reason}")
    mig = setup.mig
    if len(mig.gpus) != 1 or not mig.gpus[0].instances:
        return InstancesFinding(f"the node has cut {len(mig.gpus)} GPUs, and a pack shares one")
    reason = "" if mig.layout else setup.reason
    return InstancesFinding(reason, mig.gpus[0], mig.mps_inside)


def _read_setup(environ: Mapping[str, str]) -> PreparedSetup | None:
    """What root has prepared for this job; None for nothing.

    Raises:
        NodeError: It cannot be trusted, or cannot be read.
    """
    job_id = environ.get("SLURM_JOB_ID", "")
    if not is_job_id(job_id):
        return None
    run = environ.get(RUN_VARIABLE) or DEFAULT_RUN
    return read_prepared(run.replace("%n", environ.get("SLURMD_NODENAME", "")), job_id)


def choose_daemon(setup: PreparedSetup, gpus: Sequence[str]) -> tuple[PreparedDaemon | None, str]:
    """The daemon that serves all GPUs of the pack, or why there is none; pure.

    Args:
        setup: What root has prepared.
        gpus: The pack's GPUs by UUID; empty where they are not known.
    """
    fits = [daemon for daemon in setup.daemons if not gpus or set(daemon.gpus) == set(gpus)]
    if len(fits) != 1:
        return None, f"none of its {len(setup.daemons)} daemons serves exactly the pack's GPUs"
    return fits[0], ""
