"""What NVML says about the node's GPUs, never waited for without a limit."""
