"""The batch script of a pack, from templates/pack.sbatch.j2."""

from __future__ import annotations

import os
import shlex

from slurm_colloc.errors import UsageProblem
from slurm_colloc.resources import data_path

TEMPLATE = "pack.sbatch.j2"


def render_batch_script(
    *, title: str, version: str, pack_path: str, is_array: bool, python: str, templates_dir: str
) -> str:
    """Render the batch script.

    Args:
        title: For the reader: what the pack is.
        version: Version of slurm_colloc.
        pack_path: Path of the submission's packs without their index.
        is_array: The packs are elements of a job array.
        python: Interpreter on the nodes.
        templates_dir: A site's own templates, looked at first; empty for none.

    Raises:
        UsageProblem: The site's template is wrong.
    """
    import jinja2

    folders = [templates_dir] if templates_dir else []
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, str(data_path("templates"))]),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701  # a shell script: every value goes through `quote`
    )
    environment.filters["quote"] = shlex.quote
    environment.filters["comment"] = _one_line
    try:
        template = environment.get_template(TEMPLATE)
        return template.render(
            title=title,
            version=version,
            pack_path=pack_path,
            is_array=is_array,
            python=python,
        )
    except jinja2.TemplateError as error:
        where = os.path.join(templates_dir or str(data_path("templates")), TEMPLATE)
        line = getattr(error, "lineno", None)
        raise UsageProblem(
            f"{where}{f':{line}' if line else ''}: {error}",
            hint="templates_dir in the settings names the site's templates",
        ) from error


def _one_line(text: str) -> str:
    """Text that cannot leave a comment line."""
    return "".join(character if character.isprintable() else "?" for character in text)
