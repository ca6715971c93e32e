"""What the end of a member's output says, in the words of real programs."""

from __future__ import annotations

import pytest

from slurm_colloc.runtime.blame import MPS_SIGNS, OutputFinding, Sign, find_signs
from slurm_colloc_lab.simgpu.training import cuda_errors
from slurm_colloc_lab.simgpu.training.failure_output import render_failure

# PyTorch 2.11 on an H200 with driver 580.159.04, unless it says otherwise.
LINES = [
    (
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a "
        "total capacity of 139.80 GiB of which 512.00 MiB is free. Process 912 has 66.00 MiB "
        "memory in use."),
        Sign.OUT_OF_GPU_MEMORY,
    ),
    ("RuntimeError: CUDA error: out of memory", Sign.OUT_OF_GPU_MEMORY),
    # A limit that leaves no room for cuBLAS.
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        Sign.OUT_OF_GPU_MEMORY,
    ),
    # XLA.
    (
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
        "allocate 8589934592 bytes."),
        Sign.OUT_OF_GPU_MEMORY,
    ),
    # cupy.
    ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8 bytes", Sign.OUT_OF_GPU_MEMORY),
    (
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        Sign.FAULT,
    ),
    ("CUDA error: misaligned address", Sign.FAULT),
    ("CUDA error: unspecified launch failure", Sign.FAULT),
    ("pycuda._driver.LogicError: cuMemcpyDtoH failed: CUDA_ERROR_ILLEGAL_ADDRESS", Sign.FAULT),
    ("torch.AcceleratorError: CUDA error: device-side assert triggered", Sign.ASSERT),
    (
        ("torch.AcceleratorError: CUDA error: the remote procedural call between the MPS server "
        "and the MPS client failed"),
        Sign.MPS_GONE,
    ),
    (
        "torch.AcceleratorError: CUDA error: the MPS client has been terminated by the server",
        Sign.MPS_GONE,
    ),
    (
        ("RuntimeError: CUDA error: MPS client failed to connect to the MPS control daemon or the "
        "MPS server"),
        Sign.MPS_GONE,
    ),
    (
        "RuntimeError: CUDA error: MPS server is not ready to accept new MPS client requests",
        Sign.MPS_REFUSED,
    ),
    (
        ("RuntimeError: CUDA error: the hardware resources required to create MPS client have been "
        "exhausted"),
        Sign.MPS_FULL,
    ),
    ("cuCtxCreate failed: CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", Sign.MPS_FULL),
    ("RuntimeError: CUDA error: unknown error", Sign.NO_DEVICE),
    ("RuntimeError: No CUDA GPUs are available", Sign.NO_DEVICE),
    ("cudaGetDevice() failed: no CUDA-capable device is detected", Sign.NO_DEVICE),
    ("NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.", Sign.NO_DEVICE),
]  # fmt: skip


@pytest.mark.parametrize(("line", "sign"), LINES)
def test_a_line_that_says_why(line: str, sign: Sign) -> None:
    assert find_signs(f"epoch 1 loss 0.3\n  {line}  \nsrun: error\n") == (
        OutputFinding(sign, line),
    )


@pytest.mark.parametrize(
    "line",
    [
        "epoch 3 of 90: loss 0.31, 15,310 images/s, 10.2 GiB of GPU memory",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        "Killed",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.",
        "MemoryError: Unable to allocate 8.00 GiB for an array",
        "OSError: [Errno 28] No space left on device",
        "",
    ],
)
def test_a_line_that_has_nothing_to_do_with_the_gpu(line: str) -> None:
    assert find_signs(f"{line}\n") == ()


@pytest.mark.parametrize(
    ("code", "sign"),
    [
        (cuda_errors.OUT_OF_MEMORY, Sign.OUT_OF_GPU_MEMORY),
        (cuda_errors.ILLEGAL_ADDRESS, Sign.FAULT),
        (cuda_errors.ASSERT, Sign.ASSERT),
        (cuda_errors.MPS_CONNECTION_FAILED, Sign.MPS_GONE),
        (cuda_errors.MPS_RPC_FAILURE, Sign.MPS_GONE),
        (cuda_errors.MPS_CLIENT_TERMINATED, Sign.MPS_GONE),
        (cuda_errors.MPS_SERVER_NOT_READY, Sign.MPS_REFUSED),
        (cuda_errors.MPS_MAX_CLIENTS_REACHED, Sign.MPS_FULL),
        (cuda_errors.MPS_MAX_CONNECTIONS_REACHED, Sign.MPS_FULL),
    ],
)
def test_each_of_cuda_s_errors_by_its_text_and_by_its_name(code: int, sign: Sign) -> None:
    error = cuda_errors.CudaError(code)
    [finding] = find_signs(render_failure(error))
    # The line with the error, not PyTorch's hint below it.
    assert finding == OutputFinding(sign, f"torch.AcceleratorError: CUDA error: {error.text}")
    [finding] = find_signs(f"myprogram: {error.name} at solver.cu:31")
    assert finding.sign is sign


def test_of_each_sign_the_last_line_counts() -> None:
    output = (
        "CUDA out of memory. Tried to allocate 2 GiB, halving the batch\n"
        "CUDA error: an illegal memory access was encountered\n"
        "CUDA out of memory. Tried to allocate 1 GiB\n"
    )
    assert find_signs(output) == (
        OutputFinding(Sign.OUT_OF_GPU_MEMORY, "CUDA out of memory. Tried to allocate 1 GiB"),
        OutputFinding(Sign.FAULT, "CUDA error: an illegal memory access was encountered"),
    )


def test_what_a_program_has_long_outlived_does_not_count() -> None:
    search = "CUDA out of memory at batch 512, trying 256\n"
    training = "".join(f"step {step}\n" for step in range(250))
    assert find_signs(search + training) == ()
    assert find_signs(training + search) != ()


def test_a_line_without_end_is_cut() -> None:
    [finding] = find_signs("CUDA out of memory " + "x" * 10_000)
    assert len(finding.line) == 300


def test_only_clients_of_mps_meet_its_errors() -> None:
    own = {Sign.OUT_OF_GPU_MEMORY, Sign.FAULT, Sign.ASSERT, Sign.NO_DEVICE}
    assert own == set(Sign) - MPS_SIGNS
