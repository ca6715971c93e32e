"""The notebook of the documentation runs, and says what it says there."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ..cluster.conftest import CsubUser

pytest.importorskip("nbclient")
# The kernel's own libraries.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def list_outputs(notebook: Any) -> list[str]:
    """What each cell of code prints or shows, as text; ids of jobs are those of the cluster."""
    texts = [
        "".join(
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    return [re.sub(r"\b\d+(?=[/_])", "N", text) for text in texts]


def test_the_notebook_says_what_the_documentation_shows(user: CsubUser) -> None:
    import nbformat

    from .run_notebook import NOTEBOOK, run_notebook

    kept = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    found = list_outputs(run_notebook(user.home, user.environment))
    assert found == list_outputs(kept)
    assert "ValueError: lr=0.9 diverges" in "".join(found)
    assert len(found) >= 5
