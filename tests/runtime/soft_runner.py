"""A runner whose file system fails now and then: as `python -m slurm_colloc.runtime`, with less
patience between two tries. With SOFT_PAUSES it pauses and parks members at random.

soft_runner.py PACK LOCAL_ID
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from slurm_colloc.runtime import guarded_steps, runner
from slurm_colloc.runtime.attempt import run_attempt

if __name__ == "__main__":
    for module in (guarded_steps, runner):
        vars(module).update(RETRY_S=0.02, STARTING_RETRY_S=0.02)
    if seed := os.environ.get("SOFT_PAUSES"):
        from tests.random_pauses import pause_at_random

        pause_at_random(int(seed))
    sys.exit(run_attempt(sys.argv[1], sys.argv[2], None))
