"""A process that uses a simulated GPU as a PyTorch training uses a real one."""
