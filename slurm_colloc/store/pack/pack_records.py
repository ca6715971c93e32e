"""pack.json and spec.json: what csub wrote down for the runner and for readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from slurm_colloc.model.job import ArrayTask, Job, SignalRequest
from slurm_colloc.model.plan import Goal, MemberPlan, PackRequest, Policy, Rule, SharingMode
from slurm_colloc.model.sbatch.mail_types import MailRequest


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
        degree: Members that run at the same time.
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
        one_script: All its members run the same script.
        closed: Why no job may join it; empty where it is open to joiners.
        refusals: Why its jobs did not join the packs that were there, a sentence each.
        resubmissions: How often its members were submitted again because they never started.
        start_degree: Members that start without being measured first; None for all.
        shown_id: The id that its members are named after, where the call became several Slurm
            jobs and this is not the first; else empty.
        parts: The Slurm jobs of the call, as the name that each has in `submission` and its
            elements; in the packs of the first, where there are several.
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
    one_script: bool = False
    closed: str = ""
    refusals: tuple[str, ...] = ()
    resubmissions: int = 0
    share: str = "timeslice"
    start_degree: int | None = None
    shown_id: str = ""
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()


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


def build_pack_mapping(record: PackRecord) -> dict[str, Any]:
    """The JSON form of pack.json."""
    return dataclasses.asdict(record)


def build_spec_mapping(spec: MemberSpec) -> dict[str, Any]:
    """The JSON form of spec.json; what an older csub does not know is left out where it can be."""
    value = dataclasses.asdict(spec)
    usual = {"probe": True, "only_probe": False, "profile_like": None, "max_slowdown": None}
    for name, item in usual.items():
        if value["job"][name] is item:
            del value["job"][name]
    for name in ("predicted_slowdown", "solo_steps_per_s", "max_slowdown", "model_slowdown"):
        if value["plan"][name] is None:
            del value["plan"][name]
    return value


def parse_pack(value: dict[str, Any]) -> PackRecord:
    """Read pack.json's value.

    Raises:
        KeyError, TypeError, ValueError: It is no such value.
    """
    fields = _without_schema(value)
    request = fields["request"]
    fields["mode"] = SharingMode(fields["mode"])
    fields["request"] = None if request is None else PackRequest(**request)
    if fields.get("policy") is not None:
        fields["policy"] = _parse_policy(fields["policy"])
    fields.setdefault("refusals", ())
    for name in ("indices", "reasons", "members", "slurm_options", "refusals"):
        fields[name] = tuple(fields[name])
    for name in ("group", "client_environment"):
        fields[name] = _parse_pairs(fields[name])
    fields["parts"] = tuple((part, tuple(indices)) for part, indices in fields.get("parts", ()))
    return PackRecord(**_select(PackRecord, fields))


def parse_spec(value: dict[str, Any]) -> MemberSpec:
    """Read spec.json's value.

    Raises:
        KeyError, TypeError, ValueError: It is no such value.
    """
    job = dict(value["job"])
    job["arguments"] = tuple(job["arguments"])
    for name in ("group", "shape"):
        job[name] = _parse_pairs(job[name])
    if job["signal"] is not None:
        job["signal"] = SignalRequest(**job["signal"])
    if job["array_task"] is not None:
        job["array_task"] = ArrayTask(**job["array_task"])
    if job.get("mail") is not None:
        mail = dict(job["mail"])
        job["mail"] = MailRequest(**{**mail, "events": tuple(mail["events"])})
    job["depends"] = _parse_pairs(job.get("depends", []))
    return MemberSpec(
        job=Job(**_select(Job, job)),
        plan=MemberPlan(**_select(MemberPlan, value["plan"])),
        umask=value["umask"],
        names_alone=value.get("names_alone", False),
        joined=value.get("joined", ""),
        joined_at=value.get("joined_at", 0.0),
    )


def _parse_policy(value: Mapping[str, Any]) -> Policy:
    """Read a policy; what only a newer csub can choose stands for the usual choice."""
    fields = {**value, "mode": SharingMode(value["mode"])}
    goal, rule = fields.get("goal"), fields.get("rule")
    fields["goal"] = Goal(goal) if goal in list(Goal) else Goal.THROUGHPUT
    fields["rule"] = Rule(rule) if rule in list(Rule) else Rule.CSUB
    known = [mode for mode in fields.get("modes", ()) if mode in list(SharingMode)]
    fields["modes"] = tuple(SharingMode(mode) for mode in known)
    return Policy(**_select(Policy, fields))


def _select(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a class has: a newer csub of the same schema may write more."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _without_schema(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name != "schema"}


def _parse_pairs(value: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, text) for name, text in value)
