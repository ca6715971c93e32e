"""What is known about an option: its argument, and what it means for packing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Argument(Enum):
    """Whether an option takes a value, in the sense of getopt_long(3)."""

    NONE = "none"
    REQUIRED = "required"
    OPTIONAL = "optional"  # only attached: --name=value, -nvalue


class Concern(Enum):
    """What an option means for packing."""

    MEMBER = "member"
    """csub does it for each member itself."""
    GROUP = "group"
    """Jobs share a pack only where the values are equal; sbatch gets it for the pack."""
    SHAPE = "shape"
    """How many nodes, tasks and GPUs: the value decides whether the job can be packed."""
    ALONE = "alone"
    """A job with this runs in an allocation of its own, and sbatch gets the option as it is."""
    CALL = "call"
    """It concerns this call of csub only."""
    REFUSED = "refused"
    """csub cannot do it; `Option.reason` says why."""
    STEP = "step"
    """An option of srun alone."""


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: The long name without dashes.
        short: The letter of the short form, or None.
        argument: Whether it takes a value.
        concern: What it means for packing.
        env: The input variables of sbatch(1) that set it, in the order in which sbatch reads them.
        srun: Whether srun takes it too.
        since: The first release with it, or None where 22.05 has it.
        until: The last release with it, or None.
        own: Whether it is csub's own.
        alias_of: The name of the option that this is another spelling of, or None.
        cancels: The option that this one turns off, or None.
        early: Whether sbatch reads it from the command line and environment only, and ignores it
            in a script.
        reason: Why it is refused or makes a job run alone, as a clause, or what an own one does.
        choices: Of an own option whose value may be left out: words that may also follow it as
            a word of their own.
        repeats: Each time that it is given counts: within one place the values are joined by line
            breaks.
    """

    name: str
    short: str | None
    argument: Argument
    concern: Concern
    env: tuple[str, ...] = ()
    srun: bool = False
    since: str | None = None
    until: str | None = None
    own: bool = False
    alias_of: str | None = None
    cancels: str | None = None
    early: bool = False
    reason: str = ""
    choices: tuple[str, ...] = ()
    repeats: bool = False

    @property
    def canonical_name(self) -> str:
        """The name under which the value is kept."""
        return self.alias_of or self.name
