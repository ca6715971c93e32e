"""NVML asked in a fork: when it touches the driver, what it keeps open, and how it fails."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.host.nvml.nvml_fork import ForkedQuestion
from slurm_colloc.host.system.node_processes import identify

from .conftest import PATIENCE_S
from .test_nvml import BINDINGS, UUIDS, WHOLE

# Which process has come how far, and what it has then.
_NOTES = """
import os
HERE = os.path.dirname(__file__)
def note(name, text): open(os.path.join(HERE, name), "w").write(text)
note("imported", str(os.getpid()))
_init = nvmlInit
def nvmlInit():
    paths = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    kinds = [os.readlink(path) for path in paths if os.path.lexists(path)]
    note("initialised", "\\n".join([*sorted(os.environ), "", *kinds]))
    _init()
_count = nvmlDeviceGetCount
def nvmlDeviceGetCount():
    note("read", "")
    return _count()
"""


@pytest.fixture
def bindings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Bindings that only a fork of this process imports."""
    # Other tests of this process may have loaded the real ones.
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    (tmp_path / "pynvml.py").write_text(BINDINGS + _NOTES)
    (tmp_path / "facts.json").write_text(json.dumps({"gpus": [WHOLE]}))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def ask(timeout_s: float = PATIENCE_S) -> str:
    question = ForkedQuestion("", "node")
    try:
        return question.ask(timeout_s).problem
    finally:
        question.close()


def test_it_answers_as_a_program_of_its_own_does(bindings: Path) -> None:
    question = ForkedQuestion("", "node")
    question.prepare()
    answer = question.ask(PATIENCE_S)
    question.close()
    assert (answer.problem, [gpu.uuid for gpu in answer.gpus]) == ("", [UUIDS[0]])
    pid = int((bindings / "imported").read_text())
    assert pid != os.getpid()
    assert "pynvml" not in sys.modules


def test_the_driver_is_not_touched_before_it_is_prepared(bindings: Path) -> None:
    question = ForkedQuestion("", "node")
    question.close()
    assert not (bindings / "initialised").exists()
    assert ask() == ""
    assert (bindings / "initialised").exists()


def test_the_gpus_are_read_once_they_are_requested_and_not_before(bindings: Path) -> None:
    question = ForkedQuestion("", "node")
    question.prepare()
    wait_for(bindings / "initialised")
    assert not (bindings / "read").exists()
    question.request()
    question.request()
    wait_for(bindings / "read")
    answer = question.ask(PATIENCE_S)
    question.close()
    assert (answer.problem, len(answer.gpus)) == ("", 1)


def test_it_has_nothing_of_the_hooks_but_its_memory(bindings: Path) -> None:
    kept = bindings / "lock"
    with kept.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        assert ask() == ""
    seen = (bindings / "initialised").read_text()
    names, _, kinds = seen.partition("\n\n")
    assert set(names.split()) <= {"LANG", "PATH", "LC_CTYPE"}
    assert str(kept) not in kinds
    assert {kind.partition(":")[0] for kind in kinds.split()} <= {"pipe", "/dev/null"}


def test_one_that_hangs_is_ended_at_its_limit(bindings: Path) -> None:
    (bindings / "facts.json").write_text(json.dumps({"hangs": True}))
    assert ask(0.5) == "NVML gave no answer within 0.5 s"
    if (bindings / "imported").exists():
        assert identify(int((bindings / "imported").read_text())) is None


def test_one_that_has_no_nvml_says_why(bindings: Path) -> None:
    (bindings / "facts.json").write_text(json.dumps({"absent": True}))
    assert ask() == "NVML cannot be used: NVML Shared Library Not Found"


def test_bindings_that_fail_are_told_with_the_exit_status(bindings: Path) -> None:
    (bindings / "pynvml.py").write_text("raise RuntimeError('broken bindings')")
    assert ask() == "the process that asks NVML failed with exit status 1"


def test_no_bindings_at_all_are_told(bindings: Path) -> None:
    (bindings / "pynvml.py").write_text("raise ImportError")
    assert ask().startswith("nvidia-ml-py is not installed for ")
