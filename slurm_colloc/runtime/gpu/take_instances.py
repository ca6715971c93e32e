"""Taking the MIG instances that the node's prolog has made, or going on without them."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_colloc.host.keeper.prepared_mig import PreparedGpu
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.share_request import ShareRequest
from slurm_colloc.runtime.gpu.node_daemon import find_instances
from slurm_colloc.runtime.gpu.pack_instances import PackInstances
from slurm_colloc.runtime.gpu.settled_mode import SettledMode
from slurm_colloc.runtime.gpu.setup_record import SetupRecord
from slurm_colloc.runtime.journal import Journal


def take_instances(
    environ: Mapping[str, str],
    request: ShareRequest,
    settled: SettledMode,
    preparation: SetupRecord,
    journal: Journal,
) -> PackInstances | None:
    """Take the instances; None where there are none.

    Then the mode is settled or refused, or it says why there are none, and MPS is to be tried.

    Args:
        environ: The batch script's environment; empty where there is no Slurm.
        request: What `--share` asked for.
        settled: The mode.
        preparation: The attempt's setup.
        journal: The pack's log.
    """
    gpu, socket, reason = find_instances(environ)
    if gpu is None or reason:
        _go_without(gpu, reason, request, settled, preparation)
        return None
    preparation.note_instances(gpu, can_change=bool(socket))
    settled.settle(SharingMode.MIG, "the node has cut the GPU for this pack")
    return PackInstances(gpu, socket, journal)


def _go_without(
    whole: PreparedGpu | None,
    reason: str,
    request: ShareRequest,
    settled: SettledMode,
    preparation: SetupRecord,
) -> None:
    """What follows where the layout could not be had.

    Args:
        whole: The GPU where one instance has all of it; None where it has none.
        reason: Why there is no layout.
        request: What `--share` asked for.
        settled: The mode.
        preparation: The attempt's setup.
    """
    if whole is not None:
        preparation.note_whole_instance(whole)
    if request.strict:
        settled.fall_back(reason)
    elif request.mode is None:
        # csub has chosen it because MPS does not hold these members together.
        settled.settle_one_at_a_time(reason)
    else:
        settled.lacks_mig = reason
        if whole is not None:
            settled.fall_back("no MPS daemon is started inside an instance")


def follow_instances(instances: PackInstances, preparation: SetupRecord) -> None:
    """Write down what stands after a change.

    Args:
        instances: The pack's instances.
        preparation: The attempt's setup.
    """
    problem = instances.work()
    if problem is None:
        return
    preparation.note_instances(instances.gpu, can_change=True)
    if problem:
        preparation.add_notes(f"its MIG instances were not changed: {problem}")
    preparation.write()
