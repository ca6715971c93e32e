"""The batch script of a pack, from templates/pack.sbatch.j2, and what travels with it."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.sbatch.export import remove_member_variables
from slurm_colloc.resources import data_path
from slurm_colloc.slurm.run_command import build_client_environment
from slurm_colloc.store.atomic_files import read_json, write_json

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = "pack.sbatch.j2"

# What differs between two calls stands in a kept script under these names, which a shell takes as
# they are; see render_kept_script.
_TITLE, _PACK_PATH = "@csub:title@", "@csub:pack_path@"
_HOLES = re.compile(f"{_TITLE}|{_PACK_PATH}")


# What sbatch, and with it the batch script, gets of the user's environment; the members get the
# whole of theirs from the pack directory.
_CLIENT_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "LD_LIBRARY_PATH", "KRB5CCNAME",
     "XDG_STATE_HOME", "XDG_CONFIG_HOME"}
)  # fmt: skip
_CLIENT_PREFIXES = ("LC_", "SLURM_COLLOC_")


def render_batch_script(
    *,
    title: str,
    version: str,
    pack_path: str,
    is_array: bool,
    python: str,
    templates_dir: str,
    archive: str = "",
) -> str:
    """Render the batch script.

    Args:
        title: For the reader: what the pack is.
        version: Version of slurm_colloc.
        pack_path: Path of the submission's packs without their index.
        is_array: The packs are elements of a job array.
        python: Interpreter on the nodes.
        templates_dir: A site's own templates, looked at first; empty for none.
        archive: The packs themselves (`build_archive`), where no path is shared; else empty.

    Raises:
        UsageProblem: The site's template is wrong.
    """
    import jinja2

    environment = build_environment(templates_dir)
    try:
        template = environment.get_template(TEMPLATE)
        return template.render(
            title=title,
            version=version,
            pack_path=pack_path,
            is_array=is_array,
            python=python,
            archive=archive,
        )
    except jinja2.TemplateError as error:
        where = os.path.join(templates_dir or str(data_path("templates")), TEMPLATE)
        line = getattr(error, "lineno", None)
        raise UsageProblem(
            f"{where}{f':{line}' if line else ''}: {error}",
            hint="templates_dir in the settings names the site's templates",
        ) from error


def render_kept_script(
    kept: Path, *, title: str, version: str, pack_path: str, is_array: bool, python: str
) -> str:
    """Render csub's own template, with jinja2 only where it was not kept from an earlier call.

    Importing jinja2 and compiling the template take a quarter of a submission. The answer is the
    same as that of `render_batch_script`.

    Args:
        kept: Directory for the rendered scripts; one that cannot be written does no harm.
        title: As for `render_batch_script`, like the others.
        version: See there.
        pack_path: See there.
        is_array: See there.
        python: See there.
    """
    template = (data_path("templates") / TEMPLATE).read_text(encoding="utf-8")
    path = kept / f"script.{'array' if is_array else 'single'}.json"
    key = [template, version, python]
    value = None
    with contextlib.suppress(StateError):
        value = read_json(path)
    if value is None or value.get("key") != key or not isinstance(value.get("text"), str):
        text = render_batch_script(
            title=_TITLE,
            version=version,
            pack_path=_PACK_PATH,
            is_array=is_array,
            python=python,
            templates_dir="",
        )
        value = {"key": key, "text": text}
        with contextlib.suppress(StateError):
            write_json(path, value)
    holes = {_TITLE: _one_line(title), _PACK_PATH: shlex.quote(pack_path)}
    return _HOLES.sub(lambda match: holes[match[0]], value["text"])


def build_environment(templates_dir: str) -> Environment:
    """What renders shell scripts; a site's own templates come first."""
    import jinja2

    folders = [templates_dir] if templates_dir else []
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, str(data_path("templates"))]),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # a shell script: every value goes through `quote`
    )
    environment.filters["quote"] = shlex.quote
    environment.filters["comment"] = _one_line
    return environment


def _one_line(text: str) -> str:
    """Text that cannot leave a comment line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def build_batch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of sbatch and of the batch script: small and known.

    With `--export=ALL` Slurm passes it on as it is; everything else that the batch script finds
    was then added by Slurm or the site.
    """
    client = build_client_environment(remove_member_variables(environ))
    return {
        name: value
        for name, value in client.items()
        if name in _CLIENT_VARIABLES
        or name.startswith(_CLIENT_PREFIXES)
        or name in ("SLURM_CONF", "SLURM_CONF_SERVER")
    }


SCRIPT_LIMIT_BYTES = 4 * 1024 * 1024
"""Slurm's default for SchedulerParameters=max_script_size; the archive must fit with room."""


CARRIED_PREFIX = "SLURM_COLLOC_CARRIED_"
"""Variables of the batch job that carry its members' environments: sbatch exports what begins with
SLURM_ whatever --export says, and Slurm keeps it as it keeps the environment of any job. The
template unsets them."""

_VARIABLE_BYTES = 96 * 1024
"""Of one variable: Linux takes 128 KiB (MAX_ARG_STRLEN, execve(2))."""

_ENVIRONMENTS_MOST_BYTES = 1024 * 1024
"""Of all of them: Linux takes a quarter of the stack limit, 2 MiB as a rule."""


def build_archive(packs: Path, pack_ids: Sequence[str]) -> str:
    """Pack directories as lines of base64, for a here-document; without members' environments.

    Args:
        packs: The directory that holds them.
        pack_ids: Their names.

    Raises:
        UsageProblem: They are too large for a batch script.
    """
    text = _archive(packs, pack_ids, lambda name: name != "env")
    if len(text) > SCRIPT_LIMIT_BYTES * 3 // 4:
        raise _build_refusal(text, "a batch script")
    return "\n".join(text[start : start + 120] for start in range(0, len(text), 120))


def build_carried_environment(packs: Path, pack_ids: Sequence[str]) -> dict[str, str]:
    """The members' environments as variables of the batch job, which holds no secret in its script.

    Args:
        packs: The directory that holds the packs.
        pack_ids: Their names.

    Raises:
        UsageProblem: They are too large for an environment.
    """
    text = _archive(packs, pack_ids, lambda name: name == "env")
    if len(text) > _ENVIRONMENTS_MOST_BYTES:
        raise _build_refusal(text, "the environment of a batch job")
    parts = range(0, len(text), _VARIABLE_BYTES)
    return {
        f"{CARRIED_PREFIX}{number:02d}": text[start : start + _VARIABLE_BYTES]
        for number, start in enumerate(parts)
    }


def _archive(packs: Path, pack_ids: Sequence[str], takes: Callable[[str], bool]) -> str:
    import tarfile

    def choose(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return entry if entry.isdir() or takes(os.path.basename(entry.name)) else None

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for pack_id in pack_ids:
            archive.add(packs / pack_id, arcname=f"packs/{pack_id}", filter=choose)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _build_refusal(text: str, where: str) -> UsageProblem:
    return UsageProblem(
        f"the jobs take {len(text) // 1024} KB, which is too much to travel in {where}",
        hint="submit fewer at a time, or set state_dir to a path that the nodes share",
    )
