"""The rules as csub's planning finds them, by entry points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.model.plan import Rule
from slurm_colloc.planning.hard_limits import Broken, Limits, Subject
from slurm_colloc.planning.job_needs import Question
from slurm_colloc_lab.rules import other_rules
from slurm_colloc_lab.rules.rule_reasons import find_by_rule


@dataclass(frozen=True)
class PublishedRule:
    """One of them; `slurm_colloc.planning.known_packs.PackingRule` says what its methods do."""

    rule: Rule

    def partition(
        self, subjects: Sequence[Subject], limits: Limits, gpu_memory_mb: int | None
    ) -> tuple[tuple[int, ...], ...]:
        """The packs that it makes."""
        return other_rules.partition(self.rule, subjects, limits, gpu_memory_mb)

    def describe_sums(self, subjects: Sequence[Subject]) -> str:
        """What it looked at in a pack."""
        return other_rules.describe_sums(self.rule, subjects)

    def find_broken(
        self,
        question: Question,
        subjects: Sequence[Subject],
        names: Sequence[str],
        packs: tuple[Sequence[int], Sequence[int]],
        pair: tuple[int, int],
    ) -> tuple[tuple[Broken, ...], tuple[int, ...]]:
        """What keeps two jobs apart."""
        return find_by_rule(question, subjects, names, packs, pair)


ADDITIVE = PublishedRule(Rule.ADDITIVE)
CARMA = PublishedRule(Rule.CARMA)
EXCLUSIVE = PublishedRule(Rule.EXCLUSIVE)
