"""Campaigns on a GPU: how many trainings share it, and csub against the rules of others."""
