"""What NVML says of the node's GPUs, never waited for without a limit."""
