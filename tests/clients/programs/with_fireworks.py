"""FireWorks' adapter for queues: it submits a filled template, and counts squeue's lines."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from fireworks.user_objects.queue_adapters.common_adapter import CommonAdapter

HEADER = "#SBATCH --array=0-3\n#CSUB --share=timeslice --degree=4"
BODY = """
touch "up.$SLURM_ARRAY_TASK_ID"
until [ -e go ]; do sleep 0.1; done
[ "$SLURM_ARRAY_TASK_ID" != 2 ] && touch "done.$SLURM_ARRAY_TASK_ID"
"""

if __name__ == "__main__":
    adapter = CommonAdapter(
        "SLURM", "gpus", nodes=1, ntasks=1, gres="gpu:1", mem="50M", walltime="00:05:00",
        job_name="sweep", launch_dir=str(Path.cwd()), rocket_launch=BODY, pre_rocket=HEADER,
    )  # fmt: skip
    Path("sweep.sh").write_text(adapter.get_script_str(str(Path.cwd())))
    job_id = adapter.submit_to_queue("sweep.sh")
    while len(list(Path().glob("up.*"))) < 4:
        time.sleep(0.1)
    counted = [adapter.get_njobs_in_queue()]
    # It has no way to cancel.
    subprocess.run(["scancel", f"{job_id}_3"], check=True)
    while adapter.get_njobs_in_queue() == counted[0]:
        time.sleep(0.3)
    counted.append(adapter.get_njobs_in_queue())
    Path("go").touch()
    while adapter.get_njobs_in_queue():
        time.sleep(0.3)
    done = sorted(path.name for path in Path().glob("done.*"))
    Path("answer.json").write_text(json.dumps([isinstance(job_id, int), counted, done]))
