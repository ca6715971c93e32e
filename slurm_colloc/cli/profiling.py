"""`csub profile`: the usage profiles that earlier runs have left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_colloc.cli.arguments import Json
from slurm_colloc.cli.session import Session, note, say
from slurm_colloc.errors import NotFound, UsageProblem

if TYPE_CHECKING:
    from slurm_colloc.model.profile import ProfileRecord

profile = typer.Typer(
    name="profile",
    help="Usage profiles: what jobs use alone, as their runs have shown.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_LEAST_DIGITS = 4

Patterns = Annotated[
    list[str],
    typer.Argument(
        help=f"The first digits of a signature, at least {_LEAST_DIGITS}; or a job name.",
        metavar="SIGNATURE|NAME...",
    ),
]


@profile.command("list")
def list_all(as_json: Json = False) -> None:
    """List all usage profiles, the newest first."""
    from slurm_colloc.report.profile_view import render_list
    from slurm_colloc.report.terminal import choose_width

    root = Session.open().state.root
    records = _read_all(root)
    if as_json:
        say(_dump(records))
    elif not records:
        say(f"There are no usage profiles in {root}/profiles: a job that runs alone makes one.")
    else:
        say(render_list(records, choose_width(), styled=sys.stdout.isatty()))


@profile.command()
def show(patterns: Patterns, as_json: Json = False) -> None:
    """Show usage profiles."""
    from slurm_colloc.report.profile_view import render_profile
    from slurm_colloc.report.terminal import choose_width

    records = _choose(_read_all(Session.open().state.root), patterns)
    if as_json:
        say(_dump(records))
        return
    say("\n".join(render_profile(record, choose_width()) for record in records))


@profile.command()
def forget(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="[SIGNATURE|NAME]...", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Forget usage profiles, such as those of a job whose data have changed."""
    from slurm_colloc.store.profiles import forget_profiles

    if bool(patterns) == everything:
        raise UsageProblem("name usage profiles, or give --all", hint="csub profile list")
    root = Session.open().state.root
    records = _read_all(root)
    chosen = records if everything else _choose(records, patterns or [])
    forget_profiles(root, chosen)
    say(f"Forgotten: {_count(len(chosen))}.")


@profile.command("export")
def export_all(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="[SIGNATURE|NAME]...", show_default=False)
    ] = None,
) -> None:
    """Print usage profiles as JSON, for csub profile import elsewhere; all by default."""
    records = _read_all(Session.open().state.root)
    say(_dump(_choose(records, patterns) if patterns else records))


@profile.command("import")
def import_all(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="- for standard input.")],
) -> None:
    """Take over usage profiles, except where the one that is here is made of as many runs."""
    from slurm_colloc.store.profiles import import_profiles

    records = [record for file in files for record in _read_file(file)]
    written = import_profiles(Session.open().state.root, records)
    kept = len(records) - len(written)
    more = f"; {kept} not, as those here are made of as many runs or more" if kept else ""
    say(f"Taken over: {_count(len(written))}{more}.")


def _count(number: int) -> str:
    return "1 usage profile" if number == 1 else f"{number} usage profiles"


def _read_all(root: Path) -> list[ProfileRecord]:
    """All that can be read; the others are named."""
    from slurm_colloc.store.profiles import list_profiles

    records, problems = list_profiles(root)
    for text in problems:
        note(f"ignored: {text}")
    return records


def _choose(records: list[ProfileRecord], patterns: list[str]) -> list[ProfileRecord]:
    chosen: list[ProfileRecord] = []
    for pattern in patterns:
        found = [record for record in records if _matches(record, pattern)]
        if not found:
            raise NotFound(
                f"no usage profile has the name or the signature {pattern!a}",
                hint="csub profile list shows them",
            )
        chosen += [record for record in found if record not in chosen]
    return chosen


def _matches(record: ProfileRecord, pattern: str) -> bool:
    is_prefix = len(pattern) >= _LEAST_DIGITS and record.signature.startswith(pattern)
    return is_prefix or record.name == pattern


def _dump(records: list[ProfileRecord]) -> str:
    from slurm_colloc.store.profile_format import build_profile_mapping

    return json.dumps([build_profile_mapping(record) for record in records], indent=1)


def _read_file(file: str) -> list[ProfileRecord]:
    from slurm_colloc.store.profile_format import parse_profile

    where = "standard input" if file == "-" else file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        value: Any = json.loads(text)
    except OSError as error:
        raise UsageProblem(f"cannot read {where}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"{where}: it is not JSON ({error})") from error
    if isinstance(value, dict):
        return [parse_profile(value, where)]
    if not isinstance(value, list):
        raise UsageProblem(f"{where}: must be a usage profile or a list of them")
    return [parse_profile(item, f"{where}: item {n}") for n, item in enumerate(value, start=1)]
