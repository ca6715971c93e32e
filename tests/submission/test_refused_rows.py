"""Which cells of a table sbatch's words are about, by what Slurm 22.05 says."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.slurm.options import parse_command_line
from slurm_colloc.submission.jobs.table_formats import combine, parse_table
from slurm_colloc.submission.jobs.table_rows import RowReader, TableJob, locate_refusal


def read_jobs(text: str, directory: Path) -> list[TableJob]:
    line = parse_command_line(["--gres=gpu:1", "--nice=7"])
    reader = RowReader(line, {}, str(directory), "table")
    return reader.read(combine(parse_table(text, "jobs.csv")))


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("requeue", "maybe", "option '--requeue' doesn't allow an argument"),
        ("begin", "foo", "Invalid time specification (pos=0): foo; Invalid --begin specification"),
        ("switches", "x", 'Invalid numeric value "x" for --switches.'),
        ("nodes", "x", '"x" is not a valid node count'),
        ("hint", "foo", 'unrecognized --hint argument "foo", see --hint=help'),
        ("time-min", "x", "Invalid --time-min specification"),
        ("dependency", "foo:1", "Batch job submission failed: Job dependency problem"),
        ("licenses", "foo", "Batch job submission failed: Invalid license specification"),
        ("constraint", "foo", "Batch job submission failed: Invalid feature specification"),
        ("exclude", "nope", "Batch job submission failed: Invalid node name specified"),
        ("reservation", "foo", "Batch job submission failed: Requested reservation is invalid"),
    ],
)
def test_the_column_is_the_one_that_sbatch_speaks_of(
    column: str, value: str, told: str, tmp_path: Path
) -> None:
    text = f"command,wckey,time,{column}\ntrue,w,3,\ntrue,w,3,{value}\n"
    argv = ("sbatch", "--time=3", "--nice=7", "--wckey=w", f"--{column}={value}", "x.sh")
    place = locate_refusal(read_jobs(text, tmp_path), argv, told)
    assert place == f"jobs.csv:3, column {column}"


def test_where_it_names_none_all_columns_that_it_was_given_are_told(tmp_path: Path) -> None:
    jobs = read_jobs("command,wckey,qos,gpu-mem\ntrue,w,q,1G\ntrue,w,r,1G\n", tmp_path)
    argv = ("sbatch", "--nice=7", "--wckey=w", "--qos=r")
    assert locate_refusal(jobs, argv, "no") == "jobs.csv:3, columns qos and wckey"
    # What the command line said is no cell.
    assert locate_refusal(jobs, ("sbatch", "--nice=7"), "Invalid --nice") == ""
    assert locate_refusal(jobs, (), "there is no array") == ""
