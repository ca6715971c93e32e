"""What a pack asks of its node's prolog: a token in the comment, and nodes that have one; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.comment_token import (
    COMMENT_MAX_BYTES,
    PACK_TOKEN,
    Token,
    append_token,
    parse_token,
)
from slurm_colloc.model.plan import PackPlan, SharingMode
from slurm_colloc.settings import Settings

_NO_ROOM = (
    "the node's prolog is not asked for MPS: --comment leaves no room for it; the pack starts MPS "
    "itself"
)
_NO_ROOM_FOR_MIG = (
    "the node's prolog is not asked for MIG: --comment leaves no room for it; the pack shares in "
    "another way"
)
_NO_SETS = (
    "the node's prolog is not asked for MPS: it knows no GPU sets of several GPUs; each starts MPS "
    "itself"
)
# What goes on with `&` as it is, and what needs parentheses first; counts and brackets are neither.
_PLAIN = re.compile(r"[\w.:=/-]+(?:[&,][\w.:=/-]+)*")
_WITH_OR = re.compile(r"[\w.:=/-]+(?:[&,|][\w.:=/-]+)*")


@dataclass(frozen=True)
class HookChoice:
    """Whether packs ask for the hooks of their nodes; see settings.Settings.

    Attributes:
        use: `auto` (where a node has them), `always` (on nodes that have them) or `never`.
        feature: The feature of nodes that have them; empty for none.
    """

    use: str = "auto"
    feature: str = ""

    @classmethod
    def of(cls, settings: Settings) -> HookChoice:
        """The choice that the settings make."""
        return cls(settings.hooks, settings.hook_feature)


@dataclass(frozen=True)
class HookRequest:
    """What packs tell Slurm, their hooks included.

    Attributes:
        comment: The job's comment: the user's own words, the mark of csub, the token.
        constraint: The node features; None where nothing was asked for.
        notes: What could not be asked for, and why; a sentence each.
    """

    comment: str
    constraint: str | None
    notes: tuple[str, ...] = ()


def build_hook_request(
    packs: Iterable[PackPlan],
    group: Mapping[str, str],
    submission: str,
    hooks: HookChoice,
    *,
    gpu_sets: Sequence[int] = (),
) -> HookRequest:
    """What packs of one Slurm job ask for.

    Args:
        packs: The packs.
        group: The options that all members share.
        submission: The submission's id.
        hooks: Whether they ask for hooks.
        gpu_sets: The GPUs of each set of the Slurm job; none where it has one set.

    Raises:
        UsageProblem: The user's comment leaves no room for csub's mark.
    """
    mark = PACK_TOKEN.format(submission=submission)
    own = group.get("comment", "")
    comment = f"{own} {mark}" if own else mark
    length = len(comment.encode("utf-8", "surrogateescape"))
    if length > COMMENT_MAX_BYTES:
        raise UsageProblem(
            f"--comment is too long: Slurm takes {COMMENT_MAX_BYTES} bytes, and csub needs "
            f"{len(mark) + 1} of them to find the job again",
            hint=f"shorten it by {length - COMMENT_MAX_BYTES} bytes",
        )
    constraint = group.get("constraint")
    token = choose_token(packs, gpu_sets)
    if hooks.use == "never" or token is None:
        return HookRequest(comment, constraint)
    if max(gpu_sets, default=1) > 1:
        return HookRequest(comment, constraint, (_NO_SETS,))
    notes = []
    longer = append_token(comment, token)
    if parse_token(longer) is None:
        notes.append(_NO_ROOM_FOR_MIG if token.mode.startswith("mig=") else _NO_ROOM)
    elif hooks.use == "always" and hooks.feature:
        joined = join_constraint(constraint or "", hooks.feature)
        if joined is None:
            notes.append(
                f"nodes with {hooks.feature} are not asked for: that cannot be said together "
                f"with --constraint={constraint}"
            )
        else:
            constraint = joined
    return HookRequest(longer, constraint, tuple(notes))


def choose_token(packs: Iterable[PackPlan], gpu_sets: Sequence[int] = ()) -> Token | None:
    """What packs of one Slurm job ask the hooks for; None for nothing.

    All of those with MIG instances have the same layout (`call_batches`). A prolog knows daemons
    for all GPUs of a job, and for each.
    """
    grouping = "each" if gpu_sets else "all"
    is_mps = False
    for pack in packs:
        if pack.layout:
            return Token(f"mig={'+'.join(instance.word for instance in pack.layout)}", "all")
        is_mps = is_mps or pack.mode is SharingMode.MPS
    return Token("mps", grouping) if is_mps else None


def join_constraint(own: str, feature: str) -> str | None:
    """The user's `--constraint` and one feature more; None where Slurm has no words for both."""
    if not own:
        return feature
    if _PLAIN.fullmatch(own):
        return own if feature in re.split("[&,]", own) else f"{own}&{feature}"
    return f"({own})&{feature}" if _WITH_OR.fullmatch(own) else None


def extend_comment(
    comment: str, submission: str, mode: SharingMode, hooks: HookChoice
) -> tuple[str, tuple[str, ...]]:
    """The comment of a job whose pack has grown; as it is where it needs no token or takes none.

    Args:
        comment: As Slurm shows it. Without csub's mark at its end something is missing, or others
            have written behind it; it is then left alone.
        submission: The pack's submission.
        mode: How the pack is now to share.
        hooks: Whether it asks for hooks.

    Returns:
        The comment, and what is to be noted of it.
    """
    if hooks.use == "never" or mode is not SharingMode.MPS:
        return comment, ()
    if not comment.endswith(PACK_TOKEN.format(submission=submission)):
        return comment, ()
    longer = append_token(comment, Token("mps", "all"))
    return longer, (_NO_ROOM,) if longer == comment else ()
