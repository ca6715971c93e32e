"""Where the instances of a layout lie on a GPU: exact, by NVML's placements; pure.

Also: the words of a MIG layout, as in `--share=mig=3g+2g+1g+1g`.

That no more than seven compute slices are used follows from the placements. An instance is put as
far back as it goes: what stays free is at the front, where the large profiles begin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.comment_token import ATTRIBUTE, LAYOUT_MAX_CHARACTERS, WORDS_MAX
from slurm_colloc.model.mig_profiles import InstanceProfile, PlacedInstance, Placement
from slurm_colloc.model.printable import escape_controls


def place(profiles: Sequence[InstanceProfile]) -> tuple[PlacedInstance, ...] | None:
    """Find a place for each instance of an empty GPU.

    Args:
        profiles: What is wanted, in any order.

    Returns:
        The instances, the biggest first, as they have to be made; None where they do not fit.
    """
    wanted = sorted(profiles, key=_rank)
    if not _are_allowed(wanted):
        return None
    found = _search(wanted, 0, set())
    if found is None:
        return None
    return tuple(map(PlacedInstance, wanted, found))


def _rank(profile: InstanceProfile) -> tuple[int, int, int]:
    """Biggest first: by memory, then by compute slices; equal profiles side by side."""
    return (-profile.memory_slices, -profile.compute_slices, profile.profile_id)


def _are_allowed(profiles: Sequence[InstanceProfile]) -> bool:
    """Whether a GPU has so many of each, wherever they lie."""
    ids = [profile.profile_id for profile in profiles]
    return all(ids.count(profile.profile_id) <= profile.instances_max for profile in profiles) and (
        sum(profile.media_extensions for profile in profiles) <= 1
    )


def _search(
    wanted: Sequence[InstanceProfile], taken: int, dead: set[tuple[int, int]]
) -> tuple[Placement, ...] | None:
    """Places for what is wanted; `dead` has how many were left, and where none was free for all."""
    if not wanted:
        return ()
    if (len(wanted), taken) in dead:
        return None
    for placement in sorted(wanted[0].placements, reverse=True):
        if not placement.mask & taken:
            rest = _search(wanted[1:], taken | placement.mask, dead)
            if rest is not None:
                return (placement, *rest)
    dead.add((len(wanted), taken))
    return None


# ---- The words of a MIG layout, as in `--share=mig=3g+2g+1g+1g`; pure ----------------------------
#
# 3g            by slices: of profiles with as many, the one with the least memory
# 1g.20gb       by name
# 1g.10gb+me    `+me`, `+me.all`, `-me` and `+gfx` belong to the word before
# 3c.7g+4c.7g   compute instances: words that follow each other fill one GPU instance

_WORD = re.compile(
    r"(?a)(?:(?P<compute>[123467])c\.)?(?P<slices>[12347])g(?:\.(?P<memory_gb>[1-9][0-9]{0,2})gb)?"
    rf"(?P<attribute>{ATTRIBUTE})?"
)
_WORD_BEGINS = re.compile(r"\+(?=[0-9])")
_SHOWN_MAX = 40


@dataclass(frozen=True)
class LayoutWord:
    """One compute instance of a layout: nearly always a GPU instance of its own.

    Args:
        text: The word as it was written.
        compute_slices: What it computes with.
        gpu_instance_slices: Compute slices of its GPU instance.
        memory_gb: The memory in its name; None where it names none.
        attributes: Such as `+me`; empty for none.
    """

    text: str
    compute_slices: int
    gpu_instance_slices: int
    memory_gb: int | None = None
    attributes: str = ""

    @property
    def shares_instance(self) -> bool:
        """It takes a part of a GPU instance only."""
        return self.compute_slices < self.gpu_instance_slices


def parse_layout(text: str) -> tuple[LayoutWord, ...]:
    """Read a layout.

    Args:
        text: Any text.

    Raises:
        UsageProblem: It is no layout of one GPU.
    """
    hint = "write slices (3g+2g+1g+1g) or names as nvidia-smi mig -lgip gives them (3g.40gb)"
    parts = _WORD_BEGINS.split(text[: 64 * LAYOUT_MAX_CHARACTERS])
    if len(parts) > WORDS_MAX:
        raise UsageProblem(
            f"the MIG layout has {len(parts)} words, and a GPU has {WORDS_MAX} slices", hint=hint
        )
    words = []
    for part in parts:
        match = _WORD.fullmatch(part)
        if match is None:
            shown = escape_controls(part[:_SHOWN_MAX])
            raise UsageProblem(f"the MIG layout has the word '{shown}', which is none", hint=hint)
        slices = int(match["slices"])
        compute = int(match["compute"] or slices)
        if compute > slices:
            raise UsageProblem(
                f"the MIG layout has the word '{part}': {compute} compute slices do not fit into "
                f"{slices}"
            )
        memory_gb = match["memory_gb"]
        words.append(
            LayoutWord(
                part,
                compute,
                slices,
                int(memory_gb) if memory_gb else None,
                match["attribute"] or "",
            )
        )
    return tuple(words)


def render_layout(words: Sequence[LayoutWord]) -> str:
    """A layout as it is written."""
    return "+".join(word.text for word in words)


def group_words(words: Sequence[LayoutWord]) -> tuple[tuple[LayoutWord, ...], ...]:
    """Divide words into GPU instances: those that share one fill it until it is full."""
    groups: list[list[LayoutWord]] = []
    free = 0
    for word in words:
        shared = groups[-1][0] if groups else None
        if shared is not None and word.compute_slices <= free and _is_same_instance(shared, word):
            groups[-1].append(word)
        else:
            groups.append([word])
            free = word.gpu_instance_slices
        free -= word.compute_slices
    return tuple(map(tuple, groups))


def _is_same_instance(one: LayoutWord, other: LayoutWord) -> bool:
    return (
        one.shares_instance
        and other.shares_instance
        and (one.gpu_instance_slices, one.memory_gb, one.attributes)
        == (other.gpu_instance_slices, other.memory_gb, other.attributes)
    )


def resolve(
    words: Sequence[LayoutWord], profiles: Sequence[InstanceProfile]
) -> tuple[InstanceProfile, ...]:
    """Find the profile of each GPU instance of a layout, in the order of `group_words`.

    Args:
        words: The layout.
        profiles: What this GPU has.

    Raises:
        UsageProblem: The GPU has no such profile.
    """
    return tuple(resolve_word(group[0], profiles) for group in group_words(words))


def resolve_word(word: LayoutWord, profiles: Sequence[InstanceProfile]) -> InstanceProfile:
    """Find the profile of the GPU instance that a word is in.

    Raises:
        UsageProblem: The GPU has no such profile.
    """
    fits = [
        profile
        for profile in profiles
        if profile.compute_slices == word.gpu_instance_slices
        and profile.attributes == word.attributes
        and word.memory_gb in (None, profile.memory_gb)
    ]
    if not fits:
        names = ", ".join(profile.name for profile in profiles) or "none at all"
        raise UsageProblem(
            f"this GPU has no MIG profile {word.text}",
            hint=f"its profiles are {escape_controls(names)}",
        )
    return min(fits, key=lambda profile: (profile.memory_mb, profile.profile_id))
