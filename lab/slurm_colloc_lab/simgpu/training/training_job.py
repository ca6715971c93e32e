"""The command line of `simgpu run`; pure."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

_DESCRIPTION = "A process that uses a simulated GPU as a PyTorch training uses a real one."
_FAULTS = (
    "illegal-address",
    "device-assert",
    "out-of-gpu-memory",
    "segfault",
    "exit",
    "hang",
    "sigkill-itself",
)


@dataclass(frozen=True)
class TrainingFault:
    """A fault on demand.

    Args:
        kind: One of the known words.
        after_s: So long after the start.
        status: The exit status of `exit`.
    """

    kind: str
    after_s: float = 0.0
    status: int = 0


@dataclass(frozen=True)
class TrainingJob:
    """What the program should do.

    Args:
        gpu_memory_mb: What it takes apart from its context.
        block_mb: In pieces of this size.
        sm_demand: Per cent of SM time that it uses alone.
        dram_demand: Per cent of the memory bandwidth that it uses alone.
        gpus: On how many GPUs it trains; each does the same, at the pace of the slowest.
        nvlink_mib_s: What each sends to the others alone, in MiB/s.
        steps_per_s: Its speed alone.
        steps: It ends after so many, or infinity.
        seconds: It ends after so long, or infinity.
        report: Print progress.
        fault: How it fails, if at all.
    """

    gpu_memory_mb: int
    block_mb: int
    sm_demand: float
    dram_demand: float
    gpus: int
    nvlink_mib_s: float
    steps_per_s: float
    steps: float
    seconds: float
    report: bool
    fault: TrainingFault | None


def parse_size_mb(text: str) -> int:
    """Read 2G, 512M or a number of MiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size such as 2G or 512M")
    return math.ceil(float(match[1]) * (1024 if match[2].upper() == "G" else 1))


def parse_percent(text: str) -> float:
    """Read 0 to 100."""
    value = _parse_positive(text, low=0.0)
    if value > 100.0:
        raise argparse.ArgumentTypeError(f"'{text}' is not between 0 and 100")
    return value


def parse_fault(text: str) -> TrainingFault:
    """Read KIND or KIND@SECONDS, with exit=STATUS."""
    words, _, after = text.partition("@")
    kind, equals, status = words.partition("=")
    known = kind in _FAULTS and (kind == "exit") == bool(equals)
    if not known or (equals and not (status.isdigit() and int(status) < 256)):
        raise argparse.ArgumentTypeError(
            f"'{text}' is none of {', '.join(_FAULTS).replace('exit', 'exit=STATUS')}, "
            "with @SECONDS behind it or not"
        )
    return TrainingFault(kind, _parse_positive(after, low=0.0) if after else 0.0, int(status or 0))


def parse_job(argv: Sequence[str]) -> TrainingJob:
    """Read the command line.

    Raises:
        SystemExit: It is wrong, or asks for help.
    """
    parser = argparse.ArgumentParser(prog="simgpu run", description=_DESCRIPTION)
    parser.add_argument("--gpu-memory", type=parse_size_mb, default=1024, metavar="SIZE")
    parser.add_argument("--block", type=parse_size_mb, default=128, metavar="SIZE")
    parser.add_argument("--sm", type=parse_percent, default=30.0, metavar="PERCENT")
    parser.add_argument("--dram", type=parse_percent, metavar="PERCENT")
    parser.add_argument("--gpus", type=_parse_gpus, default=1, metavar="N")
    parser.add_argument("--nvlink", type=_parse_traffic, default=0.0, metavar="MIB_PER_S")
    parser.add_argument("--rate", type=_parse_positive, default=10.0, metavar="STEPS_PER_S")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=_parse_positive, metavar="N")
    length.add_argument("--seconds", type=_parse_positive, metavar="S")
    parser.add_argument("--report", action="store_true", help="print `step N rate R`")
    parser.add_argument("--fault", type=parse_fault, metavar="KIND[@SECONDS]")
    given = parser.parse_args(argv)
    steps = given.steps or (math.inf if given.seconds else 100.0)
    return TrainingJob(
        gpu_memory_mb=given.gpu_memory,
        block_mb=max(1, given.block),
        sm_demand=given.sm,
        dram_demand=given.sm / 3 if given.dram is None else given.dram,
        gpus=given.gpus,
        nvlink_mib_s=given.nvlink,
        steps_per_s=given.rate,
        steps=steps,
        seconds=given.seconds or math.inf,
        report=given.report,
        fault=given.fault,
    )


def _parse_gpus(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of GPUs")
    return int(text)


def _parse_traffic(text: str) -> float:
    return _parse_positive(text, low=0.0)


def _parse_positive(text: str, low: float = 1e-6) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (low <= value < math.inf):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return value
