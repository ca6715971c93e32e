"""What a call asks for, before it is planned: its policy.

Also: how many GPUs and nodes the packs of a call are to have, as its user has asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import ShareRequest
from slurm_colloc.model.plan import (
    MIG_INSTANCES_MAX,
    MPS_CLIENTS_MAX,
    Goal,
    Policy,
    SharingMode,
)
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.setting_values import (
    GOAL_CHOICES,
    JOIN_ALWAYS,
    JOIN_CHOICES,
    check_gpus_per_pack,
)
from slurm_colloc.settings import Settings
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.plan.plan_call import compute_measure_s, may_measure


def _refuse_different(values: Sequence[tuple[str, str]], option: str, told: str) -> None:
    """Refuse a call whose jobs ask for different values of an option.

    Args:
        values: The values, each with where it was given.
        option: The option.
        told: What is wrong, with places for two of them.

    Raises:
        UsageProblem: They are several.
    """
    if len(values) > 1:
        first, second = (f"{value} ({origin})" for value, origin in values[:2])
        raise UsageProblem(
            told.format(first, second),
            hint=f"give --{option} on the command line, or submit them separately",
        )


# ---- How many GPUs the packs of a call are to have, as its user has asked ------------------------


def choose_gpu_count(call: Call, share: ShareRequest, settings: Settings) -> str:
    """How many GPUs a pack is to have, as in Policy.

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
    told = "all packs of one call have the same number of GPUs, not {} and {}"
    _refuse_different(call.gpu_counts, "gpus-per-pack", told)
    asked = call.gpu_counts[0][0] if call.gpu_counts else settings.gpus_per_pack
    obstacle = _explain_one_gpu(call, share)
    if not obstacle:
        return str(int(asked)) if asked.isdigit() else asked
    if asked not in ("1", "auto"):
        if call.gpu_counts:
            raise UsageProblem(f"--gpus-per-pack={asked}: {obstacle}")
        if obstacle == _CHAIN:
            raise UsageProblem(
                f"the settings have gpus_per_pack = {asked!r}: {obstacle}",
                hint="add --gpus-per-pack=1",
            )
    return "set" if obstacle == _CHAIN and asked == "auto" else "1"


_CHAIN = "a pack that goes on in further Slurm jobs (--chain) has one GPU set"


def _explain_one_gpu(call: Call, share: ShareRequest) -> str:
    """Why the packs of a call have one GPU each; empty where they may have several."""
    if call.options.flag("local"):
        return "without Slurm (--local) a pack has one GPU"
    if share.mode is SharingMode.MIG:
        return f"with --share={share} a pack has one GPU, in which instances are made"
    if any(candidate.job.chain for candidate in call.candidates):
        return _CHAIN
    return ""


# ---- What a call asks for, before it is planned: its policy --------------------------------------

MONITOR_HOST_MEMORY_MB = 96
"""What the monitor takes alongside an NVIDIA driver, at the most that was seen."""


def choose_policy(call: Call, settings: Settings) -> Policy:
    """The policy of a call: what the user said, else the settings.

    Args:
        call: The call.
        settings: The settings.

    Raises:
        UsageProblem: `--share` or `--goal` has another value, or contradicts another option.
    """
    goal = _choose_goal(call) or Goal(settings.goal)
    most = settings.caps.members_per_pack or None
    share = choose_share(call, settings)
    if share.mode is SharingMode.MIG and share.strict and settings.hooks == "never":
        raise UsageProblem(
            f"--share={share} needs a node's prolog, which the settings keep from being asked "
            "(hooks = never)",
            hint="leave out the ! to use MPS instead",
        )
    degree = _choose_degree(call, share, settings)
    gpus_asked = choose_gpu_count(call, share, settings)
    if share.mode is SharingMode.EXCLUSIVE:
        if (call.degree or 1) > 1 or (call.pack_size or 1) > 1:
            raise UsageProblem(
                "--share=exclusive gives each job a GPU of its own",
                hint="leave out --degree and --pack-size, or choose another --share",
            )
        return Policy(
            degree=1,
            mode=SharingMode.EXCLUSIVE,
            share=str(share),
            running_limit=call.array.limit if call.array else None,
            start_margin_s=settings.start_margin_s,
            pack_time_max_s=settings.caps.pack_time_s,
            goal=goal,
            gpus_asked=gpus_asked,
        )
    # Usage profiles are not looked through for a job for which no other waits.
    measure_s = compute_measure_s(call.candidates, settings) if len(call.candidates) > 1 else 0
    size = call.pack_size or settings.pack_size or None
    if call.pack_size is not None and call.pack_size < degree:
        if call.degree is not None:
            raise UsageProblem(
                f"--degree={call.degree} run at once, but a pack has at most "
                f"--pack-size={call.pack_size} members",
                hint="leave one of them out, or ask for a --pack-size of the degree or more",
            )
        degree = call.pack_size
    return Policy(
        degree=degree,
        pack_size=_at_most(max(size, degree), most) if size else None,
        slowdown_bound=settings.slowdown_bound,
        running_limit=call.array.limit if call.array else None,
        mode=share.planned,
        share=str(share),
        start_margin_s=settings.start_margin_s,
        measure_s=measure_s,
        # Behind walls nothing is measured, and so nothing is corrected.
        measures=may_measure(settings)
        and settings.instrument
        and share.mode is not SharingMode.MIG,
        pack_time_max_s=settings.caps.pack_time_s,
        monitor_mb=MONITOR_HOST_MEMORY_MB if settings.monitor else 0,
        goal=goal,
        # A site or user that has set another degree means it, too.
        degree_is_asked=call.degree is not None or settings.degree != Settings.degree,
        degree_max=_at_most(
            max(degree, MIG_INSTANCES_MAX) if share.mode is SharingMode.MIG else MPS_CLIENTS_MAX,
            most,
        ),
        modes=(share.mode,) if share.mode is not None else _AUTO_MODES,
        may_cut=settings.mig
        and settings.hooks != "never"
        and share.mode is None
        and not call.options.flag("local"),
        mps_inside=settings.mig_mps_inside and bool(share.layout),
        gpus_asked=gpus_asked,
        mixes_gpus=call.degree is not None or call.chosen_together,
    )


def _choose_degree(call: Call, share: ShareRequest, settings: Settings) -> int:
    """How many run at once: as asked, else as many as a MIG layout has instances.

    Raises:
        UsageProblem: More were asked for than a GPU has instances, and they may not share those.
    """
    most = settings.caps.members_per_pack or None
    if share.mode is not SharingMode.MIG:
        return _at_most(call.degree or settings.degree, most)
    from slurm_colloc.model.mig_layout import parse_layout

    words = len(parse_layout(share.layout)) if share.layout else 0
    instances = words or MIG_INSTANCES_MAX
    shares = bool(words) and settings.mig_mps_inside
    places = instances * (MPS_CLIENTS_MAX if shares else 1)
    if call.degree is not None and call.degree > places:
        what = f"--share=mig={share.layout} has" if words else "a GPU has at most"
        each = f", for {MPS_CLIENTS_MAX} members each" if shares else ""
        hint = f"ask for --degree={places} or less; members beyond that wait"
        if not words:
            hint += " if a layout is named"
        elif not shares:
            hint += "; this site does not let them share instances (mig_mps_inside)"
        raise UsageProblem(
            f"--degree={call.degree}, but {what} {instances} MIG instances{each}", hint=hint
        )
    return _at_most(call.degree or words or min(settings.degree, instances), most)


_AUTO_MODES = (SharingMode.MPS, SharingMode.TIMESLICE)


def _choose_goal(call: Call) -> Goal | None:
    """The goal, in which all jobs of a call must agree; None where it is not given."""
    for value, origin in call.goals:
        if value not in GOAL_CHOICES:
            # It may come from a script of somebody else: no escape sequences, and not much of it.
            shown = ascii(value)[1:-1][:40]
            raise UsageProblem(f"{origin}: --goal={shown} is none of {', '.join(GOAL_CHOICES)}")
    told = "jobs of one call are packed in one way, not by both --goal={} and {}"
    _refuse_different(call.goals, "goal", told)
    return Goal(call.goals[0][0]) if call.goals else None


def _at_most(value: int, most: int | None) -> int:
    return value if most is None else min(value, most)


def choose_share(call: Call, settings: Settings) -> ShareRequest:
    """How the members of a call's packs share a GPU.

    Raises:
        UsageProblem: The value is none, or the scripts of the call ask for different ones.
    """
    told = "jobs of one call share in one way, not in both {} and {}"
    _refuse_different(call.shares, "share", told)
    takes_turns = any(candidate.job.turn_s for candidate in call.candidates)
    for value, origin in call.shares:
        share = ShareRequest.parse(value, origin)
        if takes_turns and share.mode is not SharingMode.TIMESLICE:
            raise UsageProblem(
                f"--take-turns needs time slices, and --share is {value}: the driver cannot "
                "move GPU memory under MPS or on MIG instances",
                hint="leave out --share, or give --share=timeslice",
            )
        return share
    if takes_turns:
        return ShareRequest.parse(SharingMode.TIMESLICE.value, "--take-turns")
    return ShareRequest.parse(settings.share, "setting share")


def is_captured(call: Call, *, on_terminal: bool) -> bool:
    """Whether a program reads the id of a call that did not say whether it may join a pack."""
    asks = any(call.options.flag(name) for name in ("parsable", "wait", "json"))
    return call.options.given("join") is None and (asks or not on_terminal)


def choose_join(
    call: Call, settings: Settings, *, on_terminal: bool, has_links: bool = False
) -> str:
    """Which packs a call may join: `auto`, `pending` or `never`.

    Where a program captures the id (no terminal, --parsable, --wait) a job joins if it was asked
    to, or where all that the program will ask Slurm about it goes to csub.

    Args:
        call: The call.
        settings: The settings.
        on_terminal: A person reads the answer.
        has_links: A job by itself was called for under the name sbatch, and Slurm's other commands
            are csub's, too.

    Raises:
        UsageProblem: `--join` has another value.
    """
    options = call.options
    given = options.given("join")
    choice = settings.join if given is None else given.value or "auto"
    is_always = has_links or (given is None and choice == JOIN_ALWAYS)
    if is_captured(call, on_terminal=on_terminal) and not is_always:
        return "never"
    if given is None and choice == JOIN_ALWAYS:
        choice = "auto"
    if choice not in JOIN_CHOICES:
        raise UsageProblem(
            f"{options.origin('join')}: --join={choice} is neither auto, pending nor never"
        )
    order = ("never", "pending", "auto", JOIN_ALWAYS)
    return min(choice, settings.caps.join, key=order.index)
