from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.job import SignalRequest
from slurm_colloc.model.job_values import compute_captured, split_export
from slurm_colloc.model.quantities import parse_signal, parse_signal_request

ENVIRONMENT = {"HOME": "/home/ada", "PATH": "/bin", "SPACE": "a b", "EMPTY": ""}


# sbatch(1), --export.
@pytest.mark.parametrize(
    ("export", "expected"),
    [
        (None, ENVIRONMENT),
        ("ALL", ENVIRONMENT),
        ("NONE", {}),
        ("NIL", {}),
        ("HOME", {"HOME": "/home/ada"}),
        ("HOME,EMPTY", {"HOME": "/home/ada", "EMPTY": ""}),
        ("HOME=/x", {"HOME": "/x"}),
        ("NEW=1,HOME", {"NEW": "1", "HOME": "/home/ada"}),
        ("ALL,NEW=1", {**ENVIRONMENT, "NEW": "1"}),
        ("ALL,HOME=/x", {**ENVIRONMENT, "HOME": "/x"}),
        ("UNSET", {}),
        ("all,NEW=1", {**ENVIRONMENT, "NEW": "1"}),
        ("LIST='a,b',HOME", {"LIST": "'a,b'", "HOME": "/home/ada"}),
        ("'LIST=a,b',HOME", {"LIST": "a,b", "HOME": "/home/ada"}),
        ('"LIST=a,b"', {"LIST": "a,b"}),
        ('ALL,CFG={"lr":0.1}', {**ENVIRONMENT, "CFG": '{"lr":0.1}'}),
        ("CFG=don't", {"CFG": "don't"}),
        ("CFG=don't,HOME", {"CFG": "don't,HOME"}),
        ("HOME=/x,ALL", ENVIRONMENT),
        ("EQUALS=a=b", {"EQUALS": "a=b"}),
        ("NOTHING=", {"NOTHING": ""}),
    ],
)
def test_what_export_lets_through(export: str | None, expected: dict[str, str]) -> None:
    assert compute_captured(ENVIRONMENT, export) == expected


def test_variables_of_an_outer_job_stay_outside() -> None:
    outer = {
        "SLURM_JOB_ID": "1",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURMD_NODENAME": "n",
        "SBATCH_PARTITION": "gpu",
        "SRUN_DEBUG": "3",
        "PMI_RANK": "0",
        "PMIX_RANK": "0",
    }
    client = {"SLURM_CONF": "/etc/slurm.conf"}
    captured = compute_captured({**ENVIRONMENT, **outer, **client}, None)
    assert captured == {**ENVIRONMENT, **client}


@given(words=st.lists(st.text("abc=", min_size=1), min_size=1))
def test_words_without_quotes_are_split_at_commas(words: list[str]) -> None:
    assert split_export(",".join(words)) == words


@pytest.mark.parametrize("text", ["USR1", "SIGUSR1", "usr1", "sigusr1", "10"])
def test_signals_as_kill_writes_them(text: str) -> None:
    assert parse_signal(text) == signal.SIGUSR1


@pytest.mark.parametrize(
    "text", ["", "0", "USR9", "SIG", "-1", "99", "1.5", "²", "SEGV", "9" * 5000]
)
def test_what_is_no_signal(text: str) -> None:
    with pytest.raises(ValueError, match="there is no signal"):
        parse_signal(text)


# sbatch(1), --signal.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("USR1", (10, 60, False)),
        ("B:USR1", (10, 60, True)),
        ("USR1@120", (10, 120, False)),
        ("B:SIGUSR2@30", (12, 30, True)),
        ("R:USR1@5", (10, 5, False)),
        ("RB:10@65535", (10, 65535, True)),
        ("BR:15@0", (15, 0, True)),
        ("b:usr1", (10, 60, True)),
        ("USR1@", (10, 0, False)),
        ("40", (40, 60, False)),
    ],
)
def test_requests_for_a_signal(text: str, expected: tuple[int, int, bool]) -> None:
    assert parse_signal_request(text) == SignalRequest(*expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@60",
        "X:USR1",
        "USR1@65536",
        "USR1@1m",
        "B:",
        "B",
        "USR1@\u0663",
        f"USR1@{'9' * 5000}",
    ],
)
def test_what_is_no_request_for_a_signal(text: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form|at most 65535|there is no signal"):
        parse_signal_request(text)
