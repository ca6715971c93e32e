"""Submit one script with submitit, as its own documentation does; runs in a fresh interpreter.

    python submitit_job.py FOLDER COUNT

Prints the milliseconds that importing and submitting took. COUNT above 1 makes a job array.
"""

import sys
import time

begun = time.perf_counter()
import submitit  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

imported = time.perf_counter()
folder, count = sys.argv[1], int(sys.argv[2])
executor = submitit.AutoExecutor(folder=folder, cluster="slurm")
executor.update_parameters(gpus_per_node=1, timeout_min=60)
function = submitit.helpers.CommandFunction(["bash", "x.sh"])
jobs = [executor.submit(function)] if count == 1 else executor.map_array(function, range(count))
submitted = time.perf_counter()
assert len({job.job_id for job in jobs}) == count
print((imported - begun) * 1000, (submitted - imported) * 1000)
