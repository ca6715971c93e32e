"""`csub config`: the settings, where each comes from, and changing one's own.

Also: `csub clean`: forgetting packs that are over.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions

from slurm_colloc.cli.queue_and_history import parse_age
from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.late_definitions import asdict, dataclass, fields
from slurm_colloc.model.quantities import format_count
from slurm_colloc.ownership import find_owner, is_of_another, name_user
from slurm_colloc.report.ended_members import collect_ended, list_changed_since
from slurm_colloc.report.member_views import PackView
from slurm_colloc.report.terminal_tables import render_lines
from slurm_colloc.session.session import Session, note
from slurm_colloc.settings import (
    REMOVED,
    Settings,
    compute_capped,
    merge_settings,
    parse_settings,
    read_settings_file,
)
from slurm_colloc.settings_files import SettingsFiles, find_files
from slurm_colloc.slurm.choose_access import describe_access
from slurm_colloc.store.all_packs import measure_bytes, remove_pack, remove_remains
from slurm_colloc.store.atomic_files import explain_os_errors, write_atomic
from slurm_colloc.store.pack_directory import is_local_alive, read_ended
from slurm_colloc.store.snapshots import FOLDER, remove_snapshots

BUILT_IN = "built-in"


@dataclass(frozen=True)
class SettingRow:
    """One setting.

    Attributes:
        name: Its name, `caps.join` for one in a table.
        value: What holds.
        source: `built-in`, `site`, `user` or `cap`.
        file: The file it comes from; empty for a built-in value.
        wanted: What the file says, where a cap holds instead; None otherwise.
    """

    name: str
    value: Any
    source: str
    file: str
    wanted: Any = None


def show(name: str, *, as_json: bool) -> str:
    """All settings with their sources, or the value of one.

    Raises:
        UsageProblem: There is no such setting, or a file is wrong.
    """
    files = find_files(os.environ)
    site, user = _read_both(files)
    rows = build_rows(files, site, user)
    if name:
        rows = [row for row in rows if row.name == name or row.name.startswith(f"{name}.")]
        if not rows:
            raise _build_unknown(name)
    if as_json:
        return json.dumps([{**asdict(row), "file": row.file or None} for row in rows])
    if name:
        return "\n".join(
            _format(row.value) if row.name == name else f"{row.name} = {_format(row.value)}"
            for row in rows
        )
    table = [(row.name, _format(row.value) or '""', _describe_source(row)) for row in rows]
    lines = [render_lines(("SETTING", "VALUE", "FROM"), table)]
    lines += [f"Your own file: {files.user}\n"] if files.user else []
    lines.append(f"Slurm access: {describe_access(merge_settings(site, user), os.environ)}\n")
    return "".join(lines)


def _read_both(files: SettingsFiles) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the site's and the user's file say; what was removed is told.

    Raises:
        UsageProblem: One of them is wrong.
    """
    user: dict[str, Any] = {}
    if files.user and Path(files.user).exists():
        user = read_settings_file(files.user, warn=note)
    return read_site(files), user


def read_site(files: SettingsFiles) -> dict[str, Any]:
    """What the site's file says.

    Raises:
        UsageProblem: It is wrong.
    """
    if files.is_required or Path(files.site).exists():
        return read_settings_file(files.site, is_site=True, warn=note)
    return {}


def build_rows(
    files: SettingsFiles, site: Mapping[str, Any], user: Mapping[str, Any]
) -> list[SettingRow]:
    """All settings in the order in which they are declared."""
    settings = merge_settings(site, user)
    given_site, given_user = _flatten(site), _flatten(user)
    rows = []
    for name, value in _flatten(asdict(settings)).items():
        wanted = given_user.get(name, given_site.get(name))
        default = getattr(Settings(), name, None)
        if not name.startswith("caps.") and value != (default if wanted is None else wanted):
            # A cap is the only thing that changes what a file, or csub itself, says.
            rows.append(
                SettingRow(name, value, "cap", files.site, default if wanted is None else wanted)
            )
        elif name in given_user:
            rows.append(SettingRow(name, value, "user", files.user))
        elif name in given_site:
            rows.append(SettingRow(name, value, "site", files.site))
        else:
            rows.append(SettingRow(name, value, BUILT_IN, ""))
    return rows


def _flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tables spelled out: `gpu_memory.any`; an empty one stays as it is."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update({f"{name}.{key}": item for key, item in value.items()})
        else:
            flat[name] = value
    return flat


def _describe_source(row: SettingRow) -> str:
    if row.source == "cap":
        return f"cap in {row.file} (instead of {_format(row.wanted)})"
    return row.file or BUILT_IN


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if isinstance(value, Mapping) and not value else str(value)


def change(name: str, text: str) -> None:
    """Write a setting into the user's file; comments and order stay.

    Raises:
        UsageProblem: The name or value is wrong, or above a cap of the site.
        StateError: The file cannot be written.
    """
    files = _find_own_file()
    value = parse_value(name, text)
    document = _read_document(files.user)
    table, _, key = name.rpartition(".")
    if table:
        if table not in document:
            document[table] = tomlkit.table()
        document[table][key] = value
    else:
        document[key] = value
    _write_document(files, document, changed=name)
    note(f"{name} = {_format(value)} in {files.user}")


def unset(name: str) -> None:
    """Remove a setting from the user's file.

    Raises:
        UsageProblem: There is no such setting, or it is not in the file.
        StateError: The file cannot be written.
    """
    files = _find_own_file()
    document = _read_document(files.user)
    table, _, key = name.rpartition(".")
    holder: Any = document.get(table, {}) if table else document
    if key not in holder:
        parse_value(name, None)
        raise UsageProblem(f"{files.user} does not set {name}")
    del holder[key]
    if table and not holder:
        del document[table]
    _write_document(files, document)
    note(f"{name} is no longer in {files.user}")


def parse_value(name: str, text: str | None) -> Any:
    """Read a value by the kind of its setting; None checks the name alone.

    Raises:
        UsageProblem: There is no such setting, or its value is of another kind.
    """
    table, _, key = name.rpartition(".")
    if name.partition(".")[0] == "caps":
        raise UsageProblem(
            f"only the site can set {name}", hint="caps can be set only in the site's settings"
        )
    known = {field.name: getattr(Settings(), field.name) for field in fields(Settings)}
    if table == "gpu_memory" and key:
        return text
    if name not in known:
        raise _build_unknown(name)
    default = known[name]
    if isinstance(default, Mapping):
        raise UsageProblem(f"{name} is a table", hint=f"csub config {name}.any 80G sets one entry")
    if text is None:
        return None
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, list):
            return text.split(",")
        return type(default)(text)
    except (ValueError, KeyError):
        kind = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise UsageProblem(f"{name} = {text}: it must be {kind}") from None


def _build_unknown(name: str) -> UsageProblem:
    import difflib

    if name in REMOVED:
        return UsageProblem(f"the setting {name!r} was removed", hint=REMOVED[name])
    known = [field.name for field in fields(Settings)]
    near = difflib.get_close_matches(name, known, n=1)
    return UsageProblem(
        f"there is no setting {name!r}",
        hint=f"did you mean {near[0]!r}?" if near else "csub config lists them",
    )


def _find_own_file() -> SettingsFiles:
    files = find_files(os.environ)
    if not files.user:
        raise UsageProblem(
            "there is no place for settings of your own", hint="set HOME or XDG_CONFIG_HOME"
        )
    return files


def _read_document(path: str) -> tomlkit.TOMLDocument:
    with explain_os_errors("read", path):
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            return tomlkit.document()
    try:
        return tomlkit.parse(data)
    except (tomlkit.exceptions.TOMLKitError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{path} is not TOML: {error}", hint="correct it by hand") from error


def _write_document(
    files: SettingsFiles, document: tomlkit.TOMLDocument, *, changed: str = ""
) -> None:
    data = tomlkit.dumps(document).encode()
    user = parse_settings(files.user, data, warn=note)
    if changed:
        _check_caps(files, user, changed)
    # Where it is a link, as in a repository of dotfiles, its target changes and the link stays.
    target = Path(os.path.realpath(files.user))
    if os.geteuid() == 0 and is_of_another(target):
        # As with `sudo`, where HOME is kept: the user could not read it any more.
        owner = name_user(find_owner(target) or 0)
        raise StateError(
            f"{target} belongs to {owner}, you are root", hint="call csub as that user"
        )
    with explain_os_errors("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
    write_atomic(target, data, mode)


def _check_caps(files: SettingsFiles, user: Mapping[str, Any], name: str) -> None:
    site = read_site(files)
    capped = compute_capped(Settings(**{**user, "caps": merge_settings(site, {}).caps}))
    if name in capped:
        raise UsageProblem(
            f"{name} = {_format(user[name])} is more than the site allows, {_format(capped[name])}",
            hint=f"[caps] in {files.site} says so",
        )


# ---- `csub clean`: forgetting packs that are over ------------------------------------------------


def clean(session: Session, older_than: str, *, dry_run: bool) -> str:
    """Remove the packs that have been over for so long; what was done, as a line.

    Raises:
        UsageProblem: The age cannot be read.
        StateError: A pack cannot be removed.
    """
    before = time.time() - parse_age("--older-than", older_than)
    changed = {*session.state.list_open(), *list_changed_since(session.state, before)}
    # Slurm is asked and the state swept all the same: what is over may not be marked yet.
    views = session.survey_kept(changed)
    count = members = size = 0
    for view in views:
        if not is_over(session, view, before):
            continue
        path = session.state.pack_path(view.record.pack_id)
        taken = measure_bytes(path)
        if dry_run or remove_pack(session.own_state, view.record.pack_id):
            count += 1
            members += len(view.members)
            size += taken
    if not dry_run:
        remove_remains(session.own_state)
    if (session.state.root / FOLDER).is_dir():
        _clean_snapshots(session, before, dry_run=dry_run)
    what = "would be removed" if dry_run else "removed"
    return (
        f"{format_count(count, 'pack')} with {format_count(members, 'member')} {what}, "
        f"{size / 1e6:.1f} MB; kept: {len(session.state.list_all()) - (count if dry_run else 0)}"
    )


def _clean_snapshots(session: Session, before: float, *, dry_run: bool) -> None:
    """Remove copies of projects in which no job that is kept runs or ran."""
    views = session.survey_kept(())
    if session.damaged:
        # What such a pack refers to is not known.
        return
    used = {member.spec.job.snapshot for view in views for member in view.members}
    count, kept = remove_snapshots(session.state.root, used, before, dry_run=dry_run)
    if count:
        what = "would be removed" if dry_run else "removed"
        note(f"{format_count(count, 'snapshot')} of projects {what}")
    for path in kept:
        note(f"kept, because jobs have written into it: {path}")


def is_over(session: Session, view: PackView, before: float) -> bool:
    """A pack of this cluster whose members have all ended by then, and whose books are closed."""
    path = session.state.pack_path(view.record.pack_id)
    closed = read_ended(path) is not None or not (path / "inbox").exists()
    is_of_another = view.is_elsewhere and bool(view.record.cluster)
    if is_of_another or not closed or not view.job_id or is_local_alive(path):
        return False
    ended = collect_ended(session.state, [(view, view.members)], 0.0)
    return len(ended) == len(view.members) and all(entry.by <= before for entry in ended)
