"""How findings are shown to people and to programs."""

from __future__ import annotations

import json

from slurm_colloc.cli.doctor_command import build_json, render, render_summary
from slurm_colloc.diagnosis.login_findings import JobOutcome, green, red, unknown, yellow

FINDINGS = [
    green("csub", "0.1.0", version="0.1.0"),
    yellow("hooks", "none on n1", "root's daemon", "install them"),
    red("shared-state", "it is not there", "set state_dir"),
    unknown("mps", "no job ran"),
]


def test_each_line_begins_with_its_level_and_says_what_is_lost_and_what_to_do() -> None:
    assert render(FINDINGS).splitlines() == [
        "green    csub          0.1.0",
        "yellow   hooks         none on n1",
        "                       effect: root's daemon",
        "                       -> install them",
        "red      shared-state  it is not there",
        "                       -> set state_dir",
        "unknown  mps           no job ran",
    ]


def test_colours_are_put_around_levels_alone() -> None:
    line = render(FINDINGS[2:3], coloured=True).splitlines()[0]
    assert line == "\x1b[31mred    \x1b[0m  shared-state  it is not there"


def test_the_last_line_counts() -> None:
    assert render_summary(FINDINGS) == (
        "\n1 green, 1 yellow, 1 red, 1 unknown: csub does not work properly here"
    )
    assert render_summary(FINDINGS[:2]) == "\n1 green, 1 yellow: csub works here"
    assert render_summary([FINDINGS[0], FINDINGS[3]]) == (
        "\n1 green, 1 unknown: csub works here, as far as could be seen"
    )


def test_programs_get_the_same_with_null_for_what_is_not_there() -> None:
    value = json.loads(json.dumps(build_json(FINDINGS, JobOutcome("7", node="n1"), 1)))
    assert (value["schema"], value["exit_status"]) == (1, 1)
    assert (value["job_id"], value["node"]) == ("7", "n1")
    assert value["findings"][0] == {
        "check": "csub",
        "level": "green",
        "what": "0.1.0",
        "lost": None,
        "advice": None,
        "values": {"version": "0.1.0"},
    }
    assert value["findings"][1]["lost"] == "root's daemon"
    assert build_json([], None, 0)["job_id"] is None
    assert build_json([], JobOutcome(), 0)["node"] is None
