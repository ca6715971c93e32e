"""The notebook of the documentation runs, and says what it says there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..recordings.recorded import H200

pytest.importorskip("nbclient")
pytestmark = [
    pytest.mark.skipif(not H200.exists(), reason="an sdist has no recordings"),
    # The kernel's own libraries.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


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


def test_the_notebook_says_what_the_documentation_shows(tmp_path: Path) -> None:
    import nbformat

    from .run_notebook import NOTEBOOK, run_notebook

    kept = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    found = list_outputs(run_notebook(tmp_path))
    assert found == list_outputs(kept)
    assert len(found) >= 5
    assert "timeslice    1.99" in found[2]
