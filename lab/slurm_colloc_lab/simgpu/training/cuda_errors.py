"""CUDA's errors as a PyTorch program meets them.

Numbers, names and texts are those of the CUDA runtime API (CUDA 13.0, `cudaError_t`,
`cudaGetErrorString`).
"""

from __future__ import annotations

NO_DEVICE = 100
DEVICES_UNAVAILABLE = 46
OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700
ASSERT = 710
UNKNOWN = 999
MPS_CONNECTION_FAILED = 805
MPS_RPC_FAILURE = 806
MPS_SERVER_NOT_READY = 807
MPS_MAX_CLIENTS_REACHED = 808
MPS_MAX_CONNECTIONS_REACHED = 809
MPS_CLIENT_TERMINATED = 810

NAMES = {
    OUT_OF_MEMORY: "cudaErrorMemoryAllocation",
    DEVICES_UNAVAILABLE: "cudaErrorDevicesUnavailable",
    NO_DEVICE: "cudaErrorNoDevice",
    ILLEGAL_ADDRESS: "cudaErrorIllegalAddress",
    ASSERT: "cudaErrorAssert",
    UNKNOWN: "cudaErrorUnknown",
    MPS_CONNECTION_FAILED: "cudaErrorMpsConnectionFailed",
    MPS_RPC_FAILURE: "cudaErrorMpsRpcFailure",
    MPS_SERVER_NOT_READY: "cudaErrorMpsServerNotReady",
    MPS_MAX_CLIENTS_REACHED: "cudaErrorMpsMaxClientsReached",
    MPS_MAX_CONNECTIONS_REACHED: "cudaErrorMpsMaxConnectionsReached",
    MPS_CLIENT_TERMINATED: "cudaErrorMpsClientTerminated",
}

TEXTS = {
    OUT_OF_MEMORY: "out of memory",
    DEVICES_UNAVAILABLE: "CUDA-capable device(s) is/are busy or unavailable",
    NO_DEVICE: "no CUDA-capable device is detected",
    ILLEGAL_ADDRESS: "an illegal memory access was encountered",
    ASSERT: "device-side assert triggered",
    UNKNOWN: "unknown error",
    MPS_CONNECTION_FAILED: "MPS client failed to connect to the MPS control daemon or the MPS "
    "server",
    MPS_RPC_FAILURE: "the remote procedural call between the MPS server and the MPS client failed",
    MPS_SERVER_NOT_READY: "MPS server is not ready to accept new MPS client requests",
    MPS_MAX_CLIENTS_REACHED: "the hardware resources required to create MPS client have been "
    "exhausted",
    MPS_MAX_CONNECTIONS_REACHED: "the hardware resources required to support device connections "
    "have been exhausted",
    MPS_CLIENT_TERMINATED: "the MPS client has been terminated by the server",
}


class CudaError(Exception):
    """A CUDA call failed.

    Args:
        code: Its `cudaError_t`.
        name: The number's name, where it is not in `NAMES`.
    """

    def __init__(self, code: int, name: str = "") -> None:
        self.code = code
        self.name = name or NAMES.get(code, "cudaErrorUnknown")
        self.text = TEXTS.get(code, "unknown error")
        super().__init__(f"CUDA error: {self.text}")
