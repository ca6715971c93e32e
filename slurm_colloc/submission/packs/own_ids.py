"""Which jobs get a number of their own as SLURM_JOB_ID, and which numbers those are.

`job_id` (a setting, and `--job-id`) says it: `own`, `pack` for the id of the pack's Slurm job, or
`auto`, which is `own` but where Slurm itself gives ids as large: on a federation, and where
MaxJobId was raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.job import Job
from slurm_colloc.model.job_ids import OWN_ID, OWN_NUMBERS, REAL_ID
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.kept_answers import keep, read_kept
from slurm_colloc.store.pack_directory import NewMember, NewPack

_PLACE = "job-ids"


@dataclass(frozen=True)
class SlurmIds:
    """Whether Slurm's own ids reach those that csub gives.

    Attributes:
        reason: Why they do; empty where they do not.
    """

    reason: str = ""


def ask_for_large_ids(slurm: SlurmAccess) -> str:
    """Why Slurm's ids may be as large as csub's own; empty where they cannot be.

    Raises:
        SlurmError: Slurm does not say.
    """
    largest = slurm.read_config().get("MaxJobId", "")
    if largest.isdecimal() and int(largest) >= OWN_NUMBERS.start:
        return f"MaxJobId is {largest}"
    federation = slurm.read_federation()
    return f"the cluster is in the federation {federation}" if federation else ""


class OwnIds:
    """Gives numbers to the jobs of one call.

    Args:
        state: The state directory.
        settings: The settings.
        slurm: Slurm, which is asked once an hour.
    """

    def __init__(self, state: State, settings: Settings, slurm: SlurmAccess) -> None:
        self._state, self._settings, self._slurm = state, settings, slurm
        self._usual = ""

    def has_own(self, job: Job) -> bool:
        """Whether a job is to have a number of its own where it shares a Slurm job."""
        choice = job.job_id or self._settings.job_id
        return (self._find_usual() if choice not in (OWN_ID, REAL_ID) else choice) == OWN_ID

    def number_joiner(self, job: Job, pack_id: str, number: int) -> Job:
        """A job that joins a pack, with its number."""
        if job.own_id or not self.has_own(job):
            return job
        own_id = next(self._state.claim_numbers([(pack_id, [number])]))
        return replace(job, own_id=own_id, has_joined=True)

    def number_packs(self, packs: Sequence[NewPack]) -> list[NewPack]:
        """The packs of a Slurm job with a number for each of their members that is to have one.

        The first job of a submission goes by the id that Slurm gives it; of an array it is the last
        task, as under Slurm: what that says of its id is about the whole array.

        Raises:
            StateError: The numbers cannot be claimed.
        """
        if len(packs) == 1 == len(packs[0].members) and not packs[0].record.shown_id:
            return list(packs)
        first = None if packs[0].record.shown_id else packs[0].members[0]
        if first is not None and first.spec.job.array_task is not None:
            tasks = (member for pack in packs for member in pack.members)
            first = max(tasks, key=lambda member: member.spec.job.number)
        wanted: dict[str, list[int]] = {}
        for pack in packs:
            for member in pack.members:
                job = member.spec.job
                if member is not first and not job.own_id and self.has_own(job):
                    wanted.setdefault(pack.record.pack_id, []).append(job.number)
        asked = [(pack_id, sorted(numbers)) for pack_id, numbers in wanted.items()]
        given = self._state.claim_numbers(asked) if asked else iter(())
        own_ids = {(pack_id, n): next(given) for pack_id, numbers in asked for n in numbers}
        return [
            replace(pack, members=tuple(self._number(pack, m, own_ids) for m in pack.members))
            for pack in packs
        ]

    def _number(
        self, pack: NewPack, member: NewMember, own_ids: Mapping[tuple[str, int], str]
    ) -> NewMember:
        job = member.spec.job
        own_id = own_ids.get((pack.record.pack_id, job.number), job.own_id)
        choice = OWN_ID if self.has_own(job) else REAL_ID
        return replace(
            member, spec=replace(member.spec, job=replace(job, own_id=own_id, job_id=choice))
        )

    def _find_usual(self) -> str:
        if not self._usual:
            cluster, root = self._state.cluster, self._state.root
            kept = read_kept(root, _PLACE, cluster, SlurmIds)
            if kept is None:
                try:
                    kept = SlurmIds(ask_for_large_ids(self._slurm))
                    keep(root, _PLACE, cluster, kept)
                except SlurmError:
                    # sbatch is asked next, and tells what is wrong.
                    kept = SlurmIds()
            self._usual = REAL_ID if kept.reason else OWN_ID
        return self._usual
