"""`csub sweep [options] SCRIPT --lr 0.1,0.2 --seed 0:5`: a job for each combination."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from slurm_colloc.cli.session import say
from slurm_colloc.cli.submit.refuse_options import refuse_options_of_others
from slurm_colloc.cli.submit.submit_command import run_call
from slurm_colloc.model.parameters import format_parameters
from slurm_colloc.report.lines.member_groups import render_lines
from slurm_colloc.settings import read_given_environment
from slurm_colloc.submission.jobs.call_jobs import Call
from slurm_colloc.submission.jobs.sweep_jobs import collect_sweep

_SHOWN_MOST = 200
"""Jobs that --dry-run lists, before it counts the rest."""


def run_sweep(argv: Sequence[str]) -> int:
    """Submit a sweep; the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        say(HELP)
        return 0
    directory = os.getcwd()  # noqa: PTH109  # a str, as the records want it
    call = collect_sweep(argv, read_given_environment(), directory)
    refuse_options_of_others(call.options, "sweep")
    if call.options.flag("dry-run"):
        say(render_jobs(call))
    return run_call(call, directory, joins=False)


def render_jobs(call: Call) -> str:
    """The jobs of a call, a line each, with what tells them apart."""
    rows = [
        (
            str(candidate.job.number),
            candidate.job.name,
            format_parameters(candidate.job.parameters),
            shlex.join([candidate.job.script_name, *candidate.job.arguments]),
        )
        for candidate in call.candidates[:_SHOWN_MOST]
    ]
    more = len(call.candidates) - len(rows)
    text = render_lines(("JOB", "NAME", "PARAMETERS", "COMMAND"), rows)
    return f"{text}and {more} more jobs\n" if more else text


HELP = """\
Usage: csub sweep [OPTIONS] SCRIPT [ARGUMENTS]
       csub sweep [OPTIONS] --from=FILE SCRIPT [ARGUMENTS]
       csub sweep [OPTIONS] --from=FILE --wrap='python train.py --lr {lr}'

Submits SCRIPT once for each combination of values, as one submission whose jobs share GPUs.

  --lr 0.1,0.2  --lr=0.1,0.2  lr=0.1,0.2   two values of the parameter lr
  --seed 0:5                               0 1 2 3 4; 0:10:2 takes every second
  '[64,32],[8]'                            commas in brackets and quotes do not separate
  --                                       after this, no argument is a list of values
  {lr}                                     the value, in arguments, --wrap, -J, -o and -e;
                                           {{lr}} stands for {lr} itself

  --from=FILE    values from a file: *.csv with a row for each job; *.yaml, *.toml or *.json
                 with a list of rows, or with names and lists, for all combinations of them;
                 *.jsonl. If no argument has a placeholder, each name becomes an option.
  --zip          combine the first values, then the second ones, ... instead of all combinations
  --sample=N     N random combinations, the same ones each time; N:SEED chooses others
  --dry-run      print the jobs, and submit nothing

All other options are those of csub submit, for each job: csub submit --help.
A job finds its parameters in SLURM_COLLOC_PARAM_LR and so on. queue, history, report and the other
commands show them, and take --where lr=0.1.
"""
