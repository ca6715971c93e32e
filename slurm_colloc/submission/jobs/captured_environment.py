"""The environment that a job takes along, by --export and --export-file; reads that file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.sbatch.export import compute_captured
from slurm_colloc.slurm.options import Options


def capture_environment(options: Options, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that a job takes along, by --export and --export-file.

    Raises:
        UsageProblem: The file of --export-file cannot be read.
    """
    path = options.text("export-file")
    if path is None:
        return compute_captured(environ, options.text("export"))
    try:
        with open(path, "rb") as file:
            items = file.read().split(b"\0")
    except OSError as error:
        raise UsageProblem(
            f"{options.origin('export-file')}: --export-file={path}: "
            f"{os.strerror(error.errno or 0)}"
        ) from error
    pairs = (
        item.decode("utf-8", "surrogateescape").partition("=") for item in items if b"=" in item
    )
    exported = compute_captured(environ, "NIL")
    # No process can be given a variable without a name.
    return exported | {name: value for name, _, value in pairs if name}
