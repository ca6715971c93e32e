"""The answer to a job that joined a pack."""

from __future__ import annotations

import json
from typing import Any

from slurm_colloc.cli.session import note, say
from slurm_colloc.slurm.options import Options
from slurm_colloc.submission.joining import Joined


def tell_joined(options: Options, joined: Joined) -> None:
    """Say which pack a job has joined, with whom, and why."""
    if options.flag("json"):
        say(json.dumps(build_joined_json(joined)))
        return
    if options.flag("parsable"):
        say(str(joined.member))
    elif not options.flag("quiet"):
        say(describe_joined(joined))
    if options.flag("explain") or options.flag("verbose"):
        for text in joined.record.reasons:
            note(f"pack {joined.member.job}: {text}")


def describe_joined(joined: Joined) -> str:
    """`Submitted batch job 4711 (member 4711/2 shares a pack with 4711/1: the same script, ...`."""
    return f"Submitted batch job {joined.member.job} ({describe_room(joined)})"


def describe_room(joined: Joined) -> str:
    """`member 4711/2 shares a pack with 4711/1: the same script, 2 of 4 places`."""
    names = [str(partner) for partner in joined.partners]
    partners = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    how = "joined the running pack of" if joined.is_running else "shares a pack with"
    return (
        f"member {joined.member} {how} {partners}: {joined.reason}, "
        f"{len(names) + 1} of {joined.places} places"
    )


def build_joined_json(joined: Joined) -> dict[str, Any]:
    """The answer with the fields that docs/json.md describes."""
    return {
        "schema": 1,
        "joined": {
            "member": str(joined.member),
            "job_id": joined.member.job,
            "slurm_job_id": joined.member.job,
            "running": joined.is_running,
            "partners": [str(partner) for partner in joined.partners],
            "places": joined.places,
            "reason": joined.reason,
        },
    }
