"""The tables that the calibration of the H200 comes from."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLES = [ROOT / "docs/benchmarks" / f"h200-calibration-{number}.csv" for number in (1, 2, 3)]
