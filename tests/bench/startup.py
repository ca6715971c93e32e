"""Print how long `csub` takes from start to end, for commands that only answer.

Wall time of the whole process, in milliseconds: the median and the best of several runs, after one
run that fills the file cache. A bare interpreter is measured beside it, for what Python itself
costs on this machine. Nothing here passes or fails.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 20
CSUB = Path(sys.executable).with_name("csub")
COMMANDS: dict[str, list[str]] = {
    "bare interpreter": [sys.executable, "-c", "pass"],
    "csub --version": [str(CSUB), "--version"],
    "csub --help": [str(CSUB), "--help"],
}


def measure_ms(argv: list[str]) -> float:
    """Run a command once and return its wall time in milliseconds."""
    started = time.perf_counter()
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000


def main() -> None:
    """Measure every command and print one line for each."""
    print(f"{'command':<20}{'median ms':>12}{'best ms':>12}   ({RUNS} runs)")
    for name, argv in COMMANDS.items():
        measure_ms(argv)
        times_ms = [measure_ms(argv) for _ in range(RUNS)]
        print(f"{name:<20}{statistics.median(times_ms):>12.1f}{min(times_ms):>12.1f}")


if __name__ == "__main__":
    main()
