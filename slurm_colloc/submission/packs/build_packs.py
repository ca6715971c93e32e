"""The packs of one Slurm job, ready to be written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.model.mig.planned_seat import PlannedSeat
from slurm_colloc.model.plan import PackRequest, Policy
from slurm_colloc.model.runner_settings import RunnerSettings
from slurm_colloc.planning.join.join_fit import compute_reason_not_to_join
from slurm_colloc.planning.join.same_kind import compute_own_meaning
from slurm_colloc.store.job_index import build_pack_id
from slurm_colloc.store.pack.pack_directory import NewMember, NewPack, build_environment_block
from slurm_colloc.store.pack.pack_records import MemberSpec, PackRecord
from slurm_colloc.store.pack_reading import name_gpu_set
from slurm_colloc.submission.packs.call_batches import ONLY_ONE, Batch, PlaceInCall
from slurm_colloc.submission.packs.sbatch_options import (
    GROWABLE,
    SbatchOptions,
)
from slurm_colloc.submission.packs.shorten_limits import choose_requests
from slurm_colloc.submission.plan.planned_pack import PlannedPack


def build_packs(
    batch: Batch,
    submission: str,
    *,
    environment: Mapping[str, str],
    options: SbatchOptions,
    directory: str,
    local: bool = False,
    carried: bool = False,
    cluster: str = "",
    policy: Policy | None = None,
    refusals: tuple[str, ...] = (),
    resubmissions: int = 0,
    share: str = "auto",
    place: PlaceInCall = ONLY_ONE,
    settings: RunnerSettings | None = None,
) -> list[NewPack]:
    """The packs of one Slurm job, ready to be written."""
    umask = os.umask(0o077)
    os.umask(umask)
    blocks: dict[int, bytes] = {}
    packs = []
    for index, gpu_set, pack, request in _list_sets(batch, local=local):
        planned = pack.plan
        members = []
        for candidate, member in zip(pack.candidates, planned.members, strict=True):
            key = id(candidate.environment)
            if key not in blocks:
                blocks[key] = encode_environment(candidate.environment)
            is_task = candidate.job.array_task is not None
            # A pack that is open for others is still the call of one job.
            is_single = planned.request is None or planned.open_for > 0
            names_alone = is_single or (local and len(planned.members) == 1)
            if local and place.is_one_of_several:
                names_alone = False
            members.append(
                NewMember(
                    MemberSpec(
                        candidate.job, member, umask, names_alone=names_alone and not is_task
                    ),
                    candidate.script,
                    blocks[key],
                )
            )
        record = PackRecord(
            pack_id=build_pack_id(name_gpu_set(submission, gpu_set), index),
            submission=submission,
            index=index,
            indices=batch.indices,
            is_array=batch.is_array,
            created_at=time.time(),
            name=batch.name,
            mode=planned.mode,
            degree=planned.degree,
            request=request,
            group=planned.group,
            # What is submitted again brings what was noted the first time.
            reasons=tuple(dict.fromkeys((*planned.reasons, *options.notes))),
            members=tuple(member.spec.job.number for member in members),
            submit_directory=directory,
            submit_host=os.uname().nodename,
            client_environment=tuple(sorted(environment.items())),
            slurm_options=options.words,
            local=local,
            carried=carried,
            cluster=cluster,
            policy=policy,
            gpu_type=pack.candidates[0].job.gpu_type,
            closed="" if policy is None else compute_closed(batch, pack, policy, place),
            refusals=refusals,
            resubmissions=resubmissions,
            share=share if policy is None else policy.share,
            shown_id=place.shown_id,
            parts=place.parts,
            settings=settings,
            layout=tuple(instance.word for instance in planned.layout),
            layout_places=count_shared_places(planned.layout),
            gpu_set=gpu_set,
            gpu_sets=batch.gpu_sets,
            set_nodes=batch.set_nodes,
            open_for=planned.open_for,
        )
        packs.append(NewPack(record, tuple(members)))
    return packs


def count_shared_places(layout: Sequence[PlannedSeat]) -> tuple[int, ...]:
    """How many members have each instance at once, as pack.json has it: none for one each."""
    places = tuple(instance.places for instance in layout)
    return places if max(places, default=1) > 1 else ()


def _list_sets(
    batch: Batch, *, local: bool
) -> Iterator[tuple[int, int, PlannedPack, PackRequest | None]]:
    """Each pack of a batch with its element, its GPU set, and what Slurm is asked for it."""
    requests = choose_requests(batch)
    for place, (index, element) in enumerate(zip(batch.indices, batch.elements, strict=True)):
        for gpu_set, pack in enumerate(element):
            request = pack.plan.request if local else requests[place][gpu_set]
            yield index, gpu_set, pack, request


def compute_closed(
    batch: Batch, pack: PlannedPack, policy: Policy, place: PlaceInCall = ONLY_ONE
) -> str:
    """Why no job may join a pack later; empty where it is open to joiners."""
    if pack.plan.layout:
        return "it was planned for MIG instances, made for the members that it begins with"
    if batch.gpu_sets:
        return "it has several GPUs, each with members and a runner of its own"
    if batch.is_array:
        return "it is an element of a job array"
    if place.is_one_of_several:
        # A number is given once in the whole submission.
        return "its submission is several Slurm jobs"
    first = pack.candidates[0].job
    reason = compute_reason_not_to_join(first, policy) or compute_own_meaning(first.group)
    if reason or pack.plan.request is not None:
        return reason
    # As it was handed to sbatch, and Slurm does not let it be taken back.
    fixed = [name for name, _ in first.shape if name not in GROWABLE]
    return f"it was submitted with --{fixed[0]}" if fixed else ""


def encode_environment(environment: Mapping[str, str]) -> bytes:
    """A captured environment as it is written alongside the member."""
    return build_environment_block(
        {
            name.encode("utf-8", "surrogateescape"): value.encode("utf-8", "surrogateescape")
            for name, value in environment.items()
        }
    )
