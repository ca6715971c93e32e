"""`csub plan --what-if`: what is wrong is named as it was given, and not at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_plan import SMALL, LoginNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> LoginNode:
    return LoginNode(Path(tmp_path_factory.mktemp("node")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("goal=fame", "goal='fame' is none of throughput, latency, energy"),
        ("policy=mine", "policy='mine' is none of csub, "),
        ("mode=\x1b[1m", "mode='\\x1b[1m' is none of "),
        (f"goal={'x' * 5000}", f"goal='{'x' * 57}...' is none of "),
        (f"degree={'9' * 5000}", f"degree='{'9' * 57}...': a number of at most 18 digits"),
        (f"max-slowdown={'1' * 5000}", f"max-slowdown='{'1' * 57}...': a number from 1 to 100"),
        (f"gpu-mem={'1' * 5000}", f"gpu-mem='{'1' * 57}...': '{'1' * 57}...' is no GPU memory"),
        (f"{'x' * 5000}=1", f"there is no '{'x' * 57}...'"),
        (f"{'x' * 5000}", f"'{'x' * 57}...' has no value"),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_change_is_named_as_it_was_given(node: LoginNode, change: str, said: str) -> None:
    done = node.csub("plan", f"--what-if={change}", SMALL)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"csub: error: --what-if: {said}")
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 500
