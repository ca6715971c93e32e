"""Rules of others for who shares a GPU: what planning asks of one, and where it is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from slurm_colloc.extensions import RULES, load_extension
from slurm_colloc.model.plan import Rule
from slurm_colloc.planning.job_needs import Question
from slurm_colloc.planning.limits.hard_limits import Broken
from slurm_colloc.planning.priced_packs import Limits, Subject


class PackingRule(Protocol):
    """A rule, without the system around it."""

    def partition(
        self, subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
    ) -> tuple[tuple[int, ...], ...]:
        """Divide jobs into packs; each is the positions of its members.

        Args:
            subjects: The jobs.
            limits: What one GPU has, which no rule goes beyond.
            gpu_memory_mb: Memory of one GPU; None where unknown.
        """
        ...

    def describe_sums(self, subjects: Sequence[Subject]) -> str:
        """What the rule looked at in a pack, with the most that it allows."""
        ...

    def find_broken(
        self,
        question: Question,
        subjects: Sequence[Subject],
        names: Sequence[str],
        packs: tuple[Sequence[int], Sequence[int]],
        pair: tuple[int, int],
    ) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        """What keeps two jobs apart.

        Args:
            question: What planning was asked.
            subjects: Its jobs.
            names: What they are called.
            packs: The packs of the two.
            pair: The two.

        Returns:
            What is in the way, and who was in the pack that the second would have joined; none
            where the two alone could not share.
        """
        ...


def find_rule(rule: Rule) -> PackingRule:
    """Load a rule of others.

    Raises:
        UsageProblem: The package that has it is not installed.
    """
    return cast("PackingRule", load_extension(RULES, rule, f"the rule --policy={rule}"))
