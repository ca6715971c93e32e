"""pack.json and spec.json: what csub wrote down for the runner and for readers."""

from __future__ import annotations

import dataclasses
from typing import Any

from slurm_colloc.model.job import Job
from slurm_colloc.model.plan import MemberPlan, PackRequest, Policy, SharingMode
from slurm_colloc.model.runner_settings import RunnerSettings


@dataclasses.dataclass(frozen=True)
class PackRecord:
    """What was planned for a pack (pack.json).

    Attributes:
        pack_id: Name of the pack's directory.
        submission: The csub call it came from.
        index: Its element of the Slurm job array, 0 where the job is no array.
        indices: The elements of all packs of that Slurm job.
        is_array: The Slurm job is a job array.
        created_at: Seconds since the epoch.
        name: Name of the Slurm job.
        mode: Planned sharing mode.
        share: What `--share` asked for, as text; see model.share_request.
        degree: Members that run at the same time, at most. Those above its own number are places
            for members of other packs of the submission.
        request: What was asked of Slurm; None for a job alone.
        group: Options that all members share.
        reasons: Why the pack looks like this.
        members: Numbers of its first members, in start order.
        submit_directory: Where csub was called.
        submit_host: The host on which csub was called.
        client_environment: What sbatch was given as environment; everything else that the
            batch script finds was added by Slurm or the site, and belongs to the members too.
        slurm_options: Options that sbatch was called with, for people.
        local: True where it runs without Slurm.
        cluster: Name of the Slurm cluster; empty where it is not known.
        carried: True where it travels in its batch script: nothing comes back from the node.
        policy: How far sharing may go in it; None where no job may join it.
        gpu_type: The GPU type that its jobs ask for; None for any.
        closed: Why no job may join it; empty where it is open to joiners.
        refusals: Why its jobs did not join the packs that were there, a sentence each.
        resubmissions: How often its members were submitted again because they never started.
        shown_id: The id that its members are named after, where the call became several Slurm
            jobs and this is not the first; else empty.
        parts: The Slurm jobs of the call, as the name that each has in `submission` and its
            elements; in the packs of the first, where there are several.
        settings: What its runner goes by; None for those of its node.
        layout: The words of the MIG instances that it asks its node for; none in other modes.
        layout_places: How many members have each of those at once; none for one each.
        gpu_set: Which of the GPU sets of its Slurm job it fills, from 0; `request` and `degree`
            are those of this set.
        gpu_sets: How many GPUs each set of the Slurm job has; none where the job has one set.
        set_nodes: On which of the job's nodes each set is, counted from 0, which runs the batch
            script; none where the job has one node.
        open_for: For how many more jobs than its own it asked Slurm, so that they can join it
            while it runs.
    """

    pack_id: str
    submission: str
    index: int
    indices: tuple[int, ...]
    is_array: bool
    created_at: float
    name: str
    mode: SharingMode
    degree: int
    request: PackRequest | None
    group: tuple[tuple[str, str], ...]
    reasons: tuple[str, ...]
    members: tuple[int, ...]
    submit_directory: str
    submit_host: str
    client_environment: tuple[tuple[str, str], ...]
    slurm_options: tuple[str, ...]
    local: bool = False
    cluster: str = ""
    carried: bool = False
    policy: Policy | None = None
    gpu_type: str | None = None
    closed: str = ""
    refusals: tuple[str, ...] = ()
    resubmissions: int = 0
    share: str = "timeslice"
    shown_id: str = ""
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    settings: RunnerSettings | None = None
    layout: tuple[str, ...] = ()
    layout_places: tuple[int, ...] = ()
    gpu_set: int = 0
    gpu_sets: tuple[int, ...] = ()
    set_nodes: tuple[int, ...] = ()
    open_for: int = 0

    @property
    def node(self) -> int:
        """On which node of its Slurm job it is, from 0."""
        return self.set_nodes[self.gpu_set] if self.set_nodes else 0

    @property
    def number_of(self) -> tuple[int, int] | None:
        """Which of the packs of its call it is, from 1, and how many these are.

        None where it has a name of its own in Slurm: as the only one, as a task by itself, or in a
        further Slurm job of the call, which does not know the others.
        """
        if self.request is None or not self.is_array or (self.shown_id and not self.parts):
            return None
        parts = self.parts or ((self.submission, self.indices),)
        packs = [(name, index) for name, indices in parts for index in indices]
        own = (self.submission, self.index)
        return (packs.index(own) + 1, len(packs)) if own in packs and len(packs) > 1 else None


@dataclasses.dataclass(frozen=True)
class MemberSpec:
    """What a member runs (spec.json); its script and environment lie next to it.

    Attributes:
        job: The job.
        plan: Its place in the plan.
        umask: Of the shell that submitted it.
        names_alone: Its output is named as sbatch names that of a job: `%j` alone is enough.
        joined: The submission by which it joined the pack; empty for a first member.
        joined_at: When it joined, in seconds since the epoch; 0 for a first member.
    """

    job: Job
    plan: MemberPlan
    umask: int
    names_alone: bool = False
    joined: str = ""
    joined_at: float = 0.0


_PLAIN = (str, bool, int, float, tuple)


def build_pack_mapping(record: PackRecord) -> dict[str, Any]:
    """The JSON form of pack.json."""
    # asdict would copy each of the numbers in it, and a thousand packs have a thousand of them.
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {
        name: value if isinstance(value, _PLAIN) or value is None else dataclasses.asdict(value)
        for name, value in values.items()
    }


_USUAL = {
    "pause": True, "only_probe": False, "profile_like": None, "max_slowdown": None,
    "parameters": (), "row": "", "retries": 0, "retry_of": "", "start_together": 0, "snapshot": "",
    "needs_wall": False,
    "stays_fast": False,
}  # fmt: skip
"""What fields that came later have for most jobs."""


def build_spec_mapping(spec: MemberSpec) -> dict[str, Any]:
    """The JSON form of spec.json; what an older csub does not know is left out where it can be."""
    value = dataclasses.asdict(spec)
    for name, item in _USUAL.items():
        if value["job"][name] == item:
            del value["job"][name]
    for name in ("predicted_slowdown", "solo_steps_per_s", "max_slowdown", "model_slowdown"):
        if value["plan"][name] is None:
            del value["plan"][name]
    if not value["plan"]["instance"]:
        del value["plan"]["instance"]
    if value["plan"]["gpus"] == 1:
        del value["plan"]["gpus"]
    return value
