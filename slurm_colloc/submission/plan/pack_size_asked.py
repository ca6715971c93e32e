"""How many GPUs and nodes the packs of a call are to have, as its user has asked."""

from __future__ import annotations

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.setting_values import check_gpus_per_pack, parse_nodes_per_pack
from slurm_colloc.model.share_request import ShareRequest
from slurm_colloc.settings import Settings
from slurm_colloc.submission.jobs.call_jobs import Call


def choose_gpu_count(call: Call, share: ShareRequest, settings: Settings) -> str:
    """How many GPUs a pack is to have: a number, `node` or `auto`.

    Raises:
        UsageProblem: It is none of these, the jobs of the call ask for different ones, or a pack
            cannot have several.
    """
    for value, origin in call.gpu_counts:
        try:
            check_gpus_per_pack(value)
        except ValueError as error:
            shown = escape_controls(cut(value))
            raise UsageProblem(f"{origin}: --gpus-per-pack={shown}: {error}") from error
    if len(call.gpu_counts) > 1:
        first, second = (f"{value} ({origin})" for value, origin in call.gpu_counts[:2])
        raise UsageProblem(
            f"all packs of one call have the same number of GPUs, not {first} and {second}",
            hint="give --gpus-per-pack on the command line, or submit them separately",
        )
    asked = call.gpu_counts[0][0] if call.gpu_counts else settings.gpus_per_pack
    obstacle = _explain_one_gpu(call, share, settings)
    if not obstacle:
        return str(int(asked)) if asked.isdigit() else asked
    if call.gpu_counts and asked not in ("1", "auto"):
        raise UsageProblem(f"--gpus-per-pack={asked}: {obstacle}")
    return "1"


def choose_node_count(call: Call, share: ShareRequest, settings: Settings) -> int:
    """How many nodes a pack has: one, unless `--nodes-per-pack` says otherwise.

    Raises:
        UsageProblem: It is not a number, the jobs of the call ask for different ones, or a pack
            cannot have several.
    """
    found: dict[int, str] = {}
    for value, origin in call.node_counts:
        try:
            found.setdefault(parse_nodes_per_pack(value), origin)
        except ValueError as error:
            shown = escape_controls(cut(value))
            raise UsageProblem(f"{origin}: --nodes-per-pack={shown}: {error}") from error
    if len(found) > 1:
        first, second = (f"{value} ({origin})" for value, origin in list(found.items())[:2])
        raise UsageProblem(
            f"all packs of one call have the same number of nodes, not {first} and {second}",
            hint="give --nodes-per-pack on the command line, or submit them separately",
        )
    nodes = next(iter(found), 1)
    if nodes > 1 and (obstacle := _explain_one_gpu(call, share, settings)):
        raise UsageProblem(f"--nodes-per-pack={nodes}: {obstacle}")
    return nodes


def _explain_one_gpu(call: Call, share: ShareRequest, settings: Settings) -> str:
    """Why the packs of a call have one GPU each; empty where they may have several."""
    if call.options.flag("local"):
        return "without Slurm (--local) a pack has one GPU"
    if share.mode is SharingMode.MIG:
        return f"with --share={share} a pack has one GPU, in which instances are made"
    if not settings.state_shared:
        return "packs that travel in their batch script (state_shared = false) have one GPU"
    return ""
