"""The help of what submits: `csub submit --help`, `csub pack --help`, `csub probe --help`."""

from __future__ import annotations

import textwrap

from slurm_colloc.slurm.options import OWN_OPTIONS, SBATCH_OPTIONS, Argument, Concern

_HEAD = """\
Usage: csub [OPTIONS] SCRIPT [ARGUMENTS]         as with sbatch
       csub pack [OPTIONS] SCRIPT...             scripts that share a GPU
       csub sweep [OPTIONS] SCRIPT --lr 0.1,0.2  one job for each combination of values
       csub batch [OPTIONS] TABLE                one job for each row of a table
       csub retry ID [OPTIONS]                   again what did not complete
       csub probe [OPTIONS] SCRIPT [ARGUMENTS]   alone, until its usage profile is known
       csub plan [OPTIONS] SCRIPT [ARGUMENTS]    show what would share, and why; submit nothing
       csub queue, show, logs, why, cancel, shell, ...: see csub --help

csub takes the options of sbatch (22.05 to 26.05), #SBATCH lines and SBATCH_* variables. Jobs of one
call share a GPU: the tasks of --array, the scripts of pack.
"""

_SECTIONS = (
    (Concern.MEMBER, "These apply to each member separately:"),
    (Concern.SHAPE, "Jobs with one GPU, one node and one task can share; others run alone:"),
    (Concern.GROUP, "Jobs share a pack only if these are equal:"),
    (Concern.ALONE, "A job with one of these runs alone:"),
    (Concern.CALL, "These apply to this call:"),
    (Concern.REFUSED, "Refused:"),
)


def render_submit_help() -> str:
    """The text of `csub submit --help`."""
    lines = [_HEAD, "csub's own options (also on #CSUB lines):"]
    for option in OWN_OPTIONS:
        value = "" if option.argument is Argument.NONE else "=VALUE"
        lines += textwrap.wrap(
            f"{f'--{option.name}{value}':<22} {option.reason}", 98,
            initial_indent="  ", subsequent_indent=" " * 25, break_on_hyphens=False,
        )  # fmt: skip
    for concern, title in _SECTIONS:
        names = [
            f"--{option.name}"
            for option in SBATCH_OPTIONS
            if option.concern is concern and option.alias_of is None
        ]
        lines += ["", title]
        lines += textwrap.wrap(
            " ".join(names), 92, initial_indent="  ", subsequent_indent="  ",
            break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


PACK_HELP = """\
Usage: csub pack [OPTIONS] SCRIPT...

Submits several scripts as one submission whose jobs share GPUs. A script with arguments is one
quoted word:

  csub pack --gres=gpu:1 a.sh 'b.sh --lr 0.1' 'b.sh --lr 0.2'

  --degree=N          how many run on a GPU at the same time; by default this is measured
  --pack-size=N       how many members a pack has; those beyond the degree wait for a place
  --gpus-per-pack=N   spread them over N GPUs of one Slurm job; node means all GPUs of a node
  --nodes-per-pack=N  spread them over the GPUs of N nodes
  --gpu-mem=10G       the GPU memory that each needs, so that different scripts fit together
  --share=MODE        auto, mps, timeslice or exclusive; mps! allows no fallback
  --dry-run           print which would share, and submit nothing; csub plan pack says why

All other options are those of csub submit. They apply to each script unless its #SBATCH and #CSUB
lines say otherwise. To submit one script many times, use csub sweep: csub sweep --help.
"""

PROBE_HELP = """\
Usage: csub probe [OPTIONS] SCRIPT [ARGUMENTS]

Runs a job alone on one GPU until its usage profile is known, for some minutes at most. The profile
tells csub which jobs can share a GPU with it, and how much slower than alone it runs. The job is
then ended and its work is lost.

  --wait          wait for it, and print the usage profile; exit status 1 if there is none
  --array=N       probe task N; its profile is used for the other tasks as relatives

Then: csub profile show NAME, csub plan SCRIPT. All other options are those of csub submit.
"""

BATCH_HELP = """\
Usage: csub batch [OPTIONS] TABLE

Submits a job for each row of TABLE, as one submission whose jobs share GPUs.

  *.csv, *.tsv             a header, and a row for each job
  *.jsonl                  one JSON object per line
  *.yaml, *.toml, *.json   a list of rows; values outside the list apply to all rows
  any other name, or -     a list of commands, one per line (as for GNU parallel and disBatch)

  columns script, arguments  what runs; or
  column command             a command for a shell
  columns named like an option (time, mem, gres, job-name, gpu-mem, ...) set that option
  any other column           a parameter: {lr} in arguments, command, script, job-name, output
                             or error stands for its value

  --resume    submit only the rows that are neither done nor under way
  --watch     keep running, and submit rows that are added later; Ctrl-C stops csub, not the jobs
  --dry-run   print the jobs, and submit nothing

Options before TABLE apply to each row that does not set them: csub submit --help.
Tables for radT (Experiment, Workload, File, ...) are accepted as they are: rows of one workload
share a GPU and start at the same moment; csub writes their status to TABLE.status.csv.
"""
