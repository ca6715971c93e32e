"""The help of what submits: `csub submit --help`, `csub pack --help`, `csub probe --help`."""

from __future__ import annotations

import textwrap

from slurm_colloc.slurm.options import OWN_OPTIONS, SBATCH_OPTIONS, Argument, Concern

_HEAD = """\
Usage: csub [OPTIONS] SCRIPT [ARGUMENTS]      as with sbatch
       csub pack [OPTIONS] SCRIPT...          scripts that share a GPU
       csub sweep [OPTIONS] SCRIPT --lr 0.1,0.2  a job for each combination of values
       csub batch [OPTIONS] TABLE                a job for each row of a table
       csub retry ID [OPTIONS]                   what did not complete, once more
       csub probe [OPTIONS] SCRIPT [ARGUMENTS]   alone, until its usage profile is known
       csub plan [OPTIONS] SCRIPT [ARGUMENTS]  what would share, and why; submits nothing
       csub queue, show, logs, why, cancel, shell, ... see csub --help

Takes the options of sbatch (22.05 to 26.05), its #SBATCH lines and SBATCH_* variables. Jobs of
one call share a GPU: the tasks of --array, the scripts of pack.
"""

_SECTIONS = (
    (Concern.MEMBER, "Done for each member by itself:"),
    (Concern.SHAPE, "Jobs with one GPU, one node and one task can share; others run alone:"),
    (Concern.GROUP, "Jobs share a pack only where these are equal:"),
    (Concern.ALONE, "A job with one of these runs alone:"),
    (Concern.CALL, "About this call:"),
    (Concern.REFUSED, "Refused:"),
)


def render_submit_help() -> str:
    """The text of `csub submit --help`."""
    lines = [_HEAD, "csub's own options (also on #CSUB lines):"]
    for option in OWN_OPTIONS:
        value = "" if option.argument is Argument.NONE else "=VALUE"
        lines.append(f"  {f'--{option.name}{value}':<22} {option.reason}")
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

  --degree=N      how many of them run on a GPU at the same time; otherwise that is measured
  --pack-size=N   members of a pack; those above the degree wait in it for a place
  --gpus-per-pack=N  GPUs of one Slurm job, over which they are spread; node for all of a node
  --nodes-per-pack=N  the same GPUs of each of N nodes
  --gpu-mem=10G   the GPU memory that each needs, so that different scripts fit together
  --share=MODE    auto, mps, timeslice or exclusive; mps! forbids a fallback
  --dry-run       print which would share, and submit nothing; csub plan pack says why

All other options are those of csub submit, for each script that does not say otherwise in its
#SBATCH and #CSUB lines. Many jobs of one script are a sweep: csub sweep --help.
"""

PROBE_HELP = """\
Usage: csub probe [OPTIONS] SCRIPT [ARGUMENTS]

Runs a job on one GPU alone, only until its usage profile is known: some minutes at most. What it
uses and how fast it is alone then decides which jobs share a GPU with it, and makes slowdowns
known. What it had done by then is lost, so probe a job that may be ended.

  --wait          wait for it, and print the usage profile; exit status 1 where there is none
  --array=N       probe task N, and the others are its family

Then: csub profile show NAME, csub plan SCRIPT. All other options are those of csub submit.
"""

BATCH_HELP = """\
Usage: csub batch [OPTIONS] TABLE

Submits a job for each row of TABLE, as one submission whose jobs share GPUs.

  *.csv, *.tsv    a header, and a row for each job
  *.jsonl         a JSON object a line
  *.yaml, *.toml, *.json   a list of rows; what stands outside of it holds for all rows
  any other name, or -     a list of commands, one a line (as for GNU parallel and disBatch)

  column script, arguments   what runs; or
  column command             a command for a shell
  a column called like an option (time, mem, gres, job-name, gpu-mem, ...) is that option
  any other column           a parameter: {lr} in arguments, command, script, job-name, output
                             or error takes its value

  --resume    submit only the rows that are neither done nor under way
  --watch     go on, and submit rows that are added later; Ctrl-C ends that, and not the jobs
  --dry-run   print the jobs, and submit nothing

Options before TABLE hold for each row that says nothing else: csub submit --help.
A table of radT's (Experiment, Workload, File, ...) is taken as it is: rows of one workload share a
GPU and start at the same moment; their status is written next to it, in TABLE.status.csv.
"""
