"""The notebook of the documentation runs, and says what it says there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..recordings.recorded import H200

pytest.importorskip("nbclient")
pytestmark = [
    pytest.mark.skipif(not H200.exists(), reason="an sdist has no recordings"),
    # The kernel's own libraries.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def test_the_notebook_says_what_the_documentation_shows(tmp_path: Path) -> None:
    from ..notebooks import DATA, list_outputs, read_notebook, run_data_notebook

    kept = list_outputs(read_notebook(DATA))
    found = list_outputs(run_data_notebook(tmp_path))
    assert found == kept
    assert len(found) >= 5
    assert "timeslice    1.99" in found[2]
