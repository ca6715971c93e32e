"""Waits of earlier jobs, read from sacct.

Where these tests run nothing is accounted, so the answers of an accounting database are written
after those that tests/accounting gets of a real one; the refusal is sacct's own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_colloc.model.plan import LEAST_JOBS, PastJob, build_wait_table, choose_bucket
from slurm_colloc.slurm.accounting import count_gpus, parse_history, read_history

TEXT = """\
billing=4,cpu=4,gres/gpu:h200=1,gres/gpu=1,mem=16G,node=1|60|1760000000|1760000090|Dependency
billing=4,cpu=4,gres/gpu=2,mem=16G,node=1|1440|1760000000|1760003600|None
billing=8,cpu=8,gres/gpu:a100=1,gres/gpu:h200=1,mem=16G,node=1|UNLIMITED|1760000000|1760000000|None
billing=8,cpu=8,gres/gpu=1,mem=16G,node=1|Partition_Limit|1760000000|1760000060|None
billing=4,cpu=4,mem=16G,node=1|60|1760000000|1760000090|None
billing=4,cpu=4,gres/gpu=1,mem=16G,node=1|60|1760000000|Unknown|None
billing=4,cpu=4,gres/gpu=1,mem=16G,node=1|60|Unknown|1760000000|None
billing=4,cpu=4,gres/gpu=1,mem=16G,node=1|60|0|1760000000|None
billing=4,cpu=4,gres/gpu=1,mem=16G,node=1|60|1760000090|1760000000|None
billing=4,cpu=4,gres/gpu=1
billing=4,cpu=4,gres/gpu=1,mem=16G,node=1|60|²|1760000000|None
billing=4,cpu=4,gres/gpu=1,mem=16G,node=1|60|1760000000|17600000000000|None
billing=4,cpu=4,gres/gpu=1234567890123,mem=16G,node=1|60|1760000000|1760000060|None
billing=4,cpu=4,gres/gpu=1,mem=16G,node=1|60|1760000000|1760009999|QOSGrpGRES
billing=4,cpu=4,gres/gpu=1,mem=16G,node=1|60|1760000000|1760009999|AssocGrpCpuLimit
billing=4,cpu=4,gres/gpu=1,mem=16G,node=1|60|1760000000|None|JobHeldUser
sacct: warning: something|else
"""


def test_jobs_that_waited_for_gpus_are_read() -> None:
    assert parse_history(TEXT) == [
        PastJob(1, 3600, 90.0),
        PastJob(2, 86400, 3600.0),
        PastJob(2, None, 0.0),
        PastJob(1, None, 60.0),
    ]


NUMBERS = st.sampled_from(["²", "٣", "9" * 400, "9" * 5000, "60", "0", "", "-1"])


# What stands in one line, together with what stands in others.
COLUMNS = zip(*(line.split("|") for line in TEXT.splitlines() if line.count("|") == 4), strict=True)
LINES = st.tuples(*(st.sampled_from(sorted(set(column))) for column in COLUMNS)).map("|".join)


@given(st.text() | st.lists(LINES, max_size=20).map("\n".join))
def test_whatever_sacct_prints_is_read_or_left_out(text: str) -> None:
    for job in parse_history(text):
        assert job.gpus > 0
        assert job.wait_s >= 0


@given(st.lists(NUMBERS, min_size=4, max_size=4))
@example(["60", "60", "60", "60"])
@example(["60", "²", "60", "60"])
def test_whatever_stands_for_a_number_is_read_or_left_out(words: list[str]) -> None:
    gpus, limit, eligible, start = words
    found = parse_history(f"cpu=4,gres/gpu={gpus}|{limit}|{eligible}|{start}|None\n")
    assert len(found) == (gpus == eligible == start == "60")
    for job in found:
        assert (job.gpus, job.time_limit_s, job.wait_s) == (
            60,
            3600 if limit == "60" else 0 if limit == "0" else None,
            0.0,
        )


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [("", 0), ("cpu=4", 0), ("gres/gpu=3", 3), ("gres/gpu:a=1,gres/gpu:b=2", 3),
     ("gres/gpu=2,gres/gpu:a=2", 2), ("gres/gpumem=80G,gres/gpu=1", 1), ("gres/gpuutil=5", 0)],
)  # fmt: skip
def test_gpus_are_counted_once(tres: str, gpus: int) -> None:
    assert count_gpus(tres) == gpus


REFUSED = "Problem talking to the database: Connection refused"


def put(folder: Path, body: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "sacct").write_text(f"#!/bin/sh\n{body}\n")
    (folder / "sacct").chmod(0o755)
    return {"PATH": f"{folder}:{os.defpath}"}


def test_sacct_is_asked_once_for_a_partition_and_times_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"echo \"$@\" $SLURM_TIME_FORMAT >>{tmp_path}/asked\ncat <<'X'\n{TEXT}X"
    environment = put(tmp_path / "bin", body)
    monkeypatch.setenv("PATH", environment["PATH"])
    jobs, unknown = read_history("gpu", environment=environment)
    assert (len(jobs), unknown) == (4, "")
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert "--partition=gpu" in asked
    assert "--starttime=now-30days" in asked
    assert asked.endswith(" %s")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo 'Slurm accounting storage is disabled' >&2; exit 1", "Slurm keeps no accounts here"),
        ("echo 'sacct: error: no' >&2; exit 1", "sacct failed: sacct: no"),
        (
            f"printf 'sacct: error: %s\\n' 'PersistInit: {REFUSED}' '{REFUSED}' >&2; exit 1",
            f"Slurm's accounting does not answer: {REFUSED}",
        ),
        ("exec sleep 60", "sacct gave no answer within 0.2 s"),
        ("true", ""),
    ],
)
def test_an_accounting_that_does_not_answer_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    environment = put(tmp_path / "bin", body)
    monkeypatch.setenv("PATH", environment["PATH"])
    assert read_history(
        None, environment=environment, timeout_s=0.2 if "sleep" in body else 30
    ) == (
        [],
        why,
    )


@pytest.mark.smoke
@pytest.mark.slurm
@pytest.mark.skipif(shutil.which("sacct") is None, reason="Slurm's commands are not installed")
def test_sacct_takes_the_question_and_says_that_nothing_is_accounted(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\n"
        "ProctrackType=proctrack/linuxproc\nNodeName=node1 CPUs=1\nPartitionName=all Nodes=ALL\n"
    )
    environment = {"SLURM_CONF": str(conf), "PATH": os.environ["PATH"]}
    found = read_history("all", environment=environment, timeout_s=30)
    assert found == ([], "Slurm keeps no accounts here")


def test_an_estimate_is_of_the_finest_cell_with_enough_jobs() -> None:
    short = [PastJob(1, 3600, float(wait)) for wait in range(LEAST_JOBS)]
    long = [PastJob(1, 86400, 10_000.0)] * (LEAST_JOBS - 1)
    table = build_wait_table([*short, *long])
    found = table.estimate(1, 1800)
    assert found is not None
    assert (found.jobs, found.of) == (20, "1 GPU and at most 1 h")
    assert found.median_s == pytest.approx(9.5)
    assert found.p90_s == pytest.approx(17.1)
    coarser = table.estimate(1, 86400)
    assert coarser is not None
    assert (coarser.jobs, coarser.of, coarser.p90_s) == (39, "1 GPU", 10_000)
    other = table.estimate(4, None)
    assert other is not None
    assert other.of == "any request"


def test_few_jobs_make_no_estimate() -> None:
    table = build_wait_table([PastJob(1, 3600, 1.0)] * 7)
    assert table.estimate(1, 3600) is None
    assert table.unknown == "7 jobs in sacct"
    assert build_wait_table([]).unknown == "0 jobs in sacct"


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=2))
def test_a_longer_limit_is_in_no_earlier_bucket(limits: list[int]) -> None:
    low, high = sorted(limits)
    assert choose_bucket(low) <= choose_bucket(high) <= choose_bucket(None)
