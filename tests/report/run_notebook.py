"""docs/data.ipynb, run on the recorded packs.

`python -m tests.report.run_notebook` writes the outputs into it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from ..recordings.recorded import NAMES, RECORDED

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "data.ipynb"


def run_notebook(home: Path) -> Any:
    """Run the notebook as a user whose packs are the recorded ones; the notebook with outputs.

    Args:
        home: The user's home, which is empty.

    Raises:
        CellExecutionError: A cell failed.
    """
    state = home / ".local" / "state" / "slurm_colloc"
    state.mkdir(parents=True)
    for name in NAMES:
        RECORDED[name].place(state)
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    environment = {**os.environ, "HOME": str(home), "SLURM_COLLOC_SETTINGS": os.devnull}
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        environment.pop(name, None)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    client.execute(env=environment, cwd=str(home))
    return notebook


def main() -> None:
    """Write the outputs into the notebook."""
    with tempfile.TemporaryDirectory() as home:
        notebook = run_notebook(Path(home))
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
