"""The notebooks of the documentation: run, compared with what they show, and written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

DOCUMENTATION = Path(__file__).resolve().parents[1] / "docs"


def read_notebook(path: Path) -> Any:
    """A notebook as it is kept."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def execute_notebook(path: Path, home: Path, environment: Mapping[str, str]) -> Any:
    """Run a notebook in a directory; the notebook with outputs.

    Raises:
        CellExecutionError: A cell failed.
    """
    notebook = read_notebook(path)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    client.execute(env=dict(environment), cwd=str(home))
    return notebook


def list_outputs(notebook: Any) -> list[str]:
    """What each cell of code prints or shows, as text."""
    return [
        "".join(
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def write_notebook(path: Path, notebook: Any) -> None:
    """Keep a notebook with its outputs, without what differs at each run."""
    for cell in notebook.cells:
        cell.metadata.clear()
    notebook.metadata.clear()
    notebook.metadata.update(
        kernelspec={"name": "python3", "display_name": "Python 3", "language": "python"}
    )
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    sys.stdout.write(f"{path}\n")
