"""Whether the site's policy lets a job have what its comment asks for; pure."""

from __future__ import annotations

from slurm_colloc.host.hook_job import HookJob
from slurm_colloc.host.policy import Policy
from slurm_colloc.model.token import Token, parse_token


class Denied(Exception):
    """The site's policy does not let this job have it: no fault of the node's."""


def check_permission(policy: Policy, job: HookJob, token: Token) -> None:
    """See whether the site lets a job have what it asks for.

    Args:
        policy: What the site allows, and does not switch off.
        job: The job.
        token: What it asks for.

    Raises:
        Denied: It does not.
    """
    if token.mode not in policy.modes:
        mode = token.mode.partition("=")[0]
        raise Denied(f"the site's policy has no mode {mode}")
    if policy.partitions and job.partition not in policy.partitions:
        raise Denied("the site's policy leaves out this partition")
    if policy.accounts and job.account not in policy.accounts:
        raise Denied("the site's policy leaves out this account")
    if job.gpus is not None and len(job.gpus) > policy.max_gpus:
        raise Denied(f"the site's policy takes {policy.max_gpus} GPUs at most")
    if not job.uid or job.gid is None:
        raise Denied("MPS is prepared for ordinary users only")


def is_permitted(policy: Policy, job: HookJob) -> bool:
    """Whether a job asks for something that it may have."""
    token = parse_token(job.comment)
    if token is None or token.mode == "off" or not policy.enabled:
        return False
    try:
        check_permission(policy, job, token)
    except Denied:
        return False
    return True
