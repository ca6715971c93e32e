"""What is wrong with a call from Python: one sentence each, and nothing submitted by half."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.executor import run_call
from slurm_colloc.executor.calls import (
    PythonCall,
    build_script,
    build_words,
    describe_arguments,
    find_calls,
    find_parameters,
    note_submitted,
    read_result,
    write_calls,
)
from slurm_colloc.executor.function_executor import Executor

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .conftest import list_slurm_jobs

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"grs": "gpu:1"}, "grs"),
        ({"gres": {"gpu": 1}}, "gres={'gpu': 1}: an option is a text, a number, True"),
        ({"array": "0-3"}, "--array is not for jobs from Python: map and map_array submit"),
        ({"wait": True}, "--wait is not for jobs from Python"),
        ({"zip": True}, "--zip is not for jobs from Python"),
        ({"sample": 3}, "--sample is not for jobs from Python"),
        ({"from": "params.csv"}, "--from is not for jobs from Python"),
        ({"resume": True}, "--resume is not for jobs from Python"),
        ({"watch": True}, "--watch is not for jobs from Python"),
        ({"job_name": "a\0b"}, "no option may hold a NUL"),
        ({"setup": "module load x"}, "setup='module load x': it is a list of lines"),
        ({"array_parallelism": "2"}, "array_parallelism='2': it is a number of calls"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_given(options: Any, sentence: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        Executor("calls", **options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["train.sh", 3, None])
def test_what_cannot_be_called_is_refused(tmp_path: Path, what: Any) -> None:
    executor = Executor(tmp_path / "calls")
    with pytest.raises(UsageProblem, match=f"{what!r} is not a function"):
        executor.map_array(what, [1])
    if what != "train.sh":
        with pytest.raises(UsageProblem, match="is not a function"):
            executor.submit(what)
    assert not (tmp_path / "calls").exists()


def test_a_wrong_value_is_refused_in_the_words_of_the_command_line(
    run_python: Run, user: CsubUser, slurm: FakeSlurm
) -> None:
    user.script("job.sh", "exit 0")
    said = user.csub("--time=abc", "job.sh", check=False)
    found = run_python("""
        try:
            Executor("calls", gres="gpu:1", time="abc").submit(abs, 1)
        except Exception as problem:
            answer([type(problem).__name__, str(problem), list(Path("calls").glob("*"))])
    """)
    assert said.stderr == f"csub: error: {found[1]}\n"
    assert found[0] == "UsageProblem"
    # The directory of the calls is taken back.
    assert found[2] == []
    assert list_slurm_jobs(slurm) == []


def test_what_cannot_be_pickled_is_named(run_python: Run, slurm: FakeSlurm) -> None:
    found = run_python("""
        import threading

        try:
            Executor("calls", gres="gpu:1").map_array(print, [1, threading.Lock()])
        except Exception as problem:
            answer([str(problem), Path("calls").exists()])
    """)
    assert found[0].startswith("the call of builtins.print cannot be pickled: TypeError: ")
    assert "\n" not in found[0]
    assert found[1] is False
    assert list_slurm_jobs(slurm) == []


def test_results_that_cannot_come_back_say_so(run_python: Run) -> None:
    found = run_python("""
        import threading

        class Odd(Exception):
            def __reduce__(self):
                raise TypeError("not me")

        def lock():
            return threading.Lock()

        def odd():
            raise Odd("why")

        executor = Executor("calls", gres="gpu:1", time=5)
        jobs = [executor.submit(lock), executor.submit(odd)]
        errors = [job.exception(60) for job in jobs]
        answer([[type(error).__name__, str(error)] for error in errors])
    """)
    (first, text), (second, other) = found
    assert first == second == "MemberFailed"
    assert "the result cannot be pickled: TypeError" in text
    assert other.endswith("Odd: why")


def test_a_pickle_of_another_python_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_calls(tmp_path, [PythonCall(abs, (1,), {})], name="abs", script=b"")
    path = directory / "0.call"
    line, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps({**json.loads(line), "python": "3.6"}).encode() + b"\n" + rest)
    monkeypatch.setenv(run_call.VARIABLE, str(directory / "0"))
    with pytest.raises(run_call.Refused) as caught:
        run_call.main()
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert str(caught.value).startswith(
        f"the call was pickled by Python 3.6 and cannot be run by {own} ({sys.executable})"
    )
    assert not (directory / "0.result").exists()


def test_a_result_of_another_python_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "0.result").write_bytes(b'{"outcome": "value", "python": "3.6"}\n(junk')
    found = read_result(tmp_path, 0, "4711/1")
    assert found is not None
    assert "the result of 4711/1 was written by Python 3.6" in str(found[1])


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]\n", b'{"outcome": "value"}\n', b'{"python": 3}\n']
)
def test_a_damaged_result_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "0.result").write_bytes(content)
    found = read_result(tmp_path, 0, "4711/1")
    assert found is not None
    assert f"the result of 4711/1 is damaged: {tmp_path}/0.result" in str(found[1])


def test_a_cut_pickle_is_one_sentence(tmp_path: Path) -> None:
    head = json.dumps({"outcome": "value", "python": run_call.OWN_PYTHON}).encode()
    (tmp_path / "0.result").write_bytes(head + b"\n\x80\x05\x95")
    found = read_result(tmp_path, 0, "4711/1")
    assert found is not None
    assert str(found[1]).startswith("the result of 4711/1 cannot be loaded here: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_files_of_another_user_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_calls(tmp_path, [PythonCall(abs, (1,), {})], name="abs", script=b"")
    (directory / "0.result").write_bytes(b'{"outcome": "value", "python": "3.11"}\n')
    for path in directory.glob("0.*"):
        os.chown(path, 12345, 12345)
    found = read_result(directory, 0, "4711/1")
    assert found is not None
    assert f"is not loaded: {directory}/0.result: it belongs to uid 12345" in str(found[1])
    monkeypatch.setenv(run_call.VARIABLE, str(directory / "0"))
    with pytest.raises(run_call.Refused, match="is a file of another user, and is not run"):
        run_call.main()


def test_calls_are_for_their_user_alone(tmp_path: Path) -> None:
    directory = write_calls(tmp_path, [PythonCall(abs, (1,), {})], name="abs", script=b"")
    assert directory.stat().st_mode & 0o077 == 0
    assert (directory / "0.call").stat().st_mode & 0o077 == 0


def test_a_job_is_found_by_its_id_alone(tmp_path: Path) -> None:
    directory = write_calls(tmp_path, [PythonCall(abs, (n,), {}) for n in range(3)], name="a",
                            script=b"")  # fmt: skip
    note_submitted(directory, "4711", [0, 1, 2])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "submitted.json").write_text("{")
    assert find_calls(tmp_path, "4711", 2) == (directory, 2, 2)
    with pytest.raises(Exception, match="holds no call of job 4711/7"):
        find_calls(tmp_path, "4711", 7)


def test_words_are_those_of_the_command_line() -> None:
    options = {"gres": "gpu:1", "gpu_mem": "10G", "requeue": True, "exclusive": False, "time": 10,
               "nodelist": ["a", "b"], "chdir": Path("/x"), "account": None}  # fmt: skip
    assert build_words(options) == [
        "--gres=gpu:1", "--gpu-mem=10G", "--requeue", "--time=10", "--nodelist=a,b", "--chdir=/x",
    ]  # fmt: skip


def test_arguments_are_shown_harmless_and_short() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError

    assert describe_arguments(print, ("a\x1b[31m", 0.1, object(), Shy()), {"name": "x" * 500}) == (
        "a\\x1b[31m",
        "0.1",
        "<object object>",
        "<Shy instance>",
        f"name={'x' * 117}...",
    )


def test_arguments_with_a_name_are_parameters() -> None:
    words = ("lr=0.1", "+optim.bs=32", "plain", "a b=3", "=4", "x=")
    assert find_parameters(words) == (("lr", "0.1"), ("optim.bs", "32"), ("x", ""))


def test_a_script_is_quoted() -> None:
    script = build_script("m.f", "/a b/python", ["module load x"]).decode()
    assert "module load x\nexec '/a b/python' -u " in script
