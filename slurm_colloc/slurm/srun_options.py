"""The options that srun has and sbatch has not, and all that srun takes."""

from __future__ import annotations

from slurm_colloc.slurm.option_definition import Argument, Concern, Option
from slurm_colloc.slurm.option_table import SBATCH_OPTIONS

_NO = Argument.NONE
_REQ = Argument.REQUIRED
_OPT = Argument.OPTIONAL


def _step(name: str, short: str | None, argument: Argument, *, since: str | None = None) -> Option:
    return Option(name, short, argument, Concern.STEP, srun=True, since=since)


SRUN_ONLY: tuple[Option, ...] = (
    _step("accel-bind", None, _REQ),
    _step("async", None, _NO, since="26.05"),
    _step("bcast", None, _OPT),
    _step("bcast-exclude", None, _REQ),
    _step("compress", None, _OPT),
    _step("cpu-bind", None, _REQ),
    Option("cpu_bind", None, _REQ, Concern.STEP, srun=True, alias_of="cpu-bind"),
    _step("debugger-test", None, _NO),
    _step("disable-status", "X", _NO),
    _step("epilog", None, _REQ),
    _step("exact", None, _NO),
    _step("external-launcher", None, _OPT, since="23.11"),
    _step("het-group", None, _REQ),
    Option("pack-group", None, _REQ, Concern.STEP, srun=True, alias_of="het-group"),
    _step("ignore-signals", None, _REQ, since="26.05"),
    _step("immediate", "I", _OPT),
    _step("interactive", None, _NO),
    _step("jobid", None, _REQ),
    _step("kill-on-bad-exit", "K", _OPT),
    _step("label", "l", _NO),
    _step("mpi", None, _REQ),
    _step("msg-timeout", None, _REQ),
    _step("multi-prog", None, _NO),
    _step("no-allocate", "Z", _NO),
    _step("overlap", None, _OPT),
    _step("preserve-env", "E", _NO),
    _step("prolog", None, _REQ),
    _step("pty", None, _OPT),
    _step("quit-on-interrupt", None, _NO),
    _step("relative", "r", _REQ),
    _step("send-libs", None, _OPT),
    _step("slurmd-debug", None, _REQ),
    _step("task-epilog", None, _REQ),
    _step("task-prolog", None, _REQ),
    _step("threads", "T", _REQ),
    _step("treewidth", None, _REQ, since="23.11"),
    _step("unbuffered", "u", _NO),
    # To sbatch --wait is a flag, to srun a number of seconds.
    _step("wait", "W", _REQ),
    _step("wait-for-children", None, _NO, since="25.05"),
    _step("whole", None, _NO),
)

SRUN_OPTIONS: tuple[Option, ...] = (
    *(option for option in SBATCH_OPTIONS if option.srun),
    *SRUN_ONLY,
)
"""All that srun takes."""
