"""Packs over several GPUs: how many one has, and how jobs are spread; not what one GPU holds."""
