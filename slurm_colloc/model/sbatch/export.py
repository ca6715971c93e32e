"""What `--export` lets through of an environment (sbatch(1), --export)."""

from __future__ import annotations

from collections.abc import Mapping

# Variables of an allocation that csub itself was called in; they would speak of another job.
_OUTER_JOB = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")
_OF_THE_CLIENT = frozenset(
    {"SLURM_CONF", "SLURM_TIME_FORMAT", "SLURM_CONF_SERVER", "SLURM_COLLOC_SETTINGS"}
)

_ALWAYS = ("SLURM_", "SPANK_")
"""What sbatch exports whatever --export says."""


def choose_batch_export(export: str | None) -> str:
    """The value of `--export` for the batch script of a job with this one.

    With anything but ALL Slurm itself loads the login environment on the node, below what is
    exported (sbatch(1); NIL loads it in 22.05 only), so the same is asked for the pack.
    """
    if export is None or export == "ALL":
        return "ALL"
    return "NIL" if export == "NIL" else "NONE"


def remove_member_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what csub put into a member's: for jobs that a member submits."""
    pack = environment.get("SLURM_COLLOC_PACK")
    if pack is None:
        return dict(environment)
    own = {"SLURM_OVERLAP", "SLURM_CPU_BIND", *environment.get("SLURM_COLLOC_SET", "").split(",")}
    kept = {
        name: value
        for name, value in environment.items()
        if name not in own
        and (not name.startswith("SLURM_COLLOC_") or name == "SLURM_COLLOC_SETTINGS")
    }
    if "PATH" in kept:
        folders = kept["PATH"].split(":")
        kept["PATH"] = ":".join(folder for folder in folders if folder != f"{pack}/bin")
    return kept


def compute_captured(environment: Mapping[str, str], export: str | None) -> dict[str, str]:
    """The part of the environment at submission that a job gets.

    Args:
        environment: The environment of csub.
        export: The option's value; None or ALL for everything.
    """
    in_a_job = "SLURM_JOB_ID" in environment
    environment = remove_member_variables(environment)
    own = {
        name: value
        for name, value in environment.items()
        if not in_a_job or not name.startswith(_OUTER_JOB) or name in _OF_THE_CLIENT
    }
    if export is None or export == "ALL":
        return own
    chosen = {name: value for name, value in own.items() if name.startswith(_ALWAYS)}
    if export in ("NONE", "NIL"):
        return chosen
    for word in split_export(export):
        name, assigned, value = word.partition("=")
        if word == "ALL":
            chosen.update(own)
        elif assigned:
            chosen[name] = value
        elif name in own:
            chosen[name] = own[name]
    return chosen


def split_export(export: str) -> list[str]:
    """Split the value of --export at commas outside of quotes."""
    words, current, quote = [], "", ""
    for character in export:
        if quote:
            if character == quote:
                quote = ""
            else:
                current += character
        elif character in "'\"":
            quote = character
        elif character == ",":
            words.append(current)
            current = ""
        else:
            current += character
    words.append(current)
    return [word for word in words if word]
