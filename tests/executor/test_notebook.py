"""The notebook of the documentation runs, and says what it says there."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from ..bed import CsubUser

pytest.importorskip("nbclient")
# The kernel's own libraries.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


def leave_out_ids(texts: Iterable[str]) -> list[str]:
    """Ids of jobs are those of the cluster."""
    return [re.sub(r"\b\d+(?=[/_])", "N", text) for text in texts]


def test_the_notebook_says_what_the_documentation_shows(user: CsubUser) -> None:
    from ..notebooks import PYTHON, list_outputs, read_notebook, run_python_notebook

    kept = list_outputs(read_notebook(PYTHON))
    found = list_outputs(run_python_notebook(user.home, user.environment))
    assert leave_out_ids(found) == leave_out_ids(kept)
    assert "ValueError: lr=0.9 diverges" in "".join(found)
    assert len(found) >= 5
