"""What Slurm charges for a request, by its partition's TRESBillingWeights (slurm.conf(5)); pure."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.plan import PackRequest

_WEIGHT = late_pattern(r"(?a)([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)([KMGTP]?)")
_UNITS = {"": 1.0, "K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
_MEGABYTE = 2.0**20
_NOTHING = ("", "(null)", "N/A", "accounting_storage/none")


@dataclass(frozen=True)
class BillingRule:
    """How Slurm charges jobs of a partition.

    Attributes:
        weights: By the resource's name in small letters, host memory per MB; none where nothing is
            charged.
        takes_most: The largest of CPUs, host memory and GPUs counts, instead of their sum.
        adds_gpus: And the GPUs are added to it.
    """

    weights: Mapping[str, float]
    takes_most: bool = False
    adds_gpus: bool = False


def read_billing_rule(partition: Mapping[str, str], config: Mapping[str, str]) -> BillingRule:
    """The rule of a partition.

    Without weights Slurm charges CPUs, if it accounts for jobs at all.

    Args:
        partition: The fields of `scontrol show partition`.
        config: The values of `scontrol show config`.

    Raises:
        ValueError: It cannot be read.
    """
    text = partition.get("TRESBillingWeights", "")
    if text in _NOTHING:
        storage = config.get("AccountingStorageType")
        if storage is None:
            raise ValueError("scontrol show config has no AccountingStorageType")
        return BillingRule({} if storage in _NOTHING else {"cpu": 1.0})
    flags = config.get("PriorityFlags", "").split(",")
    return BillingRule(
        dict(_read_weight(word) for word in text.split(",") if word),
        takes_most="MAX_TRES" in flags or "MAX_TRES_GRES" in flags,
        adds_gpus="MAX_TRES_GRES" in flags,
    )


def _read_weight(word: str) -> tuple[str, float]:
    name, _, value = word.partition("=")
    match = _WEIGHT.fullmatch(value)
    if match is None:
        raise ValueError(f"TRESBillingWeights has {word!r}")
    # Slurm counts memory in MB, and a weight with a suffix is one for so much: 0.25G for each GB.
    unit = _UNITS[match[2]]
    name = name.lower()
    if name == "mem" and match[2]:
        unit /= _MEGABYTE
    return name, float(match[1]) / unit


def compute_billing(rule: BillingRule, request: PackRequest) -> float:
    """What a request on one node is charged; host memory that it does not state counts nothing."""
    amounts = {
        "cpu": request.cpus,
        "mem": request.host_memory_mb or 0,
        "gres/gpu": request.gpus,
    }
    if request.gpu_type:
        amounts[f"gres/gpu:{request.gpu_type.lower()}"] = request.gpus
    parts = {name: rule.weights.get(name, 0.0) * amount for name, amount in amounts.items()}
    if not rule.takes_most:
        return sum(parts.values())
    gpus = sum(part for name, part in parts.items() if name.startswith("gres/"))
    rest = [part for name, part in parts.items() if not name.startswith("gres/")]
    if rule.adds_gpus:
        return max(rest) + gpus
    return max(parts.values())
