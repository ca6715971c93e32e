"""The help of the submission command, from the option table."""

from __future__ import annotations

import textwrap

from slurm_colloc.slurm.options import OWN_OPTIONS, SBATCH_OPTIONS, Argument, Concern

_HEAD = """\
Usage: csub [OPTIONS] SCRIPT [ARGUMENTS]      as with sbatch
       csub pack [OPTIONS] SCRIPT...          scripts that share a GPU
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
