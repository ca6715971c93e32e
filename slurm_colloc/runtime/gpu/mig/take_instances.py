"""Taking the MIG instances that the node's prolog has made, or going on without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.share_request import ShareRequest
from slurm_colloc.runtime.gpu.mig.mig_seats import match_places
from slurm_colloc.runtime.gpu.mig.pack_instances import PackInstances
from slurm_colloc.runtime.gpu.node_daemon import InstancesFinding, find_instances
from slurm_colloc.runtime.gpu.settled_mode import SettledMode
from slurm_colloc.runtime.gpu.setup_record import SetupRecord
from slurm_colloc.runtime.journal import Journal
from slurm_colloc.store.pack.pack_records import PackRecord


def take_instances(
    environ: Mapping[str, str],
    record: PackRecord,
    settled: SettledMode,
    preparation: SetupRecord,
    journal: Journal,
    *,
    share: Callable[[PackInstances], None],
    start_daemon: Callable[[], None],
) -> tuple[PackInstances | None, bool]:
    """Take the instances; None where there are none.

    Args:
        environ: The batch script's environment; empty where there is no Slurm.
        record: The pack's pack.json.
        settled: The mode.
        preparation: The attempt's setup.
        journal: The pack's log.
        share: Starts MPS in the instances that members share.
        start_daemon: Starts MPS in the one instance that has the whole GPU.

    Returns:
        The instances, and whether nothing else is left to be tried.
    """
    found = find_instances(environ)
    if found.gpu is None or found.reason:
        is_done = _go_without(
            found, ShareRequest.parse(record.share), settled, preparation, start_daemon
        )
        return None, is_done
    wanted = match_places(found.gpu, record.layout, record.layout_places)
    places = wanted if found.mps_inside else {}
    # What an MPS server is on is not cut anew.
    socket = "" if places else found.socket
    instances = PackInstances(found.gpu, socket, journal, places)
    if wanted and not places:
        preparation.add_notes(
            "the node's policy lets no MPS run inside an instance (mig_mps_inside): each takes "
            "one member at a time"
        )
    if places:
        share(instances)
    preparation.note_instances(found.gpu, instances, can_change=bool(socket))
    settled.settle(SharingMode.MIG, "the node has cut the GPU for this pack")
    return instances, True


def _go_without(
    found: InstancesFinding,
    request: ShareRequest,
    settled: SettledMode,
    preparation: SetupRecord,
    start_daemon: Callable[[], None],
) -> bool:
    """What follows where the layout could not be had; True where that settles it.

    Args:
        found: Why there is no layout; with the GPU where one instance has all of it.
        request: What `--share` asked for.
        settled: The mode.
        preparation: The attempt's setup.
        start_daemon: Starts MPS in the one instance that has the whole GPU.
    """
    whole, reason = found.gpu, found.reason
    if whole is not None:
        preparation.note_whole_instance(whole)
    if request.strict:
        settled.fall_back(reason)
        return True
    if request.mode is None:
        # csub has chosen it because MPS does not hold these members together.
        settled.settle_one_at_a_time(reason)
        return True
    settled.lacks_mig = reason
    if whole is not None and found.mps_inside:
        start_daemon()
    elif whole is not None:
        settled.fall_back("the node's policy lets no MPS run inside an instance (mig_mps_inside)")
    return whole is not None


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
