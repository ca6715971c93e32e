"""What `--export` lets through of an environment (sbatch(1), --export)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

SET_VARIABLE = "SLURM_COLLOC_SET"
"""What csub set in a member's environment, as one JSON object: NAME: [value, value before]."""

_NOT_OF_A_MEMBER = frozenset(
    {
        "SLURM_COLLOC_BASE",
        "SLURM_COLLOC_POLICY",
        "SLURM_COLLOC_RUN",
        "SLURM_COLLOC_SETTINGS",
        "SLURM_COLLOC_SLURM_ACCESS",
    }
)
"""What a user or site sets for csub itself; every other SLURM_COLLOC_* speaks of one member."""

# Variables of an allocation that csub itself was called in; they would speak of another job.
_OUTER_JOB = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")
_OF_THE_CLIENT = frozenset(
    {"SLURM_CONF", "SLURM_TIME_FORMAT", "SLURM_CONF_SERVER", *_NOT_OF_A_MEMBER}
)

_ALWAYS = ("SLURM_", "SPANK_")
"""What sbatch exports whatever --export says."""


def choose_batch_export(export: str | None) -> str:
    """The value of `--export` for the batch script of a job with this one.

    With anything but ALL Slurm itself loads the login environment on the node, below what is
    exported (sbatch(1); NIL loads it in 22.05 only), so the same is asked for the pack.
    """
    if exports_all(export):
        return "ALL"
    return "NIL" if (export or "").upper() == "NIL" else "NONE"


def is_none(export: str) -> bool:
    """Nothing is exported, in any case of the words, but what speaks of Slurm."""
    return export.upper() in ("NONE", "NIL")


def exports_all(export: str | None) -> bool:
    """Everything is exported; sbatch takes these words in any case (sbatch.c)."""
    return export is None or export.upper() == "ALL"


def speaks_of_a_member(name: str) -> bool:
    """True for a variable that csub sets for one member, and no other job may see."""
    return name.startswith("SLURM_COLLOC_") and name not in _NOT_OF_A_MEMBER


def describe_set(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The value of SLURM_COLLOC_SET.

    Args:
        before: What sbatch would have given the member.
        after: What it gets.
    """
    import json

    return json.dumps(
        {
            name: [value, before.get(name)]
            for name, value in sorted(after.items())
            if name != "PATH" and before.get(name) != value and not speaks_of_a_member(name)
        }
    )


def iterate_set(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str | None]]:
    """What csub set: name, value, and the value before (None for none); nothing if unreadable."""
    import json

    try:
        described = json.loads(environment.get(SET_VARIABLE, "{}"))
        rows = [(name, value, before) for name, (value, before) in described.items()]
    except (AttributeError, TypeError, ValueError):
        return
    for name, value, before in rows:
        if isinstance(value, str) and (before is None or isinstance(before, str)):
            yield name, value, before


def remove_member_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what csub put into a member's: for jobs that a member submits.

    What the member has changed since then is its own, and stays.
    """
    kept = {name: value for name, value in environment.items() if not speaks_of_a_member(name)}
    for name, value, before in iterate_set(environment):
        if kept.get(name) == value:
            del kept[name]
            if before is not None:
                kept[name] = before
    pack = environment.get("SLURM_COLLOC_PACK")
    if pack and "PATH" in kept:
        folders = kept["PATH"].split(":")
        kept["PATH"] = ":".join(folder for folder in folders if not is_shim_folder(folder, pack))
    return kept


def is_shim_folder(folder: str, pack: str) -> bool:
    """True for the directory of Slurm's commands of a member of this pack."""
    return folder.startswith(f"{pack}/members/") and folder.endswith("/bin")


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
    if export is None or exports_all(export):
        return own
    chosen: dict[str, str] = {}
    for word in () if is_none(export) else split_export(export):
        name, assigned, value = word.partition("=")
        if exports_all(word):
            chosen.update(own)
        elif assigned:
            chosen[name] = value
        elif name in own:
            chosen[name] = own[name]
    # Last, as in sbatch: --export changes none of these.
    chosen.update({name: own[name] for name in own if name.startswith(_ALWAYS)})
    chosen.pop("", None)
    return chosen


def split_export(export: str) -> list[str]:
    """Split the value of --export as sbatch does (find_quote_token in env.c).

    A comma divides where as many of each kind of quotes have begun as have ended; one kind inside
    the other counts, too. Quotes are taken away only where the whole word begins and ends with the
    same one. Where a quote is never closed, all that follows is one word.
    """
    words, begin = [], 0
    is_open = {"'": False, '"': False}
    for at, character in enumerate(f"{export},"):
        if character in is_open:
            is_open[character] = not is_open[character]
        elif character == "," and not any(is_open.values()):
            words.append(_strip_quotes(export[begin:at]))
            begin = at + 1
    words.append(export[begin:])
    return [word for word in words if word]


def _strip_quotes(word: str) -> str:
    is_quoted = len(word) > 1 and word[0] == word[-1] and word[0] in "'\""
    return word[1:-1] if is_quoted else word
