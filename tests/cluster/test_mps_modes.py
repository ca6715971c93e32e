"""`--share`, the setting and the directive: each mode is what was asked for."""

from __future__ import annotations

import pytest

from ..bed import CsubUser
from .mps import OPTIONS, TELL, Untouched, explained, submit_each, submit_pack, write_settings

pytestmark = pytest.mark.slurm


@pytest.mark.smoke
def test_each_mode_is_what_was_asked_for_where_the_node_has_it(mps_user: CsubUser) -> None:
    user = mps_user
    untouched = Untouched(user)
    jobs = submit_each(user, "auto", "mps", "mps!", "timeslice", "timeslice!")
    for share, job_id in jobs.items():
        with explained(user, job_id):
            rows = user.finish(job_id)
            mode = "timeslice" if "timeslice" in share else "mps"
            assert {row["state"] for row in rows.values()} == {"COMPLETED"}
            assert {(row["mode"], row["share"]) for row in rows.values()} == {(mode, share)}
            for number in rows:
                output = user.output(f"slurm-{job_id}_{number}.out")
                assert output.split()[0].endswith("/p") is (mode == "mps")
            shown = user.csub("show", job_id).stdout
            assert f"Sharing:  {mode}, 2 at the same time (" in shown
    untouched.check()


def test_exclusive_gives_each_job_a_gpu_of_its_own(mps_user: CsubUser) -> None:
    user = mps_user
    user.script("tell.sh", TELL)
    told = user.csub("pack", *OPTIONS, "--share=exclusive", "tell.sh", "tell.sh")
    assert "in 2 packs, exclusive" in told.stderr
    rows = user.finish(told.stdout.split()[3])
    assert len(rows) == 2
    assert {(row["state"], row["mode"]) for row in rows.values()} == {("COMPLETED", "exclusive")}
    for row in rows.values():
        assert row["degree"] == 1
        assert row["is_mps_client"] is None


def test_the_settings_and_the_script_say_how_to_share(mps_user: CsubUser) -> None:
    user = mps_user
    write_settings(user, share="timeslice")
    user.script("tell.sh", TELL)
    user.script("wants.sh", TELL, directives="#CSUB --share=mps!")
    by_setting = submit_pack(user, "tell.sh", "tell.sh")
    by_script = submit_pack(user, "wants.sh", "wants.sh")
    by_option = submit_pack(user, "--share=mps", "wants.sh", "wants.sh")
    for job_id, share, mode in (
        (by_setting, "timeslice", "timeslice"),
        (by_script, "mps!", "mps"),
        (by_option, "mps", "mps"),
    ):
        rows = user.finish(job_id)
        assert {(row["share"], row["mode"]) for row in rows.values()} == {(share, mode)}


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--share=mpi", "t.sh", "t.sh"),
            (
                "the command line: --share=mpi is none of auto, mps, mig, timeslice, exclusive: "
                "mps! forbids any other mode instead, mig=3g+2g+1g+1g names MIG instances"
            ),
        ),
        (
            ("--share=auto!", "t.sh", "t.sh"),
            "the command line: --share=auto! cannot be strict: write mps! to forbid a fallback",
        ),
        (("--share=", "t.sh", "t.sh"), "--share="),
        (
            ("--share=exclusive", "--degree=2", "t.sh", "t.sh"),
            (
                "--share=exclusive gives each job a GPU of its own: leave out --degree and "
                "--pack-size, or choose another --share"
            ),
        ),
        (
            ("one.sh", "other.sh"),
            (
                "jobs of one call share in one way, not in both mps (one.sh:2) and timeslice "
                "(other.sh:2): give --share on the command line, or submit them separately"
            ),
        ),
        (("bad.sh", "bad.sh"), "bad.sh:2: --share=fast is none of "),
    ],
)
def test_a_wrong_share_is_refused_in_one_sentence(
    mps_user: CsubUser, words: tuple[str, ...], sentence: str
) -> None:
    user = mps_user
    user.script("t.sh", "true")
    user.script("one.sh", "true", directives="#CSUB --share=mps")
    user.script("other.sh", "true", directives="#CSUB --share=timeslice")
    user.script("bad.sh", "true", directives="#CSUB --share=fast")
    said = user.csub("pack", "--gres=gpu:1", *words, check=False)
    assert said.returncode == 2
    assert said.stdout == ""
    assert said.stderr.startswith("csub: error: ")
    assert sentence in said.stderr
    assert said.stderr.count("\n") == 1
    assert list(user.state.glob("packs/*")) == []


def test_a_wrong_share_in_the_settings_names_the_setting(mps_user: CsubUser) -> None:
    user = mps_user
    write_settings(user, share="fast")
    user.script("t.sh", "true")
    said = user.csub("pack", "--gres=gpu:1", "t.sh", "t.sh", check=False)
    assert said.returncode == 2
    assert "share" in said.stderr
    assert "fast" in said.stderr
    assert said.stderr.count("\n") == 1


@pytest.mark.parametrize(("asked", "limit_mb"), [("100M", 600), ("200G", None)])
def test_a_limit_that_mps_would_not_take_becomes_one_that_it_does(
    mps_user: CsubUser, asked: str, limit_mb: int | None
) -> None:
    """Below a CUDA context there is no start, and above the GPU the limit is ignored."""
    user = mps_user
    user.script("train.sh", "exec simgpu run --seconds 0.5 --gpu-memory 50M")
    job_id = submit_pack(user, f"--gpu-mem={asked}", "train.sh", *["train.sh"] * (asked == "100M"))
    with explained(user, job_id):
        rows = user.finish(job_id)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
        assert {row["gpu_memory_limit_mb"] for row in rows.values()} == {limit_mb}
