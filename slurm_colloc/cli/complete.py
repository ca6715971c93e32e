"""What may stand at the end of a command line; reads the state, asks Slurm nothing.

Also: `csub --install-completion`, `csub --show-completion`, and what the shells' scripts call.

It has a tenth of a second, so it loads neither typer nor what the commands load. The options of
csub's own commands stand here once more; tests/cli/test_completion.py holds them against the rest.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from slurm_colloc.cli.command_groups import GROUPS
from slurm_colloc.errors import UsageProblem, failed_to

_COMMANDS = frozenset(name for group in GROUPS.values() for name in group)
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
        yield from _COMMANDS
        if typed.startswith("-"):
            yield from _list_submit_options()
    elif typed.startswith("-"):
        yield from OPTIONS.get(command, _OF_NOTEBOOKS if command == "notebook" else ())
        if command in _SUBMITS or command not in _COMMANDS:
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
        with contextlib.suppress(Exception):
            from slurm_colloc.store.own_numbers import list_joined

            yield from map(str, list_joined(root, _IDS_MOST))
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
        from slurm_colloc.store.atomic_files import read_record
        from slurm_colloc.store.indexes import JobIndex

        index = None if index_path is None else read_record(index_path, JobIndex)
        return [root / "packs" / pack for pack in (index.list_packs() if index else ())]
    return []


def _list_parameters(before: Sequence[str], typed: str, root: Path | None) -> Iterator[str]:
    """`lr=`, and behind it the values; of the submissions that are named, else of open packs."""
    if root is None:
        return
    from slurm_colloc.store.atomic_files import read_json
    from slurm_colloc.store.inbox import format_number

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
    from slurm_colloc.model.member import EndCause
    from slurm_colloc.report.report_sentences import WORDS
    from slurm_colloc.report.waiting_reasons import REASONS

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
    from slurm_colloc.store.pack_directory import read_pack

    with contextlib.suppress(OSError):
        for path in sorted((root / "open").iterdir())[-_IDS_MOST:]:
            with contextlib.suppress(Exception):
                record = read_pack(root / "packs" / path.name)
                if record is not None:
                    yield record.name


# ---- `csub --install-completion`, `csub --show-completion`, and what the shells' scripts call ----

COMPLETE = "--complete-words"
"""Prints what may stand in place of the last of the words that follow, a line each."""

_BASH = """\
# bash completion of csub, made by csub --install-completion.
_csub() {
    local IFS=$'\\n'
    COMPREPLY=($(csub --complete-words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    # A name that a value follows.
    [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -o default -o bashdefault -F _csub csub
"""
_ZSH = """\
#compdef csub
# zsh completion of csub, made by csub --install-completion.
_csub() {
    local -a found
    found=("${(@f)$(csub --complete-words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    # A value follows a name that ends in =.
    if [[ -z $found[1] ]]; then _files
    elif [[ $found[1] == *= ]]; then compadd -S '' -a found
    else compadd -a found; fi
}
# As a file of fpath this is the body of the function, called for the first completion.
if [[ $funcstack[1] == _csub ]]; then _csub; else compdef _csub csub; fi
"""
_FISH = """\
# fish completion of csub, made by csub --install-completion.
function __csub_words
    set -l words (commandline -opc) (commandline -ct)
    csub --complete-words $words[2..-1] 2>/dev/null
end
complete -c csub -a '(__csub_words)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

_PLACES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/csub"),
    "zsh": ("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_csub"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/csub.fish"),
}


def run_completion(argv: Sequence[str]) -> int:
    """Do what one of the options of completion asks; the exit status."""
    option, *words = argv
    if option == COMPLETE:
        for text in list_candidates(words, _find_state()):
            sys.stdout.write(f"{text}\n")
        return 0
    shell = choose_shell(words)
    if option == "--show-completion":
        sys.stdout.write(SCRIPTS[shell])
        return 0
    path = install(shell)
    sys.stdout.write(f"The completion of csub for {shell} is in {path}; new shells have it.\n")
    if shell == "zsh":
        sys.stdout.write(f"~/.zshrc needs, before compinit: fpath=({path.parent} $fpath)\n")
    return 0


def choose_shell(words: Sequence[str]) -> str:
    """The shell that is named, or the user's.

    Raises:
        UsageProblem: It is none of those that csub completes in.
    """
    shell = words[0] if words else os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119
    if shell not in SCRIPTS or len(words) > 1:
        raise UsageProblem(
            f"there is no completion for {shell or 'an unknown shell'}",
            hint=f"csub --install-completion {'|'.join(SCRIPTS)}",
        )
    return shell


def install(shell: str) -> Path:
    """Write the script of a shell to where it looks; the file.

    Raises:
        StateError: It cannot be written.
    """
    variable, usual, name = _PLACES[shell]
    path = Path(os.environ.get(variable) or Path.home() / usual, name)
    with failed_to("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
        temporary.write_text(SCRIPTS[shell], encoding="utf-8")
        temporary.replace(path)
    return path


def _find_state() -> Path | None:
    from slurm_colloc.settings_files import find_state_path

    try:
        return find_state_path(os.environ)
    except Exception:  # noqa: BLE001 - a shell wants candidates, whatever is wrong
        return None
