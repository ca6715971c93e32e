"""docs/data.ipynb, run on the recorded packs.

`python -m tests.report.run_notebook` writes the outputs into it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ..notebooks import DOCUMENTATION, execute_notebook, write_notebook
from ..recordings.recorded import NAMES, RECORDED

NOTEBOOK = DOCUMENTATION / "data.ipynb"


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
    environment = {**os.environ, "HOME": str(home), "SLURM_COLLOC_SETTINGS": os.devnull}
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        environment.pop(name, None)
    return execute_notebook(NOTEBOOK, home, environment)


def main() -> None:
    """Write the outputs into the notebook."""
    with tempfile.TemporaryDirectory() as home:
        notebook = run_notebook(Path(home))
    write_notebook(NOTEBOOK, notebook)


if __name__ == "__main__":
    main()
