"""`csub why` and `csub explain` of members that run, wait in their pack, or have ended."""

from __future__ import annotations

import json
import re

import pytest

from ..bed import CsubUser

GO = "while [ ! -e go ]; do sleep 0.1; done"


def why(user: CsubUser, member: str, *, check: bool = True) -> str:
    told = user.csub("why", member, check=check).stdout
    assert told.count("\n") == 1
    return told


def test_why_a_member_runs_or_waits_in_its_pack_and_how_it_ended(user: CsubUser) -> None:
    user.script("go.sh", GO)
    user.script("three.sh", "exit 3")
    job_id = user.submit(
        "pack", "--gres=gpu:1", "--degree=2", "--pack-size=4", "--time=10",
        "go.sh", "go.sh", "three.sh", "go.sh",
    )  # fmt: skip
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "PENDING", 4: "PENDING"})
    told = why(user, f"{job_id}/1")
    assert re.match(
        rf"{job_id}/1 RUNNING: on \S+:\d since \d\d:\d\d:\d\d, sharing with {job_id}/2 "
        rf"\(since \d\d:\d\d:\d\d\) by time slices; at most 1\d:\d\d left",
        told,
    ), told
    told = why(user, f"{job_id}/3")
    assert re.match(
        rf"{job_id}/3 PENDING: starts when one of {job_id}/1, {job_id}/2 ends "
        rf"\(at most 1\d:\d\d left\) \(Degree 2\)",
        told,
    ), told
    assert f" left), after {job_id}/3 (Degree 2)" in why(user, f"{job_id}/4")
    user.csub("cancel", f"{job_id}/1")
    user.wait_for_states(job_id, {1: "CANCELLED", 3: "FAILED", 4: "RUNNING"})
    assert re.match(
        rf"{job_id}/1 CANCELLED: cancelled.*; ran on \S+ for \d+:\d\d; ended \d\d:\d\d:\d\d\n",
        why(user, f"{job_id}/1"),
    )
    assert f"{job_id}/3 FAILED: exit code 3; ran on" in why(user, f"{job_id}/3")
    user.run(["touch", "go"])
    user.finish(job_id)
    assert "alone in its pack" not in why(user, f"{job_id}/2")
    assert len(user.csub("why", job_id).stdout.splitlines()) in (3, 4)
    assert len(json.loads(user.csub("why", "--json", job_id).stdout)) == 4
    assert user.csub("why").stdout == ""
    explained = user.csub("explain", f"{job_id}/3", "FAILED", "Priority").stdout
    assert f"csub logs {job_id}/3" in explained
    assert "csub logs ID" in explained
    assert "jobs with a higher priority come first" in explained


def test_why_a_member_runs_alone_and_which_partner_was_refused(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("--gres=gpu:2", "--time=10", "go.sh")
    user.wait_for_states(job_id, "RUNNING")
    told = why(user, f"{job_id}/1")
    assert "alone in its pack" in told
    assert "it runs alone: it asks for 2 GPUs" in told
    full = user.submit("--array=1-5", "--gres=gpu:1", "--degree=4", "--hold", "go.sh")
    assert "takes no more members" not in why(user, f"{full}/1")
    said = f"; the pack of {full}/1-4 takes no more members: it is full with 4 members"
    assert said in why(user, f"{full}/5")
    lines = user.csub("why", full).stdout.splitlines()
    assert [text.split(" ")[0] for text in lines] == [f"{full}/1-4", f"{full}/5"]
    user.csub("cancel", "all")


def test_why_without_an_answer_of_slurm(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("pack", "--gres=gpu:1", "--hold", "go.sh", "go.sh")
    (user.home / "bin").mkdir()
    stub = user.script("bin/squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    away = {"PATH": f"{stub.parent}:{user.environment['PATH']}"}
    told = user.run(["csub", "why", f"{job_id}/1"], environment=away, check=False)
    assert told.returncode == 4
    assert f"{job_id}/1 PENDING: it had not started; as last recorded: " in told.stdout
    user.csub("cancel", job_id)


def test_why_a_member_without_slurm(user: CsubUser) -> None:
    user.script("go.sh", GO)
    job_id = user.submit("--local", "go.sh")
    user.wait_for_states(job_id, "RUNNING")
    second = user.submit("--local", "go.sh")
    try:
        assert re.match(rf"{job_id}/1 RUNNING: on \S+ since", why(user, f"{job_id}/1"))
        assert "until the packs before it have ended" in why(user, f"{second}/1")
    finally:
        user.run(["touch", "go"])
        user.finish(job_id)
        user.finish(second)
    assert f"{job_id}/1 COMPLETED: ran on" in why(user, f"{job_id}/1")


def test_a_word_that_is_no_state_and_no_reason_is_told_what_was_meant(user: CsubUser) -> None:
    told = user.csub("explain", "PENDIN", check=False)
    assert told.returncode == 2
    assert "did you mean PENDING?" in told.stderr
    assert user.csub("explain", "4711", check=False).returncode == 7
    # The others are explained all the same.
    mixed = user.csub("explain", "PENDIN", "FAILED", "4711", "Priority", check=False)
    assert (mixed.returncode, mixed.stderr.count("csub: error: ")) == (2, 2)
    assert "FAILED" in mixed.stdout
    assert "Priority" in mixed.stdout


def test_help_tells_what_all_means_to_each_command(user: CsubUser) -> None:
    told = {name: " ".join(user.csub(name, "--help").stdout.split()) for name in ("report", "why")}
    assert "all for every member that is kept" in told["report"]
    assert "all for every member that has not ended" in told["why"]


def test_an_option_behind_the_scripts_of_a_pack_is_told_its_place(user: CsubUser) -> None:
    user.script("a.sh", "exit 0")
    refused = user.csub("pack", "a.sh", "--wait", check=False)
    assert refused.returncode == 2
    assert "options stand before the scripts: csub pack --wait a.sh b.sh" in refused.stderr


def test_one_unknown_word_leaves_the_others_explained(user: CsubUser) -> None:
    told = user.csub("explain", "PENDING", "nonsense", "TIMEOUT", check=False)
    assert told.returncode == 2
    assert re.findall(r"^[A-Z]\w+", told.stdout, re.MULTILINE) == ["PENDING", "TIMEOUT"]
    assert "'nonsense' is not a member, state, reason or word of a report" in told.stderr
    assert "did you mean" not in told.stderr
    assert len(told.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", ["--degree=2", "--wait", "-n", "--parsable"])
def test_any_option_behind_the_scripts_of_a_pack_is_told_its_place(
    user: CsubUser, option: str
) -> None:
    user.script("a.sh", "exit 0")
    refused = user.csub("pack", "a.sh", option, check=False)
    assert refused.returncode == 2
    assert f"options stand before the scripts: csub pack {option} a.sh b.sh" in refused.stderr
    assert "did you mean" not in refused.stderr


def test_all_means_to_each_command_what_its_help_says(user: CsubUser) -> None:
    user.script("a.sh", "exit 0")
    ended = user.submit("--gres=gpu:1", "a.sh")
    user.finish(ended)
    waits = user.submit("--gres=gpu:1", "--hold", "a.sh")
    kept = {"report": True, "why": False, "queue": False}
    for name, has_ended in kept.items():
        told = user.csub(name, "all").stdout
        shown = f"{ended}/1" in told
        assert shown is has_ended, (name, told)
        assert f"{waits}/1" in told, name
        text = " ".join(user.csub(name, "--help").stdout.split())
        words = "is kept, also those that have ended" if has_ended else "has not ended"
        assert words in text, name
    user.csub("cancel", waits)
