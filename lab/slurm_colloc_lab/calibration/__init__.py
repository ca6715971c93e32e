"""Measuring how small trainings share one GPU: the rows that a slowdown model is fitted to."""
