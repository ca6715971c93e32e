"""dask-jobqueue: two workers are jobs, work on tasks, and are scaled down."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dask.distributed import Client
from dask_jobqueue import SLURMCluster

if __name__ == "__main__":
    cluster = SLURMCluster(
        cores=1, processes=1, memory="300MB", walltime="00:05:00", python=sys.executable,
        job_extra_directives=["--gres=gpu:1"], death_timeout=120,
    )  # fmt: skip
    cluster.scale(jobs=2)
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=180)
        answer = client.gather(client.map(lambda number: number * number, range(5)))
    cluster.scale(jobs=0)
    cluster.close()
    Path("answer.json").write_text(json.dumps(answer))
