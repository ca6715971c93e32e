"""Where the templates, the node hooks and the example site configuration lie.

In a checkout they are top-level folders. The wheel carries them inside the package, in `_data`.
An editable install leaves a second copy in site-packages, which goes stale; it is never read,
because the imported package is the one in the checkout.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Literal

from slurm_colloc.errors import StateError

DataKind = Literal["templates", "hooks", "site-config"]

_PACKAGE = Path(__file__).resolve().parent


def data_path(kind: DataKind, name: str = "") -> Path:
    """Find one file (or folder) that comes with slurm_colloc.

    Args:
        kind: The top-level folder.
        name: A path inside it, with forward slashes; empty for the folder itself.

    Returns:
        An absolute path that exists.

    Raises:
        StateError: The file is missing, so the installation is incomplete.
        ValueError: The name is absolute or leads out of the folder.
    """
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise ValueError(f"not a name inside {kind}: {name}")
    path = choose_data_root(_PACKAGE) / kind / inside
    if not path.exists():
        raise StateError(
            f"this installation of slurm_colloc lacks {PurePosixPath(kind, inside)} "
            f"(looked for {path})",
            hint="install slurm_colloc again",
        )
    return path


def choose_data_root(package: Path) -> Path:
    """Say which folder holds the data folders of the package at `package`.

    A checkout is known by the `pyproject.toml` next to the package; no wheel installs that. There
    the top-level folders count, even where a `_data` was left in the package by hand.
    """
    checkout = package.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "templates").is_dir():
        return checkout
    return package / "_data"
