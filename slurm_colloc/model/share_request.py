"""What `--share` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.plan import SharingMode

AUTO = "auto"
SHARE_CHOICES = (
    AUTO,
    SharingMode.MPS.value,
    SharingMode.TIMESLICE.value,
    SharingMode.EXCLUSIVE.value,
)


@dataclass(frozen=True)
class ShareRequest:
    """How members are to share a GPU: `auto`, `mps`, `timeslice`, `exclusive`, `mps!`.

    Attributes:
        mode: The mode asked for; None for `auto`, which is MPS where the node has it.
        strict: Rather fail than fall back to another mode.
    """

    mode: SharingMode | None = None
    strict: bool = False

    @classmethod
    def parse(cls, text: str, origin: str = "--share") -> ShareRequest:
        """Read the value of `--share`.

        Args:
            text: The value.
            origin: Where it was given, for the message.

        Raises:
            UsageProblem: It is no such value.
        """
        word = text.removesuffix("!")
        if word not in SHARE_CHOICES:
            raise UsageProblem(
                f"{origin}: --share={text} is none of {', '.join(SHARE_CHOICES)}",
                hint="mps! forbids any other mode instead",
            )
        if word == AUTO:
            if word != text:
                raise UsageProblem(
                    f"{origin}: --share=auto! cannot be strict",
                    hint="write mps! to forbid a fallback",
                )
            return cls()
        return cls(SharingMode(word), word != text)

    @property
    def planned(self) -> SharingMode:
        """The mode that is tried first."""
        return self.mode or SharingMode.MPS

    def describe_mode(self, planned: SharingMode) -> str:
        """What is said of a pack before its node has prepared anything.

        Args:
            planned: The mode of the pack's plan.
        """
        if planned is not SharingMode.MPS or self.strict:
            return planned.value
        return "mps or timeslice"

    def __str__(self) -> str:
        return AUTO if self.mode is None else f"{self.mode.value}{'!' if self.strict else ''}"
