"""What `--share` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.printable import cut, escape_controls

AUTO = "auto"
SHARE_CHOICES = (
    AUTO,
    SharingMode.MPS.value,
    SharingMode.MIG.value,
    SharingMode.TIMESLICE.value,
    SharingMode.EXCLUSIVE.value,
)
_STRICT = "!"
_LAYOUT = "mig="
_FALLBACKS = {SharingMode.MPS: "mps or timeslice", SharingMode.MIG: "mig, mps or timeslice"}


@dataclass(frozen=True)
class ShareRequest:
    """How members are to share a GPU: `auto`, `mps`, `mig`, `mig=3g+2g+1g+1g`, `exclusive`, `mps!`.

    Attributes:
        mode: The mode asked for; None for `auto`, which is MPS where the node has it.
        strict: Rather fail than fall back to another mode.
        layout: The MIG instances of a GPU, as words with plus signs between them; empty where
            csub chooses them.
    """

    mode: SharingMode | None = None
    strict: bool = False
    layout: str = ""

    @classmethod
    def parse(cls, text: str, origin: str = "--share") -> ShareRequest:
        """Read the value of `--share`.

        Args:
            text: The value.
            origin: Where it was given, for the message.

        Raises:
            UsageProblem: It is no such value.
        """
        word = text.removesuffix(_STRICT)
        strict = word != text
        if word.startswith(_LAYOUT):
            return cls(SharingMode.MIG, strict, _read_layout(word.removeprefix(_LAYOUT), origin))
        if word not in SHARE_CHOICES:
            raise UsageProblem(
                f"{origin}: --share={escape_controls(cut(text))} is none of "
                f"{', '.join(SHARE_CHOICES)}",
                hint="mps! forbids any other mode instead, mig=3g+2g+1g+1g names MIG instances",
            )
        if word == AUTO:
            if strict:
                raise UsageProblem(
                    f"{origin}: --share=auto! cannot be strict",
                    hint="write mps! to forbid a fallback",
                )
            return cls()
        return cls(SharingMode(word), strict)

    @property
    def planned(self) -> SharingMode:
        """The mode that is tried first."""
        return self.mode or SharingMode.MPS

    def describe_mode(self, planned: SharingMode) -> str:
        """What is said of a pack before its node has prepared anything.

        Args:
            planned: The mode of the pack's plan.
        """
        if self.mode is None and planned is SharingMode.MIG:
            return "mig or one at a time"
        return planned.value if self.strict else _FALLBACKS.get(planned, planned.value)

    def __str__(self) -> str:
        if self.mode is None:
            return AUTO
        layout = f"={self.layout}" if self.layout else ""
        return f"{self.mode.value}{layout}{_STRICT if self.strict else ''}"


def _read_layout(text: str, origin: str) -> str:
    """A layout that its words let through; whether a GPU has such instances is seen later."""
    # Only who names instances waits for it.
    from slurm_colloc.model.mig.layout_words import parse_layout, render_layout

    try:
        return render_layout(parse_layout(text))
    except UsageProblem as problem:
        raise UsageProblem(f"{origin}: {problem.message}", hint=problem.hint) from problem
