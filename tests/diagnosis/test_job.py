"""What the tiny job asks of Slurm, and which script it is."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from slurm_colloc.diagnosis.doctor_job import add_feature, build_options, make_place, render_script
from slurm_colloc.diagnosis.login_findings import NO_PYTHON, NO_STATE, NO_WRITING
from slurm_colloc.settings import Settings


def test_the_job_is_small_and_ends_even_where_nobody_cancels_it() -> None:
    options = build_options({"partition": "gpu", "account": ""}, "gpu:1", "[mark]", 120)
    assert "--time=2" in options
    assert "--deadline=now+300" in options
    assert "--gres=gpu:1" in options
    assert "--partition=gpu" in options
    assert "--comment=[mark]" in options
    assert "--output=/dev/null" in options
    assert not [option for option in options if option.startswith("--account")]
    assert not [o for o in build_options({}, "", "", 1) if o.startswith("--gres")]


def test_nodes_with_hooks_are_asked_for_where_packs_run_on_no_others() -> None:
    always = Settings(hooks="always", hook_feature="csub")
    assert add_feature({"constraint": ""}, always) == {"constraint": "csub"}
    assert add_feature({"constraint": "h200"}, always) == {"constraint": "h200&csub"}
    assert add_feature({"constraint": "h200"}, Settings()) == {"constraint": "h200"}


def run_script(place: Path, python: str) -> int:
    script = place.parent / "job.sh"
    script.write_text(render_script(str(place), Settings(node_python=python)))
    return subprocess.run(
        ["bash", str(script)], check=False, capture_output=True, stdin=subprocess.DEVNULL
    ).returncode


def test_the_script_tells_by_its_exit_status_what_it_cannot_write_down(tmp_path: Path) -> None:
    place = tmp_path / "it's; $(here)"
    assert run_script(place, "/bin/true") == NO_STATE
    place.mkdir()
    (place / "asked.json").write_text("{}")
    assert run_script(place, "/nonexistent") == NO_PYTHON
    assert (place / "node").exists()
    (place / "node").unlink()
    (place / "node").mkdir()
    assert run_script(place, "/bin/true") == NO_WRITING


def test_the_script_runs_the_python_of_the_nodes(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "asked.json").write_text("{}")
    python = tmp_path / "my python"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.12.1 && exit\necho "$@" >&2; exit 3\n'
    )
    python.chmod(0o755)
    assert run_script(place, str(python)) == 3
    assert (place / "python").read_text() == "Python 3.12.1\n"
    assert (
        place / "errors"
    ).read_text() == f"-IB -m slurm_colloc.runtime.programs.examine_node {place}\n"


def test_the_place_of_the_answer_goes_with_everything_in_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with make_place(Settings(state_dir=str(state)), "ab12") as place:
        assert place == state / "doctor" / "ab12"
        assert place.stat().st_mode & 0o777 == 0o700
        (place / "node.json").write_text("{}")
    assert [path for path in tmp_path.rglob("*") if path != state] == []


def test_what_a_killed_call_has_left_is_removed_by_a_later_one(tmp_path: Path) -> None:
    parent = tmp_path / "doctor"
    for name, age_s in (("old", 7200), ("young", 60)):
        (parent / name).mkdir(parents=True)
        (parent / name / "job.sh").touch()
        os.utime(parent / name, (time.time() - age_s,) * 2)
    with make_place(Settings(state_dir=str(tmp_path)), "mine"):
        pass
    assert [path.name for path in parent.iterdir()] == ["young"]
