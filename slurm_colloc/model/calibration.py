"""How jobs slow each other down on one GPU model: the coefficients that were fitted there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

"""What a job takes of a GPU, as shares of what it has; see Load."""


@dataclass(frozen=True)
class Load:
    """What a job takes of a GPU and its host while it runs alone at full speed.

    Attributes:
        engine: Share of the time in which the GPU works for it, 0 to 1.
        sm: SM activity, 0 to 1.
        dram: DRAM activity, 0 to 1.
        tensor: Activity of the tensor cores, 0 to 1.
        pcie: Share of what PCIe can carry in its busier direction, 0 to 1.
        cpu_cores: Cores of the host.
        power_w: Power of the GPU above its idle power, in watts.
        sensitivity: What its slowdown was above the model's in earlier packs.
        pressure: What its partners' slowdowns were above the model's in earlier packs.
    """

    engine: float
    sm: float
    dram: float
    tensor: float = 0.0
    pcie: float = 0.0
    cpu_cores: float = 1.0
    power_w: float = 0.0
    sensitivity: float = 0.0
    pressure: float = 0.0


@dataclass(frozen=True)
class ModeModel:
    """The contention model of one sharing mode; planning.predict.contention says how they act.

    Without any of them members disturb each other by copies over PCIe alone.

    Attributes:
        turns: Time slicing: how much of a partner's time on the GPU is waited for.
        switching: Time slicing: what changing from one to the other costs on top.
        waiting: MPS: how long kernels wait for SMs that a partner's kernels fill.
        width: MPS: exponent of a thread limit in how many SMs a member's kernels fill.
        narrowing: MPS: how far a thread limit stretches the time on the GPU of a member itself.
        dram: MPS: how far two members that fill the DRAM's bandwidth stretch each other.
        capacity: MPS: SM activity, as measured alone, that the GPU can serve at the same time
            where thread limits add up to no more than the GPU; 0 for no bound.
        crowding: MPS: how much less that is where they add up to very much more.
        copying: How much longer a copy over PCIe takes while a partner copies, too. Where that
            was not measured, 1: each gets half.
    """

    turns: float = 0.0
    switching: float = 0.0
    waiting: float = 0.0
    width: float = 1.0
    narrowing: float = 0.0
    dram: float = 0.0
    capacity: float = 0.0
    crowding: float = 0.0
    copying: float = 1.0


@dataclass(frozen=True)
class Calibration:
    """The models of all sharing modes on one GPU model.

    Attributes:
        gpu_model: NVML's name of the GPU model.
        modes: By sharing mode (`timeslice`, `mps`, `mig`).
        residual: Standard deviation of measured over predicted slowdown, less one.
        idle_power_w: Power of the GPU when nothing runs; None where unknown.
        power_limit_w: Its power limit; None where unknown.
        made_at: When it was measured, in seconds since the epoch.
        driver: NVIDIA driver that it was measured with.
        packs: Of how many packs it was fitted.
        source: Where it comes from, in words.
    """

    gpu_model: str
    modes: Mapping[str, ModeModel]
    residual: float
    idle_power_w: float | None = None
    power_limit_w: float | None = None
    made_at: float = 0.0
    driver: str = ""
    packs: int = 0
    source: str = ""
