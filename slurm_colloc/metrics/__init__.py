"""Figures from measured series: rates, slowdown, STP, shares, energy. Pure: no files, no clock."""
