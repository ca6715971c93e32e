"""Measures a pack while it runs. Who: the user; where: the pack's node, started by its runner.

python -IB -m slurm_colloc.monitor PACK ATTEMPT PROGRESS_ROOT [--interval SECONDS] [--activity dcgm]

It ends at a SIGTERM of its parent, when its parent is gone, and when a newer attempt has begun.
SIGTERMs of others make it write what it has. It is nice to its neighbours, and keeps off the CPUs
that members are bound to if the job has others.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.process_name import name_process

if __name__ == "__main__":
    # Before all that takes its time to load.
    name_process("csub-monitor")

from slurm_colloc.monitor.gpu_reading import Capabilities
from slurm_colloc.monitor.member_progress import Following, Members
from slurm_colloc.monitor.nvml_reading import GpuWatch, NvmlReader, choose_by_environment
from slurm_colloc.monitor.parquet_pieces import SampleFiles, load_parquet
from slurm_colloc.monitor.sampling_loop import SIGNALS, Gaps, Loop, MonitorRecord
from slurm_colloc.store.atomic_files import make_directory
from slurm_colloc.store.progress_counters import read_member_progress
from slurm_colloc.store.report_files import report_directory

if TYPE_CHECKING:
    from slurm_colloc.monitor.dcgm_activity import DcgmActivity

SHORTEST_S = 0.2
LONGEST_S = 60.0
_NICE = 10


def main(argv: Sequence[str]) -> int:
    """Measure until the pack is over."""
    pack, attempt, progress_root = argv[0], int(argv[1]), argv[2]
    options = dict(zip(argv[3::2], argv[4::2], strict=False))
    interval_s = float(options.get("--interval", 1.0))
    interval_s = min(LONGEST_S, max(SHORTEST_S, interval_s))
    parent = os.getppid()
    # Before any thread is made, so that all of them inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.nice(_NICE)
    os.umask(0o077)
    started_at = time.time()
    capabilities = Capabilities()
    # The driver may take seconds to wake; meanwhile the rest is loaded.
    watch = GpuWatch(NvmlReader(choose_by_environment(os.environ), capabilities))
    make_directory(report_directory(pack))
    following = Following(read_member_progress)
    record = MonitorRecord(
        pack=pack,
        attempt=attempt,
        node=os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0],
        interval_s=interval_s,
        started_at=started_at,
        gaps=Gaps(),
        capabilities=capabilities,
        list_unmatched=following.list_unmatched,
    )
    record.take_over()
    parquet = load_parquet()
    loop = Loop(
        pack=pack,
        attempt=attempt,
        parent=parent,
        tick_s=interval_s,
        watch=watch,
        members=Members(pack, attempt, progress_root, following.read),
        gpu_files=SampleFiles(pack, "gpu", parquet),
        member_files=SampleFiles(pack, "members", parquet),
        record=record,
        activity=_open_activity(options.get("--activity", ""), capabilities),
        progress_root=progress_root,
    )
    loop.run()
    loop.end()
    return 0


def _open_activity(source: str, capabilities: Capabilities) -> DcgmActivity | None:
    if source != "dcgm":
        return None
    # It loads what starts programs, which no other monitor does.
    from slurm_colloc.monitor.dcgm_activity import DcgmActivity

    return DcgmActivity(capabilities)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
