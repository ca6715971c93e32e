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
    "report": (
        *("--csv", "--best", "--by", "--since", "--parquet", "--html", "--open", "--detail"),
        *_READ,
    ),
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
_VALUES = ("--state", "-t", "--name", "-n", "--where", "--share")
_MEMBERS_MOST = 200
_SHARES = ("auto", "mps", "mig", "timeslice", "exclusive")


def list_candidates(words: Sequence[str], state_root: Path | None) -> list[str]:
    """What may stand in place of the last word.

    Args:
        words: The words behind `csub`; the last one is being typed, and may be empty. bash divides
            them at `=`, too, and replaces what stands behind it alone.
        state_root: The state directory; None where it is not known.

    Returns:
        Candidates that begin as it does; none where a file name is meant.
    """
    joined, kept = _join_at_equals(words or [""])
    *before, typed = joined
    command = before[0] if before else ""
    found = _list_all(command, before[-1] if before else "", typed, before, state_root)
    fitting = {text for text in found if text.startswith(typed) and text.isprintable()}
    return sorted(text.removeprefix(kept) for text in fitting)


def _join_at_equals(words: Sequence[str]) -> tuple[list[str], str]:
    """The words as they were typed, and what of the last one the shell keeps as it is."""
    joined: list[str] = []
    goes_on = False
    for word in words:
        if joined and (word == "=" or goes_on):
            joined[-1] += word
            goes_on = word == "="
        else:
            joined.append(word)
    is_parted = "=" in words[-2:] and len(joined) < len(words)
    return joined, f"{joined[-1].rpartition('=')[0]}=" if is_parted else ""


def _list_all(
    command: str, previous: str, typed: str, before: Sequence[str], root: Path | None
) -> Iterator[str]:
    option, equals, value = typed.partition("=")
    if equals and option in _VALUES:
        for text in _list_values(command, option, value, before, root):
            yield f"{option}={text}"
    elif previous in _VALUES:
        yield from _list_values(command, previous, typed, before, root)
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
        if command == "explain":
            yield from _list_words(typed)
    elif command == "config" and len(before) == 1:
        from slurm_colloc.settings import Settings

        yield from Settings.__dataclass_fields__


def _list_values(
    command: str, option: str, typed: str, before: Sequence[str], root: Path | None
) -> Iterator[str]:
    """What the value of an option may be."""
    if option == "--share":
        yield from _SHARES
    elif command not in OPTIONS:
        return
    elif option in ("--state", "-t"):
        head, comma, _ = typed.rpartition(",")
        yield from (f"{head}{comma}{state}" for state in _list_states())
    elif option in ("--name", "-n"):
        yield from _list_names(root)
    elif option == "--where":
        yield from _list_parameters(before, typed, root)


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
    names = _find_indices(root)
    job, slash, _ = typed.partition("/")
    if not slash:
        yield from sorted(names, key=_order, reverse=True)[:_IDS_MOST]
        return
    for pack in _list_packs(root, names.get(job)):
        for number in _list_numbers(pack):
            yield f"{job}/{number}"


def _find_indices(root: Path) -> dict[str, Path]:
    """Where it is written which packs an id stands for."""
    with contextlib.suppress(OSError):
        paths = [path for path in (root / "jobs").iterdir() if path.suffix == ".json"]
        return {path.stem.rpartition(".")[2]: path for path in paths}
    return {}


def _list_packs(root: Path, index_path: Path | None) -> list[Path]:
    with contextlib.suppress(Exception):
        from slurm_colloc.store.job_index import JobIndex
        from slurm_colloc.store.record_files import read_record

        index = None if index_path is None else read_record(index_path, JobIndex)
        return [root / "packs" / pack for pack in (index.list_packs() if index else ())]
    return []


def _list_parameters(before: Sequence[str], typed: str, root: Path | None) -> Iterator[str]:
    """`lr=`, and behind it the values; of the submissions that are named, else of open packs."""
    if root is None:
        return
    from slurm_colloc.store.atomic_files import read_json
    from slurm_colloc.store.pack.inbox import format_number

    names = _find_indices(root)
    jobs = [job for job in (word.partition("/")[0] for word in before) if job in names]
    packs = [pack for job in jobs for pack in _list_packs(root, names[job])]
    if not jobs:
        with contextlib.suppress(OSError):
            packs = [root / "packs" / path.name for path in sorted((root / "open").iterdir())]
    left = _MEMBERS_MOST
    for pack in reversed(packs):
        for number in sorted(_list_numbers(pack))[:left]:
            left -= 1
            with contextlib.suppress(Exception):
                spec = read_json(pack / "members" / format_number(number) / "spec.json") or {}
                for name, value in spec["job"]["parameters"]:
                    yield f"{name}={value}" if typed.startswith(f"{name}=") else f"{name}="


def _list_words(typed: str) -> Iterator[str]:
    """What csub explains, in small letters where the user has begun so."""
    from slurm_colloc.model.end_causes import EndCause
    from slurm_colloc.report.words.report_words import WORDS
    from slurm_colloc.report.words.waiting_reasons import REASONS

    for word in (*_list_states(), *WORDS, *REASONS, *(cause.value for cause in EndCause)):
        if " " not in word:
            yield word.lower() if typed[:1].islower() else word


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
