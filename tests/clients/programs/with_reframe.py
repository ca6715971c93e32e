"""ReFrame: a job array on one GPU, a check that fails, one that it cancels after some waiting."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

CONFIG = """
site_configuration = {
    "systems": [{
        "name": "here", "hostnames": [".*"],
        "partitions": [{
            "name": "gpu", "scheduler": "squeue", "launcher": "local", "environs": ["builtin"],
            "access": ["--gres=gpu:1", "--mem=50M"],
        }],
    }],
    "environments": [{"name": "builtin"}],
}
"""
CHECKS = """
import reframe as rfm
import reframe.utility.sanity as sn


class Check(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    time_limit = "5m"
    executable = "echo"
    executable_opts = ["task", "${SLURM_ARRAY_TASK_ID:-none}"]


@rfm.simple_test
class Tasks(Check):
    @run_before("run")
    def ask(self):
        self.job.options = ["--array=0-3"]

    @sanity_function
    def look(self):
        found = sn.extractall(r"task (\\d)", self.stdout, 1, int)
        return sn.assert_eq(sn.sorted(found), [0, 1, 2, 3])


@rfm.simple_test
class Fails(Check):
    executable = "false"

    @sanity_function
    def look(self):
        return sn.assert_found("nothing", self.stdout)


@rfm.simple_test
class Waits(Check):
    max_pending_time = "3s"

    @run_before("run")
    def ask(self):
        self.job.options = ["--begin=now+1hour"]

    @sanity_function
    def look(self):
        return True
"""

if __name__ == "__main__":
    Path("conf.py").write_text(CONFIG)
    Path("checks.py").write_text(CHECKS)
    ended = subprocess.run(
        ["reframe", "-C", "conf.py", "-c", "checks.py", "--prefix=.", "--report-file=report.json",
         "--exec-policy=async", "-r"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    Path("log").write_text(ended.stdout + ended.stderr)
    report = json.loads(Path("report.json").read_text())
    cases = [case for run in report["runs"] for case in run["testcases"]]
    answer = {case["name"]: [case["result"], case["fail_phase"]] for case in cases}
    Path("answer.json").write_text(json.dumps(answer))
