"""Taking the MIG instances that the node's prolog has made, or going on without them."""

from __future__ import annotations

from collections.abc import Callable

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.share_request import ShareRequest
from slurm_colloc.runtime.gpu.mig_seats import match_places
from slurm_colloc.runtime.gpu.node_daemon import InstancesFinding
from slurm_colloc.runtime.gpu.pack_instances import PackInstances
from slurm_colloc.runtime.gpu.settled_mode import SettledMode
from slurm_colloc.runtime.gpu.setup_record import SetupRecord
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.store.pack.pack_records import PackRecord

_NO_MPS_INSIDE = "the node's policy lets no MPS run inside an instance (mig_mps_inside)"


def take_instances(
    found: InstancesFinding,
    record: PackRecord,
    settled: SettledMode,
    preparation: SetupRecord,
    journal: Journal,
    *,
    share: Callable[[PackInstances], None],
) -> PackInstances:
    """Take the instances that were found.

    Args:
        found: The instances, with their GPU.
        record: The pack's pack.json.
        settled: The mode.
        preparation: The attempt's setup.
        journal: The pack's log.
        share: Starts MPS in the instances that members share.
    """
    assert found.gpu is not None
    wanted = match_places(found.gpu, record.layout, record.layout_places)
    places = wanted if found.mps_inside else {}
    instances = PackInstances(found.gpu, found.socket, journal, places)
    if wanted and not places:
        preparation.add_notes(f"{_NO_MPS_INSIDE}: each takes one member at a time")
    if places:
        share(instances)
    preparation.note_instances(found.gpu, instances, can_change=bool(found.socket))
    settled.settle(SharingMode.MIG, "the node has cut the GPU for this pack")
    return instances


def go_without_layout(
    found: InstancesFinding,
    request: ShareRequest,
    settled: SettledMode,
    preparation: SetupRecord,
) -> bool:
    """What follows where the layout could not be had.

    Args:
        found: Why there is no layout; with the GPU where one instance has all of it.
        request: What `--share` asked for.
        settled: The mode.
        preparation: The attempt's setup.

    Returns:
        Whether members share the one instance by MPS. Else the mode is settled or refused, or MPS
        on the whole GPU is to be tried.
    """
    whole, reason = found.gpu, found.reason
    if whole is not None:
        preparation.note_whole_instance(whole)
    if request.strict:
        settled.fall_back(reason)
    elif request.mode is None:
        # csub has chosen it because MPS does not hold these members together.
        settled.settle_one_at_a_time(reason)
    else:
        settled.lacks_mig = reason
        if whole is not None and found.mps_inside:
            return True
        if whole is not None:
            settled.fall_back(_NO_MPS_INSIDE)
    return False


def follow_instances(instances: PackInstances, preparation: SetupRecord) -> None:
    """Write down what stands after a change.

    Args:
        instances: The pack's instances.
        preparation: The attempt's setup.
    """
    problem, notes = instances.work(), instances.follow_daemons()
    if problem is None and not notes:
        return
    preparation.add_notes(*notes)
    can_change = preparation.setup.can_change or problem is not None
    preparation.note_instances(instances.gpu, instances, can_change=can_change)
    if problem:
        preparation.add_notes(f"its MIG instances were not changed: {problem}")
    preparation.write()
