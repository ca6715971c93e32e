"""What `csub plan` shows of plans whose length nobody measured."""

from __future__ import annotations

import dataclasses
import json

from slurm_colloc.model.plan import UsageProfile
from slurm_colloc.planning.explaining import build_explanation
from slurm_colloc.planning.explanation import PlanExplanation
from slurm_colloc.planning.grouping import plan
from slurm_colloc.report.plan_view import build_plan_json, render_plan
from tests.planning.known_jobs import CALIBRATION, POLICY, ROOMY, SMALL, build_call

UNTIMED = dataclasses.replace(SMALL, run_s=None)


def explain(*profiles: UsageProfile) -> PlanExplanation:
    jobs, known = build_call(*(("small", profile) for profile in profiles))
    made = plan(jobs, known, ROOMY, POLICY, CALIBRATION)
    return build_explanation(made, jobs, known, ROOMY, POLICY, CALIBRATION)


def test_a_length_that_was_measured_is_shown() -> None:
    found = explain(SMALL, SMALL)
    text = render_plan(found, 120)
    assert text.startswith("2 jobs in 1 pack: 10 min")
    assert "20 min 00 s one after the other" in text
    assert "ends after 10 min" in text
    value = build_plan_json(found)
    assert value["figures"]["serial_gpu_hours"] == 1200 / 3600
    assert value["packs"][0]["members"][0]["run_s"] == 600


def test_a_guessed_length_is_shown_nowhere() -> None:
    for profiles in ((UNTIMED, UNTIMED), (SMALL, UNTIMED)):
        found = explain(*profiles)
        text = render_plan(found, 120, explain=True)
        assert text.startswith("2 jobs in 1 pack; how long they hold a GPU is not known yet")
        assert "one after the other" not in text
        assert "ends after" not in text
        assert "how long is not known yet, time limit " in text
        assert "members run alone has not been measured" in text
        value = json.loads(json.dumps(build_plan_json(found)))
        figures = value["figures"]
        assert (figures["gpu_hours"], figures["serial_gpu_hours"], figures["finish_s"]) == (
            None,
            None,
            None,
        )
        assert figures["mean_slowdown"] > 1
        assert value["packs"][0]["predicted_finish_s"] is None
        lengths = [member["run_s"] for member in value["packs"][0]["members"]]
        assert sorted(lengths, key=str) == sorted((p.run_s for p in profiles), key=str)
