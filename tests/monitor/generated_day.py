"""A day of samples, written as fast as it goes; prints what it cost.

python -m tests.monitor.generated_day PACK HOURS MEMBERS
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

from slurm_colloc.monitor.parquet_pieces import SampleFiles, load_parquet
from slurm_colloc.monitor.sampling_loop import read_status_mb
from slurm_colloc.store.report_files import report_directory

TICKS_PER_PIECE = 10
BEGIN = 1_750_000_000.0


def main(argv: list[str]) -> None:
    pack, hours, members = argv[0], float(argv[1]), int(argv[2])
    Path(report_directory(pack)).mkdir(parents=True)
    parquet = load_parquet()
    gpu, rows = SampleFiles(pack, "gpu", parquet), SampleFiles(pack, "members", parquet)
    chance = random.Random(1)
    noise = [chance.random() for _ in range(1009)]
    ticks = int(hours * 3600)
    slowest_s = 0.0
    begin = time.process_time()
    for tick in range(ticks):
        at = BEGIN + tick + noise[tick % 1009] / 1000
        share = noise[tick % 997]
        gpu.add(
            {
                "at": at,
                "attempt": 1,
                "uuid": "GPU-0",
                "sm_active": share,
                "utilization": 1.0,
                "dram_active": share / 3,
                "power_w": 300 + 99 * share,
                "energy_j": 400.0 * tick,
                "gpu_memory_mb": 70_000.0,
                "temperature_c": 60,
                "sm_clock_mhz": 1980,
            }
        )
        for number in range(1, members + 1):
            drift = noise[(tick * 7 + number * 13) % 1009]
            steps = int(tick * (5 + number / 10))
            rows.add(
                {
                    "at": at,
                    "attempt": 1,
                    "member": number,
                    "start": 1,
                    "processes": 5,
                    "threads": 40,
                    "cpu_s": tick * 2.1 + drift,
                    "host_memory_mb": 4000 + drift,
                    "read_bytes": tick << 20,
                    "written_bytes": tick << 12,
                    "steps": steps,
                    "skipped": 0,
                    "samples": steps * 128,
                    "batches": steps,
                    "trainers": 1,
                    "wait_s": tick * 0.01 + drift,
                    "progress": "optimizer",
                    "first_step_at": BEGIN + 9,
                    "last_step_at": at - drift,
                    "gpu_memory_mb": 1000.0 + number if tick % 5 == 0 else None,
                }
            )
        if tick % TICKS_PER_PIECE == TICKS_PER_PIECE - 1:
            started = time.monotonic()
            gpu.write_piece()
            rows.write_piece()
            slowest_s = max(slowest_s, time.monotonic() - started)
    running_s = time.process_time() - begin
    rss_running_mb = read_status_mb("VmHWM")
    started = time.monotonic()
    gpu.close()
    rows.close()
    told = {
        "rows": ticks * members,
        "cpu_s": running_s,
        "slowest_piece_s": slowest_s,
        "close_s": time.monotonic() - started,
        "rss_running_mb": rss_running_mb,
        "rss_peak_mb": read_status_mb("VmHWM"),
        "own_memory_mb": read_status_mb("RssAnon"),
        "size_mb": sum(one.stat().st_size for one in Path(report_directory(pack)).iterdir()) / 1e6,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
