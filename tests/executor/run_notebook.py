"""docs/python.ipynb, run on a Slurm.

`python -m tests.executor.run_notebook` writes the outputs into it, on a fake Slurm.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from ..fake_slurm.cluster import FakeSlurm

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "python.ipynb"


def run_notebook(home: Path, environment: Mapping[str, str]) -> Any:
    """Run the notebook in a user's home; the notebook with outputs.

    Raises:
        CellExecutionError: A cell failed.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    client.execute(env={**os.environ, **environment}, cwd=str(home))
    return notebook


def main() -> None:
    """Write the outputs into the notebook."""
    with tempfile.TemporaryDirectory() as name:
        home, directory = Path(name, "home"), Path(name, "slurm")
        home.mkdir()
        directory.mkdir()
        slurm = FakeSlurm(directory)
        try:
            base = {
                "HOME": str(home),
                "PATH": os.environ["PATH"],
                "XDG_STATE_HOME": str(home / "s"),
            }
            notebook = run_notebook(home, {**base, **slurm.env(base)})
        finally:
            slurm.close()
    for cell in notebook.cells:
        cell.metadata.clear()
    notebook.metadata.clear()
    notebook.metadata.update(
        kernelspec={"name": "python3", "display_name": "Python 3", "language": "python"}
    )
    nbformat.write(notebook, NOTEBOOK)  # type: ignore[no-untyped-call]
    sys.stdout.write(f"{NOTEBOOK}\n")


if __name__ == "__main__":
    main()
