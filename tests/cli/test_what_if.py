"""`csub plan --what-if`: what is wrong is named as it was given, and not at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_plan import SMALL, LoginNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> LoginNode:
    return LoginNode(Path(tmp_path_factory.mktemp("node")))


SINFO = r"""#!/bin/sh
case "$*" in
*%N*) printf '%s\n' 'n1|gpu*|idle|gpu:h200:1|22.05|none' 'n2|gpu*|mixed|gpu:h200:1|22.05|none' \
    'n3|gpu*|down*|gpu:h200:8|22.05|broken' 'n4|other|idle|gpu:h200:8|22.05|none' ;;
*) echo 'gpu*|64|512000|gpu:h200:4|1-00:00:00|n/a' ;;
esac
"""


def test_the_end_of_the_last_job_goes_by_the_gpus_that_there_are(tmp_path: Path) -> None:
    node = LoginNode(tmp_path)
    sinfo = node.home / "bin" / "sinfo"
    sinfo.write_text(SINFO)
    node.learn_small()
    words = ("--what-if=degree=2", "--array=1-12", "--degree=4", SMALL)
    plan = node.plan(*words)
    # Three packs on two GPUs, six packs on two GPUs: nodes that are down or elsewhere do not count.
    own, changed = plan["packs"], plan["what_if"]["packs"]
    assert (len(own), len(changed)) == (3, 6)
    for packs, figures, rounds in (
        (own, plan["figures"], 2), (changed, plan["what_if"]["figures"], 3)
    ):  # fmt: skip
        each = max(pack["predicted_finish_s"] for pack in packs)
        assert figures["finish_s"] == pytest.approx(rounds * each, rel=0.01)
    sinfo.write_text(SINFO.replace("%N", "nothing"))
    assert node.plan(*words)["figures"]["finish_s"] == pytest.approx(
        max(pack["predicted_finish_s"] for pack in own), rel=0.01
    )


def test_a_pack_of_a_node_is_shown_alongside(tmp_path: Path) -> None:
    node = LoginNode(tmp_path)
    words = ("--what-if=gpus-per-pack=node", "--array=1-12", SMALL)
    plan = node.plan(*words)
    assert (plan["figures"]["packs"], plan["figures"]["gpus"]) == (3, 3)
    changed = plan["what_if"]
    assert (changed["figures"]["packs"], changed["figures"]["gpus"]) == (1, 4)
    assert [len(pack["members"]) for pack in changed["packs"]] == [3] * 4
    shown = node.csub("plan", *words).stdout
    assert [line.split() for line in shown.splitlines() if line.startswith("GPUs ")] == [
        ["GPUs", "3", "4"]
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("goal=fame", "goal='fame' is none of throughput, latency, energy"),
        ("mode=\x1b[1m", "mode='\\x1b[1m' is none of "),
        (f"goal={'x' * 5000}", f"goal='{'x' * 57}...' is none of "),
        (f"degree={'9' * 5000}", f"degree='{'9' * 57}...': a number of at most 18 digits"),
        (f"max-slowdown={'1' * 5000}", f"max-slowdown='{'1' * 57}...': a number from 1 to 100"),
        (f"gpu-mem={'1' * 5000}", f"gpu-mem='{'1' * 57}...': '{'1' * 57}...' is not a GPU memory"),
        (
            "gpus-per-pack=many",
            "gpus-per-pack='many': a number from 1 to 64, node or auto is needed",
        ),
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
