"""Figures of members for experiment trackers, MLflow and W&B; loaded only by `csub track`."""
