"""The notebooks of the documentation: run, compared with what they show, and written.

`python -m tests.notebooks` writes the outputs into them; docs/python.ipynb has a fake Slurm.
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

from .calls import UserWithoutSlurm
from .fake_slurm.cluster import FakeSlurm
from .recordings.recorded import NAMES, RECORDED

DOCUMENTATION = Path(__file__).resolve().parents[1] / "docs"
PYTHON, DATA = DOCUMENTATION / "python.ipynb", DOCUMENTATION / "data.ipynb"


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


def run_python_notebook(home: Path, environment: Mapping[str, str]) -> Any:
    """Run docs/python.ipynb in the home of a user of Slurm; the notebook with outputs."""
    return execute_notebook(PYTHON, home, {**os.environ, **environment})


def run_data_notebook(root: Path) -> Any:
    """Run docs/data.ipynb as a user who has the recorded packs; the notebook with outputs."""
    user = UserWithoutSlurm(root, SLURM_COLLOC_SETTINGS=os.devnull)
    for name in NAMES:
        RECORDED[name].place(user.state)
    environment = {**os.environ, **user.environment, "PATH": os.environ["PATH"]}
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        environment.pop(name, None)
    return execute_notebook(DATA, user.home, environment)


def main() -> None:
    """Write the outputs into the notebooks."""
    with tempfile.TemporaryDirectory() as name:
        write_notebook(DATA, run_data_notebook(Path(name)))
    with tempfile.TemporaryDirectory() as name:
        home, directory = Path(name, "home"), Path(name, "slurm")
        home.mkdir()
        directory.mkdir()
        slurm = FakeSlurm(directory)
        base = {"HOME": str(home), "PATH": os.environ["PATH"], "XDG_STATE_HOME": str(home / "s")}
        try:
            notebook = run_python_notebook(home, {**base, **slurm.env(base)})
        finally:
            slurm.close()
        write_notebook(PYTHON, notebook)


if __name__ == "__main__":
    main()
