"""AiiDA's plug-in for Slurm: its script has --get-user-env, and it reads squeue's table."""

from __future__ import annotations

import json
import time
from pathlib import Path

from aiida.common.datastructures import CodeRunMode
from aiida.schedulers.datastructures import JobTemplate, JobTemplateCodeInfo
from aiida.schedulers.plugins.slurm import SlurmScheduler
from aiida.transports.plugins.local import LocalTransport

HEADER = "#SBATCH --gres=gpu:1 --array=0-3\n#CSUB --share=timeslice --degree=4"
BODY = """
until [ -e go ]; do sleep 0.1; done
echo "$USER" > "user.$SLURM_ARRAY_TASK_ID"
[ "$SLURM_ARRAY_TASK_ID" != 2 ]
"""


def write_script(scheduler: SlurmScheduler) -> str:
    template = JobTemplate()
    template.job_name = "sweep"
    template.import_sys_environment = True
    template.sched_output_path = "out.%a"
    template.sched_error_path = "err.%a"
    template.max_wallclock_seconds = 300
    template.max_memory_kb = 50 * 1024
    template.custom_scheduler_commands = HEADER
    template.job_resource = scheduler.create_job_resource(
        num_machines=1, num_mpiprocs_per_machine=1
    )
    code = JobTemplateCodeInfo()
    code.cmdline_params = ["/bin/true"]
    template.codes_info = [code]
    template.codes_run_mode = CodeRunMode.SERIAL
    template.shebang = "#!/bin/bash"
    template.append_text = BODY
    Path("sweep.sh").write_text(scheduler.get_submit_script(template))
    return "sweep.sh"


if __name__ == "__main__":
    scheduler = SlurmScheduler()
    # Its commands run in a login shell, which sets PATH anew.
    with LocalTransport() as transport:
        scheduler.set_transport(transport)
        submitted = scheduler.submit_job(str(Path.cwd()), write_script(scheduler))
        assert isinstance(submitted, str), submitted

        def list_states() -> dict[str, str]:
            found = scheduler.get_jobs(jobs=[submitted], as_dict=True)
            return {job.partition("_")[2]: info.job_state.value for job, info in found.items()}

        while list_states() != dict.fromkeys("0123", "running"):
            time.sleep(0.3)
        killed = scheduler.kill_job(f"{submitted}_3")
        while "3" in list_states():
            time.sleep(0.3)
        left = list_states()
        Path("go").touch()
        while list_states():
            time.sleep(0.3)
    users = {Path(f"user.{number}").read_text() for number in range(3)}
    Path("answer.json").write_text(json.dumps([killed, left, len(users), Path("user.3").exists()]))
