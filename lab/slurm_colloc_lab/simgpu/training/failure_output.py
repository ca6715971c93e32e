"""What a PyTorch program prints when CUDA fails; pure.

Word for word as PyTorch 2.11 printed it on an H200, but for the lines of the traceback.
"""

from __future__ import annotations

from slurm_colloc_lab.simgpu.training.cuda_context import OutOfGpuMemory, Shortage
from slurm_colloc_lab.simgpu.training.cuda_errors import ASSERT, NO_DEVICE, CudaError

_REFERENCE = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
_ASSERTION = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:111: operator(): block: [0,0,0], thread: "
    '[0,0,0] Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.\n'
)
_HINTS = """\
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace \
below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""


def render_failure(error: CudaError | OutOfGpuMemory) -> str:
    """All that is printed for the error."""
    head = "Traceback (most recent call last):\n"
    if isinstance(error, OutOfGpuMemory):
        return f"{head}torch.OutOfMemoryError: {render_shortage(error.shortage)}\n"
    if error.code == NO_DEVICE:
        return f"{head}RuntimeError: No CUDA GPUs are available\n"
    first = _ASSERTION if error.code == ASSERT else ""
    search = f"Search for `{error.name}' in {_REFERENCE} for more information.\n"
    return f"{first}{head}torch.AcceleratorError: {error}\n{search}{_HINTS}"


def render_shortage(shortage: Shortage) -> str:
    """PyTorch's sentences about gpu_memory that ran out, under MPS as without it."""
    others = "".join(
        f"Process {pid} has {render_size(held_mb)} memory in use. "
        for pid, held_mb in shortage.others
    )
    return (
        f"CUDA out of memory. Tried to allocate {shortage.block_mb:.2f} MiB. GPU 0 has a total "
        f"capacity of {render_size(shortage.total_mb)} of which {render_size(shortage.free_mb)} "
        f"is free. {others}Including non-PyTorch memory, this process has "
        f"{render_size(shortage.held_mb)} memory in use. Of the allocated memory "
        f"{render_size(shortage.held_mb - shortage.context_mb)} is allocated by PyTorch, and "
        "0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/"
        "stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def render_size(size_mb: float) -> str:
    """A size as PyTorch writes it."""
    if size_mb == 0:
        return "0 bytes"
    return f"{size_mb:.2f} MiB" if size_mb < 1024 else f"{size_mb / 1024:.2f} GiB"
