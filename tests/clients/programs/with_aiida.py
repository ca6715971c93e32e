"""AiiDA's plug-in for Slurm: its script has --get-user-env, and it reads squeue's table."""

from __future__ import annotations

import json
import time
from pathlib import Path

from aiida.common.datastructures import CodeRunMode
from aiida.schedulers.datastructures import JobTemplate, JobTemplateCodeInfo
from aiida.schedulers.plugins.slurm import SlurmScheduler
from aiida.transports.plugins.local import LocalTransport

# One script for all: csub takes those that differ in numbers alone for jobs of one kind.
BODY = """
[ "$SLURM_JOB_NAME" != task3 ] || sleep 300
until [ -e go ]; do sleep 0.1; done
echo "$USER" > "$SLURM_JOB_NAME.user"
[ "$SLURM_JOB_NAME" != task2 ]
"""
NAMES = ("task0", "task1", "task2", "task3")
"""The third fails, the last is cancelled."""


def write_script(scheduler: SlurmScheduler, name: str) -> str:
    template = JobTemplate()
    template.job_name = name
    template.import_sys_environment = True
    template.sched_output_path = f"{name}.out"
    template.sched_error_path = f"{name}.err"
    template.max_wallclock_seconds = 300
    template.max_memory_kb = 50 * 1024
    template.custom_scheduler_commands = "#SBATCH --gres=gpu:1\n#CSUB --join --share=timeslice"
    template.job_resource = scheduler.create_job_resource(
        num_machines=1, num_mpiprocs_per_machine=1
    )
    code = JobTemplateCodeInfo()
    code.cmdline_params = ["/bin/true"]
    template.codes_info = [code]
    template.codes_run_mode = CodeRunMode.SERIAL
    template.shebang = "#!/bin/bash"
    template.append_text = BODY
    Path(f"{name}.sh").write_text(scheduler.get_submit_script(template))
    return f"{name}.sh"


if __name__ == "__main__":
    scheduler = SlurmScheduler()
    # Its commands run in a login shell, which sets PATH anew.
    with LocalTransport() as transport:
        scheduler.set_transport(transport)

        def list_states(ids: dict[str, str]) -> dict[str, str]:
            found = scheduler.get_jobs(jobs=list(ids.values()), as_dict=True)
            return {
                name: found[job_id].job_state.value
                for name, job_id in ids.items()
                if job_id in found
            }

        ids: dict[str, str] = {}
        for name in NAMES:
            answered = scheduler.submit_job(str(Path.cwd()), write_script(scheduler, name))
            assert isinstance(answered, str), answered
            ids[name] = answered
            while list_states({name: answered}) != {name: "running"}:
                time.sleep(0.3)
        killed = scheduler.kill_job(ids["task3"])
        while "task3" in list_states(ids):
            time.sleep(0.3)
        states = list_states(ids)
        Path("go").touch()
        while list_states(ids):
            time.sleep(0.3)
    users = {Path(f"{name}.user").read_text() for name in NAMES[:3]}
    Path("answer.json").write_text(json.dumps([killed, states, len(users), len(set(ids.values()))]))
