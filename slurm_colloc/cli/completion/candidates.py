"""What may stand at the end of a command line; reads the state, asks Slurm nothing.

It has a tenth of a second, so it loads neither typer nor what the commands load. The options of
csub's own commands stand here once more; tests/cli/test_completion.py holds them against the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from slurm_colloc.cli.command_groups import GROUPS

_MEMBERS = ("--state", "--name", "--where")
_READ = (*_MEMBERS, "--user", "--json")
OPTIONS: dict[str, tuple[str, ...]] = {
    "queue": ("--all", "--array", "--format", "--no-header", *_READ),
    "history": ("--since", "--array", "--format", "--no-header", *_READ),
    "show": _READ,
    "why": _READ,
    "explain": ("--user",),
    "logs": ("--follow", "--error", "--tail", "--prefix", *_MEMBERS, "--user"),
    "report": ("--csv", "--by", "--since", "--parquet", "--html", "--open", "--detail", *_READ),
    "compare": ("--json", "--user"),
    "track": ("--offline", "--project", "--to", "--uri"),
    "top": ("--once", *_MEMBERS, "--user"),
    "cancel": ("--yes", *_MEMBERS),
    "hold": _MEMBERS,
    "release": _MEMBERS,
    "requeue": _MEMBERS,
    "wait": _MEMBERS,
    "config": ("--unset", "--json"),
    "clean": ("--older-than", "--dry-run"),
    "retry": ("--failed", "--timeout", "--oom", "--where", "--dry-run", "--wait", "--time", "--mem",
              "--cpus-per-task", "--gpu-mem", "--partition", "--qos"),
}  # fmt: skip
"""The options of commands that take ids of members, or little else."""

_OF_NOTEBOOKS = ("--idle", "--port")
_TAKES_IDS = frozenset(OPTIONS) - {"config", "clean"} | {"shell"}
_SUBMITS = frozenset({"submit", "pack", "sweep", "batch", "probe", "plan", "check", "notebook"})
_IDS_MOST = 30
_SHARES = ("auto", "mps", "mig", "timeslice", "exclusive")


def list_candidates(words: Sequence[str], state_root: Path | None) -> list[str]:
    """What may stand in place of the last word.

    Args:
        words: The words behind `csub`; the last one is being typed, and may be empty.
        state_root: The state directory; None where it is not known.

    Returns:
        Candidates that begin as it does; none where a file name is meant.
    """
    *before, typed = words or [""]
    command = before[0] if before else ""
    previous = before[-1] if before else ""
    found = _list_all(command, previous, typed, before, state_root)
    return sorted({text for text in found if text.startswith(typed) and text.isprintable()})


def _list_all(
    command: str, previous: str, typed: str, before: Sequence[str], root: Path | None
) -> Iterator[str]:
    if previous in ("--state", "-t") and command in OPTIONS:
        yield from _list_states()
    elif previous in ("--name", "-n") and command in OPTIONS:
        yield from _list_names(root)
    elif previous == "--share":
        yield from _SHARES
    elif not before:
        yield from (name for _, group in GROUPS for name in group)
        if typed.startswith("-"):
            yield from _list_submit_options()
    elif typed.startswith("-"):
        yield from OPTIONS.get(command, _OF_NOTEBOOKS if command == "notebook" else ())
        if command in _SUBMITS or command not in {name for _, group in GROUPS for name in group}:
            yield from _list_submit_options()
        yield "--help"
    elif command in _TAKES_IDS:
        yield from ("last", "all")
        yield from _list_ids(root, typed)
    elif command == "config" and len(before) == 1:
        from slurm_colloc.settings import Settings

        yield from Settings.__dataclass_fields__


def _list_states() -> Iterator[str]:
    from slurm_colloc.model.member import MemberState

    yield from (state.value for state in MemberState)


def _list_submit_options() -> Iterator[str]:
    from slurm_colloc.slurm.option_table import OWN_OPTIONS, SBATCH_OPTIONS

    for option in (*OWN_OPTIONS, *SBATCH_OPTIONS):
        if option.alias_of is None:
            yield f"--{option.name}"


def _list_ids(root: Path | None, typed: str) -> Iterator[str]:
    """The newest submissions, or the members of the one that is named."""
    if root is None:
        return
    from slurm_colloc.store.pack_reading import JobIndex
    from slurm_colloc.store.record_files import read_record

    names: dict[str, Path] = {}
    with contextlib.suppress(OSError):
        for path in (root / "jobs").iterdir():
            if path.suffix == ".json":
                names[path.stem.rpartition(".")[2]] = path
    job, slash, _ = typed.partition("/")
    if not slash:
        yield from sorted(names, key=_order, reverse=True)[:_IDS_MOST]
        return
    if job in names:
        with contextlib.suppress(Exception):
            index = read_record(names[job], JobIndex)
            for pack in index.list_packs() if index else ():
                for number in _list_numbers(root / "packs" / pack):
                    yield f"{job}/{number}"


def _order(job_id: str) -> tuple[int, str]:
    digits = job_id.removeprefix("L")
    return (int(digits) if digits.isdecimal() else 0, job_id)


def _list_numbers(pack: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for path in (pack / "members").iterdir():
            if path.name.isdecimal():
                yield int(path.name)


def _list_names(root: Path | None) -> Iterable[str]:
    """The names of open packs."""
    if root is None:
        return
    from slurm_colloc.store.pack.pack_directory import read_pack

    with contextlib.suppress(OSError):
        for path in sorted((root / "open").iterdir())[-_IDS_MOST:]:
            with contextlib.suppress(Exception):
                record = read_pack(root / "packs" / path.name)
                if record is not None:
                    yield record.name
