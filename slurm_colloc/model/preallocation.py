"""Programs that take GPU memory as they start, before they need any: JAX and TensorFlow."""

from __future__ import annotations

JAX_GROWS = "XLA_PYTHON_CLIENT_PREALLOCATE=false"
TENSORFLOW_GROWS = "TF_FORCE_GPU_ALLOW_GROWTH=true"
"""What keeps them from that."""

PART_AT_ONCE = 0.7
"""What takes so much of what it may take, at once, takes it by that: JAX asks for 75 %."""


def describe_taken_at_once(taken_mb: float | None, may_take_mb: int | None) -> str:
    """That a process took most of what it may take before it did anything; empty where not.

    Args:
        taken_mb: GPU memory that it took in its first seconds on the GPU, before any step, without
            PyTorch's allocator; None where that is not known.
        may_take_mb: What it may take at most; None where that is not known.
    """
    if taken_mb is None or may_take_mb is None or taken_mb < PART_AT_ONCE * may_take_mb:
        return ""
    return (
        f"it took {taken_mb:.0f} of {may_take_mb} MB of GPU memory at once, before any step, as "
        f"JAX and TensorFlow do: with export {JAX_GROWS} (JAX) or export {TENSORFLOW_GROWS} "
        "(TensorFlow) in its script it takes what it needs"
    )
