"""`csub profile`: the usage profiles that earlier runs have left."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_colloc.cli.arguments import Json
from slurm_colloc.errors import NotFound, UsageProblem
from slurm_colloc.model.printable import cut, escape_controls
from slurm_colloc.model.quantities import format_count
from slurm_colloc.session.session import Session, note, say

if TYPE_CHECKING:
    from slurm_colloc.model.measured_curve import KnownCurve
    from slurm_colloc.model.usage_profile import ProfileRecord

profile = typer.Typer(
    name="profile",
    help="Usage profiles: what jobs use when they run alone.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

_LEAST_DIGITS = 4
_BYTES_MOST = 64 << 20
_PROFILES_MOST = 10_000
"""Of a file; a user has tens, a site hundreds."""

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
    from slurm_colloc.report.terminal_tables import choose_width, is_styled
    from slurm_colloc.store.profiles import ProfileNames

    root = Session.open().state.root
    records = _read_all(root)
    curves = _read_curves(root)
    if as_json:
        say(_dump(records, curves))
    elif not records:
        shown = escape_controls(f"{root}/profiles")
        if ProfileNames(root).names:
            say(f"None of the usage profiles in {shown} can be read.")
        else:
            say(f"There are no usage profiles in {shown}: a job that runs alone leaves one.")
    else:
        styled = is_styled(sys.stdout)
        say(render_list(records, choose_width(), curves, styled=styled), styled=styled)


@profile.command()
def show(patterns: Patterns, as_json: Json = False) -> None:
    """Show usage profiles."""
    from slurm_colloc.report.profile_view import render_profile
    from slurm_colloc.report.terminal_tables import choose_width

    root = Session.open().state.root
    records, curves = _choose(_read_all(root), patterns), _read_curves(root)
    if as_json:
        say(_dump(records, curves))
        return
    say("\n".join(render_profile(record, choose_width(), curves) for record in records))


@profile.command()
def forget(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="[SIGNATURE|NAME]...", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All usage profiles.")] = False,
) -> None:
    """Forget usage profiles, such as those of a job whose data have changed.

    What packs have measured with jobs of the same script is forgotten, too.
    """
    from slurm_colloc.store.curves import forget_curves
    from slurm_colloc.store.gpu_paces import forget_gpu_runs
    from slurm_colloc.store.profile_updates import forget_profiles

    if bool(patterns) == everything:
        raise UsageProblem("name usage profiles, or give --all", hint="csub profile list")
    root = Session.open_own().state.root
    records = _read_all(root)
    chosen = records if everything else _choose(records, patterns or [])
    removed = forget_profiles(root, chosen)
    forget_curves(root, None if everything else {(r.family, r.gpu_model) for r in chosen})
    if everything:
        forget_gpu_runs(root)
    say(f"Forgotten: {format_count(removed, 'usage profile')}.")


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
    from slurm_colloc.store.profile_updates import import_profiles

    records = [record for file in files for record in _read_file(file)]
    written = import_profiles(Session.open_own().state.root, records)
    kept = len(records) - len(written)
    more = f"; {kept} not: the existing ones have as many runs or more" if kept else ""
    say(f"Imported: {format_count(len(written), 'usage profile')}{more}.")


def _read_all(root: Path) -> list[ProfileRecord]:
    """All that can be read; the others are named.

    Raises:
        StateError: Their folder cannot be read.
    """
    from slurm_colloc.store.profiles import ProfileNames, list_profiles

    names = ProfileNames(root)
    records, problems = list_profiles(root, names)
    if names.problem is not None:
        raise names.problem
    for text in problems:
        note(f"ignored: {escape_controls(text)}")
    return records


def _choose(records: list[ProfileRecord], patterns: list[str]) -> list[ProfileRecord]:
    chosen: list[ProfileRecord] = []
    for pattern in patterns:
        found = [record for record in records if _matches(record, pattern)]
        if not found:
            raise NotFound(
                f"no usage profile has the name or the signature {cut(pattern)!a}",
                hint="csub profile list shows them",
            )
        chosen += [record for record in found if record not in chosen]
    return chosen


def _matches(record: ProfileRecord, pattern: str) -> bool:
    is_prefix = len(pattern) >= _LEAST_DIGITS and record.signature.startswith(pattern)
    return is_prefix or record.name == pattern


def _read_curves(root: Path) -> list[KnownCurve]:
    """What packs have measured, as far as it can be read; the others are named."""
    from slurm_colloc.store.curves import list_curves

    curves, problems = list_curves(root)
    for text in problems:
        note(f"ignored: {escape_controls(text)}")
    return curves


def _dump(records: list[ProfileRecord], curves: list[KnownCurve] | None = None) -> str:
    """As JSON; with what packs have measured, where that is asked for."""
    from slurm_colloc.model.late_definitions import asdict
    from slurm_colloc.store.profiles import build_profile_mapping

    shown = [build_profile_mapping(record) for record in records]
    for record, mapping in zip(records, shown, strict=True):
        if curves is not None:
            mapping["curves"] = [asdict(c) for c in curves if c.is_of(record)]
    return json.dumps(shown, indent=1)


def _read_file(file: str) -> list[ProfileRecord]:
    from slurm_colloc.session.standard_streams import read_given_file
    from slurm_colloc.store.foreign_files import parse_foreign
    from slurm_colloc.store.profiles import parse_profile

    where = "standard input" if file == "-" else escape_controls(file)
    try:
        value: Any = parse_foreign(read_given_file(file, _BYTES_MOST), where, strict=True)
        if isinstance(value, dict):
            return [parse_profile(value, where)]
        if not isinstance(value, list):
            raise UsageProblem(f"{where}: must be a usage profile or a list of them")
        if len(value) > _PROFILES_MOST:
            raise UsageProblem(f"{where}: it has {len(value)} items, {_PROFILES_MOST} at most")
        return [parse_profile(item, f"{where}: item {n}") for n, item in enumerate(value, start=1)]
    except UsageProblem as problem:
        raise UsageProblem(problem.message, hint="nothing was imported") from problem
