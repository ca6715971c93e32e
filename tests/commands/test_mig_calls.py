"""--share=mig as a user types it, on a fake Slurm: what is asked of Slurm, what is refused."""

from __future__ import annotations

import json
import os

import pytest

from slurm_colloc.model.job import Job
from slurm_colloc.store.profiles import FaultRecord, compute_signature, note_culprit

from ..bed import CsubUser
from ..fake_slurm.cluster import FakeSlurm
from .refusals import list_jobs

OPTIONS = ("--gres=gpu:1", "--time=5", "--no-requeue")


def read_comments(slurm: FakeSlurm) -> list[str]:
    return sorted(str(job["comment"]) for job in slurm.look().values())


def test_a_pack_asks_its_node_for_its_layout(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    answer = user.csub("--share=mig=3g+2g+1g+1g", *OPTIONS, "--array=1-4", "--json", "train.sh")
    (submitted,) = json.loads(answer.stdout)["submitted"]
    (pack,) = submitted["packs"]
    assert (pack["mode"], pack["share"], pack["degree"]) == ("mig", "mig=3g+2g+1g+1g", 4)
    (comment,) = read_comments(slurm)
    assert comment.endswith(" [csub/1 mig=3g+2g+1g+1g]")


def test_packs_with_unlike_layouts_are_several_jobs_of_one_submission(
    user: CsubUser, slurm: FakeSlurm
) -> None:
    for number, need in enumerate(("30G", "30G", "30G", "5G", "5G"), 1):
        user.script(f"t{number}.sh", "exit 0", directives=f"#CSUB --gpu-mem={need}")
    settings = user.home / ".config" / "slurm_colloc" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[gpu_memory]\ndefault = "80G"\n')
    slurm.pause()
    scripts = [f"t{number}.sh" for number in range(1, 6)]
    user.csub("pack", "--share=mig", *OPTIONS, "--gres=gpu:1", *scripts)
    layouts = {comment.rpartition(" ")[2] for comment in read_comments(slurm)}
    assert len(layouts) == 2


@pytest.mark.parametrize(
    ("share", "status", "told"),
    [
        ("mig=5g", 2, "has the word '5g', which is none"),
        ("mig=4g+4g", 2, "does not fit onto one GPU: it has 8 compute slices, the GPU has 7"),
        ("mig=" + "+".join(["1g"] * 300), 2, "has 300 words"),
        ("mig=1g\x1b[31m", 2, "which is none"),
        ("mig= [csub/1 off]", 2, "which is none"),
        ("mips", 2, "is none of auto, mps, mig"),
    ],
)
def test_a_layout_that_is_none_is_refused_in_one_sentence_and_nothing_is_submitted(
    user: CsubUser, share: str, status: int, told: str
) -> None:
    user.script("train.sh", "exit 0")
    refused = user.csub(f"--share={share}", *OPTIONS, "--array=1-4", "train.sh", check=False)
    assert refused.returncode == status
    assert told in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "\x1b" not in refused.stderr
    assert list_jobs(user) == []


def test_more_at_once_than_instances_is_refused(user: CsubUser) -> None:
    user.script("train.sh", "exit 0")
    refused = user.csub(
        "--share=mig=3g+3g", "--degree=3", *OPTIONS, "--array=1-4", "train.sh", check=False
    )
    assert refused.returncode == 2
    assert "--degree=3, but --share=mig=3g+3g has 2 MIG instances" in refused.stderr
    assert "this site does not let them share instances (mig_mps_inside)" in refused.stderr
    assert list_jobs(user) == []


def test_more_at_once_than_instances_share_them_where_the_site_says_so(
    user: CsubUser, slurm: FakeSlurm
) -> None:
    settings = user.home / ".config" / "slurm_colloc" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("mig_mps_inside = true\n")
    user.script("train.sh", "exit 0")
    slurm.pause()
    answer = user.csub(
        "--share=mig=4g+2g", "--degree=5", *OPTIONS, "--array=1-5", "--json", "train.sh"
    )
    (submitted,) = json.loads(answer.stdout)["submitted"]
    (pack,) = submitted["packs"]
    assert (pack["degree"], len(pack["members"])) == (5, 5)
    (record,) = user.state.glob("packs/*/pack.json")
    assert json.loads(record.read_text())["layout_places"] == [3, 2]
    assert read_comments(slurm)[0].endswith(" [csub/1 mig=4g+2g]")
    refused = user.csub(
        "--share=mig=4g+2g", "--degree=97", *OPTIONS, "--array=1-99", "train.sh", check=False
    )
    assert refused.returncode == 2
    assert "has 2 MIG instances, for 48 members each: ask for --degree=96" in refused.stderr


def test_more_members_than_instances_wait_in_one_pack(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    for size, packs in ((), [7]), (("--pack-size=3",), [3, 3, 1]):
        answer = user.csub(
            "--share=mig=3g+3g", *size, *OPTIONS, "--array=1-7", "--json", "train.sh"
        )
        (submitted,) = json.loads(answer.stdout)["submitted"]
        assert [len(pack["members"]) for pack in submitted["packs"]] == packs


@pytest.mark.parametrize("size", [(), ("--pack-size=4",)])
def test_a_job_that_fits_no_instance_is_refused_and_nothing_is_submitted(
    user: CsubUser, size: tuple[str, ...]
) -> None:
    user.script("small.sh", "exit 0")
    user.script("large.sh", "exit 0", directives="#CSUB --gpu-mem=60G")
    layout = "--share=mig=2g.20gb+1g.10gb"
    scripts = ("small.sh", "small.sh", "large.sh")
    refused = user.csub("pack", layout, *size, *OPTIONS, *scripts, check=False)
    assert refused.returncode == 3
    assert (
        f"large.sh needs 61440 MB of GPU memory, and the largest instance of {layout}, 2g.20gb, "
        "has room for " in refused.stderr
    )
    assert "name a larger instance in --share, or submit this job with another" in refused.stderr
    assert list_jobs(user) == []


def test_what_no_prolog_is_asked_for_is_refused_where_nothing_else_will_do(user: CsubUser) -> None:
    settings = user.home / ".config" / "slurm_colloc" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('hooks = "never"\n')
    user.script("train.sh", "exit 0")
    refused = user.csub("--share=mig!", *OPTIONS, "--array=1-2", "train.sh", check=False)
    assert refused.returncode == 2
    assert "(hooks = never)" in refused.stderr
    assert list_jobs(user) == []


def test_no_job_joins_a_pack_whose_gpu_is_cut(user: CsubUser, slurm: FakeSlurm) -> None:
    user.script("train.sh", "exit 0")
    slurm.pause()
    user.csub("--share=mig=3g+3g", *OPTIONS, "--array=1-2", "train.sh")
    user.script("large.sh", "exit 0", directives="#CSUB --gpu-mem=60G")
    for script, jobs in (("large.sh", 2), ("train.sh", 3)):
        joined = user.csub(
            "--share=mig=3g+3g", "--join", "--verbose", *OPTIONS, script, check=False
        )
        assert len(slurm.look()) == jobs, joined.stderr
        assert "1 pack, exclusive" in joined.stderr


@pytest.mark.parametrize("is_allowed", [True, False])
def test_known_culprits_are_put_behind_walls_where_the_site_has_them(
    user: CsubUser, slurm: FakeSlurm, *, is_allowed: bool
) -> None:
    scripts = [user.script(f"wild{n}.sh", f"exit {n}") for n in (1, 2)]
    job = Job(1, "wild", "wild.sh", (), "/")
    for script in scripts:
        signature = compute_signature(script.read_bytes(), job)
        note_culprit(user.state, signature, FaultRecord("4711/3"))
    for path in (user.state, *user.state.rglob("*")):
        os.chown(path, user.uid, user.gid)
    settings = user.home / ".config" / "slurm_colloc" / "settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"mig = {str(is_allowed).lower()}\n")
    slurm.pause()
    answer = user.csub("pack", *OPTIONS, "--json", "wild1.sh", "wild2.sh")
    (submitted,) = json.loads(answer.stdout)["submitted"]
    modes = [pack["mode"] for pack in submitted["packs"]]
    assert modes == (["mig"] if is_allowed else ["exclusive", "exclusive"])
    assert any("[csub/1 mig=" in comment for comment in read_comments(slurm)) == is_allowed
    assert ("runs alone: its fault" in answer.stderr) != is_allowed
