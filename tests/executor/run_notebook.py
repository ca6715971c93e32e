"""docs/python.ipynb, run on a Slurm.

`python -m tests.executor.run_notebook` writes the outputs into it, on a fake Slurm.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..fake_slurm.cluster import FakeSlurm
from ..notebooks import DOCUMENTATION, execute_notebook, write_notebook

NOTEBOOK = DOCUMENTATION / "python.ipynb"


def run_notebook(home: Path, environment: Mapping[str, str]) -> Any:
    """Run the notebook in a user's home; the notebook with outputs.

    Raises:
        CellExecutionError: A cell failed.
    """
    return execute_notebook(NOTEBOOK, home, {**os.environ, **environment})


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
    write_notebook(NOTEBOOK, notebook)


if __name__ == "__main__":
    main()
