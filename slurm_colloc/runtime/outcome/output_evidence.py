"""What a member's own output says about its end: the words of CUDA and of its frameworks; pure.

Only an ended member that failed is looked at, and only the end of what it wrote. The words are
those of PyTorch 2.11 on an H200 with driver 580, of the CUDA runtime's and driver's error names
(docs.nvidia.com, CUDA Runtime API, cudaError_t; CUDA Driver API, CUresult) and of XLA.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class Sign(enum.Enum):
    """What a line of output stands for."""

    OUT_OF_GPU_MEMORY = "out of GPU memory"
    FAULT = "fatal fault on the GPU"
    MPS_GONE = "the MPS server is gone"
    MPS_REFUSED = "the MPS server refuses clients"
    MPS_FULL = "the MPS server has as many clients as it takes"
    ASSERT = "device-side assert"
    NO_DEVICE = "the GPU does not answer"


MPS_SIGNS = frozenset({Sign.MPS_GONE, Sign.MPS_REFUSED, Sign.MPS_FULL})
"""Those that only clients of an MPS server meet."""


@dataclass(frozen=True)
class OutputFinding:
    """A line that says why a program ended."""

    sign: Sign
    line: str


_SIGNS: tuple[tuple[Sign, re.Pattern[str]], ...] = (
    (
        Sign.OUT_OF_GPU_MEMORY,
        re.compile(
            r"CUDA out of memory|OutOfMemoryError: |CUDA error: out of memory"
            r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
            r"|RESOURCE_EXHAUSTED: Out of memory|CUBLAS_STATUS_ALLOC_FAILED"
        ),
    ),
    (
        Sign.FAULT,
        re.compile(
            r"an illegal memory access was encountered|cudaErrorIllegalAddress"
            r"|CUDA_ERROR_ILLEGAL_ADDRESS|an illegal instruction was encountered"
            r"|misaligned address|unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED"
            r"|cudaErrorLaunchFailure|hardware stack error|CUDA_ERROR_(HARDWARE|ILLEGAL|MISALIGNED)"
        ),
    ),
    (
        Sign.NO_DEVICE,
        re.compile(
            r"No CUDA GPUs are available|no CUDA-capable device is detected"
            r"|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE"
            r"|CUDA error: unknown error|cudaErrorUnknown|CUDA_ERROR_UNKNOWN"
            r"|CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable"
            r"|CUDA_ERROR_DEVICE_UNAVAILABLE|[Gg]PU is lost|fallen off the bus"
        ),
    ),
    (Sign.ASSERT, re.compile(r"device-side assert triggered|cudaErrorAssert|CUDA_ERROR_ASSERT")),
    (
        Sign.MPS_GONE,
        re.compile(
            r"remote procedural call between the MPS server and the MPS client failed"
            r"|cudaErrorMpsRpcFailure|CUDA_ERROR_MPS_RPC_FAILURE"
            r"|MPS client failed to connect to the MPS control daemon or the MPS server"
            r"|cudaErrorMpsConnectionFailed|CUDA_ERROR_MPS_CONNECTION_FAILED"
            r"|MPS client has been terminated by the server"
            r"|cudaErrorMpsClientTerminated|CUDA_ERROR_MPS_CLIENT_TERMINATED"
        ),
    ),
    (
        Sign.MPS_REFUSED,
        re.compile(
            r"MPS server is not ready to accept new MPS client|cudaErrorMpsServerNotReady"
            r"|CUDA_ERROR_MPS_SERVER_NOT_READY"
        ),
    ),
    (
        Sign.MPS_FULL,
        re.compile(
            r"hardware resources required to (create MPS client|support device connections)"
            r"|cudaErrorMpsMax(Clients|Connections)Reached"
            r"|CUDA_ERROR_MPS_MAX_(CLIENTS|CONNECTIONS)_REACHED"
        ),
    ),
)

_LONGEST_LINE = 300

_HINT = "Search for `cuda"
"""How PyTorch 2.11 begins the line below an error that names where to read of it."""

_LAST_LINES = 200
"""A program ends soon after it has said why; torchrun's summary has some fifty lines. What stands
further up it has outlived, such as the last try of a search for the largest batch."""


def find_signs(output: str) -> tuple[OutputFinding, ...]:
    """The last line of each sign, in the order in which the signs first came up.

    Args:
        output: The end of what a member wrote.
    """
    found: dict[Sign, str] = {}
    for line in output.splitlines()[-_LAST_LINES:]:
        if line.startswith(_HINT):
            continue
        for sign, pattern in _SIGNS:
            if pattern.search(line):
                found[sign] = line.strip()[:_LONGEST_LINE]
    return tuple(OutputFinding(sign, line) for sign, line in found.items())
