"""`csub train.sh` joins a pack that is there: it waits or runs, and has room."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.job import Job
from slurm_colloc.model.job_ids import is_own_number
from slurm_colloc.model.usage_profile import Observation, ProfileRecord
from slurm_colloc.store.profiles import (
    build_profile_mapping,
    compute_family,
    compute_signature,
)

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

OPTIONS = "#SBATCH --gres=gpu:1 --cpus-per-task=2 --mem=200M --time=10"
NOTE = 'echo "$SLURM_COLLOC_MEMBER $1" >>ran.txt; echo "out $1"'


@pytest.fixture
def busy(small: CsubUser) -> CsubUser:
    """The same user, while a job of theirs has the only GPU."""
    block(small)
    return small


def block(user: CsubUser) -> None:
    """Take the GPU; `free` gives it back."""
    user.run(["sbatch", "--gres=gpu:1", "--mem=50M", "--job-name=blocker", "--output=/dev/null",
              "--wrap=sleep 600"])  # fmt: skip
    wait_until(lambda: field(user, "blocker", "%T") == "RUNNING", "the blocker runs")


def free(user: CsubUser) -> None:
    """Give the GPU back."""
    user.run(["scancel", "--name=blocker"])


def field(user: CsubUser, name: str, format_: str) -> str:
    """A field of squeue for the jobs of a name."""
    return user.run(["squeue", "-h", f"--name={name}", f"--format={format_}"]).stdout.strip()


def squeue(user: CsubUser, job_id: str, format_: str) -> str:
    """A field of squeue for a job."""
    return user.run(["squeue", "-h", f"--jobs={job_id}", f"--format={format_}"]).stdout.strip()


def join(user: CsubUser, *words: str) -> str:
    """Submit with --join=auto; `4711/2` if it joined, `4711` if it did not."""
    printed = user.csub("--join=auto", "--open=never", "--parsable", *words).stdout.strip()
    return user.find_address(printed) if is_own_number(printed) else printed


def read_log(user: CsubUser, job_id: str) -> str:
    """The output of the only job that has joined: named after its number, as sbatch names it."""
    (number,) = user.list_joined(job_id)
    return user.output(f"slurm-{number}.out")


def on_terminal(user: CsubUser, *argv: str) -> str:
    """Run csub with a terminal as its standard output; what it wrote there."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        ["csub", *argv],
        env=user.environment,
        cwd=user.home,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        **user.identity,
    )
    os.close(slave)
    text = b""
    while select.select([master], [], [], 60)[0]:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(master)
    assert process.wait(timeout=60) == 0, text
    return text.decode()


def ran(user: CsubUser) -> list[str]:
    """Each member that ran, with its argument."""
    lines = [line.partition(" ") for line in user.output("ran.txt").splitlines()]
    names = [user.find_address(name) if is_own_number(name) else name for name, _, _ in lines]
    return sorted(f"{name} {rest}" for name, (_, _, rest) in zip(names, lines, strict=True))


def test_twelve_typed_one_after_another_share_two_allocations(busy: CsubUser) -> None:
    busy.script("train.sh", f"{NOTE}; sleep 0.3", directives=OPTIONS)
    answers = [on_terminal(busy, "--open=never", "train.sh", str(number)) for number in range(12)]
    ids = list(dict.fromkeys(re.findall(r"\((?:member )?(\d+)/", "\n".join(answers))))
    second = answers[1].split()[3]
    assert len(ids) == 2
    assert "(member " + ids[0] + "/1 in 1 pack" in answers[0]
    assert f"{ids[0]}/3, shares a pack with {ids[0]}/1 and {second}: 3 of 4 places" in answers[2]
    # As many as the GPU's share of 16 CPUs has places for, and 96 MB for the monitor.
    assert squeue(busy, ids[0], "%T %j %C %m") == "PENDING train.sh 16 1888M"
    assert squeue(busy, ids[1], "%T %j %C %m") == "PENDING train.sh 8 928M"
    free(busy)
    for job_id, count in zip(ids, (8, 4), strict=True):
        busy.finish(job_id)
        rows = busy.members(job_id)
        assert [row["state"] for row in rows.values()] == ["COMPLETED"] * count
    assert ran(busy) == sorted(
        f"{ids[number // 8]}/{number % 8 + 1} {number}" for number in range(12)
    )


def test_the_first_member_keeps_the_output_file_that_sbatch_would_give_it(busy: CsubUser) -> None:
    busy.script("train.sh", f"{NOTE}; echo err >&2", directives=OPTIONS)
    job_id = join(busy, "train.sh", "a")
    assert join(busy, "train.sh", "b") == f"{job_id}/2"
    free(busy)
    busy.finish(job_id)
    assert busy.output(f"slurm-{job_id}.out") == "out a\nerr\n"
    assert read_log(busy, job_id) == "out b\nerr\n"
    assert busy.csub("logs", f"{job_id}/1").stdout == "out a\nerr\n"


def test_who_joins_with_the_output_file_of_another_says_where_it_writes(busy: CsubUser) -> None:
    busy.script("train.sh", 'echo "out $1"', directives=OPTIONS)
    words = ("--join=auto", "--open=never", "--parsable")
    first = busy.csub(*words, "-o", "b.out", "train.sh", "1")
    assert "it writes" not in first.stderr
    for name, written in (("b.out", "b_2.out"), ("c_%j.out", ""), ("b.out", "b_4.out")):
        joined = busy.csub(*words, "-o", name, "train.sh", written or "own")
        number = joined.stdout.strip()
        told = f"csub: {number}: it writes {written}, for another member writes where it would have"
        assert (told in joined.stderr.splitlines()) is bool(written)
    free(busy)
    busy.finish(first.stdout.strip())
    files = {path.name: path.read_text() for path in busy.home.glob("[bc]*.out")}
    own = next(name for name in files if name.startswith("c_"))
    assert is_own_number(own.removeprefix("c_").removesuffix(".out"))
    assert files == {
        "b.out": "out 1\n", "b_2.out": "out b_2.out\n", "b_4.out": "out b_4.out\n",
        own: "out own\n",
    }  # fmt: skip


def test_a_scancel_message_of_slurm_does_not_overwrite_the_first_members_output(
    busy: CsubUser,
) -> None:
    busy.script("train.sh", f"{NOTE}; echo up-$1; sleep 300", directives=OPTIONS)
    job_id = join(busy, "train.sh", "a")
    join(busy, "train.sh", "b")
    free(busy)
    wait_until(lambda: "up-a" in busy.output(f"slurm-{job_id}.out"), "the first runs")
    wait_until(lambda: "up-b" in read_log(busy, job_id), "the second runs")
    busy.run(["scancel", job_id])
    busy.finish(job_id)
    assert busy.output(f"slurm-{job_id}.out").startswith("out a\nup-a\n")
    assert read_log(busy, job_id).startswith("out b\nup-b\n")


@pytest.mark.smoke
def test_the_place_in_the_queue_is_kept(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    busy.script("other.sh", "true", directives=OPTIONS)
    first = join(busy, "train.sh", "1")
    wait_until(lambda: squeue(busy, first, "%r") not in ("None", ""), "Slurm has looked at it")
    later = busy.run(["sbatch", "--parsable", "other.sh"]).stdout.strip()
    before = squeue(busy, first, "%V %p")
    assert join(busy, "train.sh", "2") == f"{first}/2"
    assert squeue(busy, first, "%V %p") == before
    order = busy.run(["squeue", "-h", "--sort=-p,i", "--states=PENDING", "--format=%i"]).stdout
    assert order.split().index(first) < order.split().index(later)


@pytest.mark.smoke
def test_members_get_the_time_and_host_memory_of_their_own(busy: CsubUser) -> None:
    busy.script("train.sh", f"{NOTE}; echo $SLURM_MEM_PER_NODE $SLURM_CPUS_ON_NODE",
                directives="#SBATCH --gres=gpu:1")  # fmt: skip
    job_id = join(busy, "--mem=100M", "--time=5", "--cpus-per-task=1", "train.sh", "a")
    assert join(busy, "--mem=300M", "--time=20", "--cpus-per-task=3", "train.sh", "b") == (
        f"{job_id}/2"
    )
    # 20 minutes times 1.5, and a minute for starting and ending.
    assert squeue(busy, job_id, "%C %m %l") == "4 496M 31:00"
    shown = busy.csub("show", job_id).stdout
    assert "Grown to: 4 CPUs, 496M host memory, time limit 31:00" in shown
    free(busy)
    rows = busy.finish(job_id)
    assert rows[1]["wall_limit_s"] == 450
    assert rows[2]["wall_limit_s"] == 1800
    assert busy.output(f"slurm-{job_id}.out") == "out a\n100 1\n"
    assert read_log(busy, job_id) == "out b\n300 3\n"


@pytest.mark.parametrize(
    "request_",
    [
        "--gpus=1 --mem-per-cpu=100M --cpus-per-task=2",
        "--gpus-per-node=1 --nodes=1 --ntasks=1 --ntasks-per-node=1",
        "--gres=gpu:1",
    ],
)
def test_every_way_to_ask_for_one_gpu_can_be_joined(busy: CsubUser, request_: str) -> None:
    busy.script("train.sh", f"{NOTE}; srun echo inner $1", directives=f"#SBATCH {request_}")
    job_id = join(busy, "train.sh", "a")
    assert join(busy, "train.sh", "b") == f"{job_id}/2"
    free(busy)
    rows = busy.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 2
    assert read_log(busy, job_id) == "out b\ninner b\n"


def test_a_pack_of_scripts_and_a_job_from_an_array_can_be_joined(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    pack = busy.submit("pack", "train.sh", "train.sh 2")
    assert join(busy, "train.sh", "3") == f"{pack}/3"
    busy.csub("cancel", "--yes", pack, *busy.list_joined(pack))
    array = busy.submit("--array=5-6", "--mem=150M", "train.sh", "task")
    assert join(busy, "train.sh", "8") == f"{array}/7"
    free(busy)
    rows = busy.finish(array)
    assert {number: row["state"] for number, row in rows.items()} == dict.fromkeys(
        (5, 6, 7), "COMPLETED"
    )


def test_where_the_id_is_captured_nothing_joins(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = busy.submit("train.sh", "1")
    assert "shares a pack" not in busy.csub("train.sh", "2").stderr
    second = busy.submit("train.sh", "3")
    assert "/" not in second
    assert len({first, second}) == 2
    assert join(busy, "--join=never", "train.sh") not in (first, second)
    assert on_terminal(busy, "--join", "never", "train.sh").count("shares a pack") == 0
    assert on_terminal(busy, "--join", "auto", "train.sh").count("shares a pack") == 1


@pytest.mark.smoke
def test_another_script_joins_where_there_is_room(busy: CsubUser) -> None:
    settings(busy, '[gpu_memory]\nany = "80G"\n')
    for name in ("a.sh", "b.sh", "c.sh", "d.sh"):
        busy.script(name, f"{NOTE}; : {name}", directives=OPTIONS)
    first = join(busy, "--gpu-mem=30G", "a.sh")
    assert join(busy, "b.sh") == f"{first}/2"
    assert join(busy, "--gpu-mem=20G", "c.sh") == f"{first}/3"
    told = busy.csub("--join=auto", "--explain", "--gpu-mem=40G", "d.sh")
    assert "need 92160 MB of GPU memory, 77824 MB are usable" in told.stderr
    assert "shares a pack" not in told.stderr


def test_jobs_of_other_scripts_join_where_all_have_been_measured(busy: CsubUser) -> None:
    settings(busy, '[gpu_memory]\nany = "80G"\n')
    records = []
    for name, gpu_memory_mb in (("a.sh", 9000), ("b.sh", 9000), ("c.sh", 70000)):
        content = busy.script(name, f"{NOTE}; : {name}", directives=OPTIONS).read_bytes()
        job = Job(1, name, name, (), "/")
        seen = Observation(
            compute_signature(content, job), compute_family(content, job), name, "NVIDIA H200",
            "GPU-1", f"{name}/1", 1e9, 60.0, gpu_memory_peak_mb=gpu_memory_mb, sm_active=0.1,
            dram_active=0.05, steps_per_s=10.0,
        )  # fmt: skip
        records.append(build_profile_mapping(ProfileRecord.start(seen)))
    busy.script("d.sh", f"{NOTE}; : d", directives=OPTIONS)
    busy.run(["sh", "-c", f"echo '{json.dumps(records)}' >profiles.json"])
    assert busy.csub("profile", "import", "profiles.json").returncode == 0
    first = join(busy, "a.sh")
    assert join(busy, "b.sh") == f"{first}/2"
    # Each is known, so all may start at once, and it is written down what is expected of them.
    record, plans = read_plan(busy, first)
    assert record["degree"] == 2
    for plan in plans:
        assert 1.0 <= plan["predicted_slowdown"] <= plan["max_slowdown"] == 1.5
        assert plan["solo_steps_per_s"] == 10.0
    told = busy.csub("--join=auto", "--explain", "c.sh")
    assert "of GPU memory, 77824 MB are usable" in told.stderr
    # What is not known shares where there are places.
    assert join(busy, "d.sh") == f"{first}/3"
    shown = json.loads(busy.csub("show", "--json", f"{first}/2").stdout)
    assert shown[0]["member"] == f"{first}/2"


def read_plan(user: CsubUser, job_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What is written down of a pack, and of each of its members."""
    ids = user.state.glob("packs/*/slurm_job_id")
    (pack,) = (path.parent for path in ids if path.read_text().strip() == job_id)
    specs = [json.loads(path.read_text()) for path in sorted(pack.glob("members/*/spec.json"))]
    return json.loads((pack / "pack.json").read_text()), [spec["plan"] for spec in specs]


def test_a_pack_that_somebody_unknown_has_joined_starts_one_at_a_time(busy: CsubUser) -> None:
    # Long and large enough to be measured; what is not measured starts at once.
    words = "#SBATCH --gres=gpu:1 --cpus-per-task=2 --mem=1G --time=20"
    busy.script("train.sh", NOTE, directives=words)
    first = join(busy, "train.sh")
    assert join(busy, "--max-slowdown=1.2", "train.sh") == f"{first}/2"
    record, plans = read_plan(busy, first)
    assert record["degree"] == 2
    assert [plan.get("max_slowdown") for plan in plans] == [None, 1.2]
    limits = [plan["wall_limit_s"] for plan in plans]
    assert limits[1] == round(limits[0] / 1.5 * 1.2)


def test_no_pack_grows_beyond_the_share_of_its_gpu(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = join(busy, "--cpus-per-task=9", "train.sh")
    told = busy.csub("--join=auto", "--explain", "--cpus-per-task=8", "train.sh")
    assert f"pack {first}: 2 at once need 17 CPUs, the GPU's share is 16" in told.stderr
    assert squeue(busy, first, "%C %j") == "9 train.sh"


def test_jobs_with_other_slurm_options_stay_apart(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = join(busy, "train.sh")
    assert join(busy, "--nice=10", "train.sh") != f"{first}/2"
    assert join(busy, "--partition=preempt", "train.sh") != f"{first}/2"
    assert join(busy, "train.sh") == f"{first}/2"


def test_degree_and_site_caps_bound_what_joins(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = join(busy, "--degree=2", "train.sh")
    assert join(busy, "train.sh") == f"{first}/2"
    second = join(busy, "train.sh")
    assert "/" not in second
    site = site_settings(busy, '[caps]\nmembers_per_pack = 2\npack_time = "30:00"\n')
    assert join(busy, "train.sh") == f"{second}/2"
    third = join(busy, "train.sh")
    assert "/" not in third
    site.write_text('[caps]\njoin = "never"\n')
    assert "/" not in join(busy, "train.sh")
    site.write_text('[caps]\npack_time = "5:00"\n')
    told = busy.csub("--join=auto", "--explain", "train.sh")
    assert "shares a pack" not in told.stderr


def test_slurm_that_does_not_let_a_pack_grow_means_a_new_one(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = join(busy, "train.sh")
    before = squeue(busy, first, "%C %m %l %j")
    folder = busy.home / "bin"
    folder.mkdir()
    scontrol = folder / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\ncase "$*" in *NumCPUs=4*) echo "slurm_update error: denied" >&2; exit 1;;'
        f' esac\nexec {busy.find("scontrol")} "$@"\n'
    )
    scontrol.chmod(0o755)
    busy.extra["PATH"] = f"{folder}:{busy.environment['PATH']}"
    told = busy.csub("--join=auto", "--explain", "train.sh")
    assert f"pack {first}: Slurm does not let it grow" in told.stderr
    assert "in 1 pack" in told.stderr
    assert squeue(busy, first, "%C %m %l %j") == before
    assert len(busy.members(first)) == 1


def test_a_held_pack_takes_nobody(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = join(busy, "train.sh")
    busy.run(["scontrol", "hold", first])
    told = busy.csub("--join=auto", "--explain", "train.sh")
    assert f"pack {first}: it is held" in told.stderr


@pytest.mark.smoke
def test_a_free_place_of_a_running_pack_is_taken_at_once(small: CsubUser) -> None:
    small.script("train.sh", f"{NOTE}; until [ -e end-$1 ]; do sleep 0.1; done", directives=OPTIONS)
    pack = small.submit("pack", "train.sh a", "train.sh b", "train.sh c")
    small.wait_for_states(pack, "RUNNING")
    told = small.csub("--join=auto", "--explain", "--time=5", "train.sh", "d")
    assert "all 3 places are taken" in told.stderr
    new = told.stdout.split()[3]
    small.run(["scancel", new])
    (small.home / "end-a").touch()
    small.wait_for_states(pack, {1: "COMPLETED"})
    assert "/" not in join(small, "--join=pending", "--time=5", "train.sh", "x")
    answer = small.csub("--join=auto", "--time=5", "train.sh", "e").stderr
    assert f"{pack}/4, joined the running pack of {pack}/2 and {pack}/3" in answer
    small.wait_for_states(pack, {4: "RUNNING"})
    assert squeue(small, pack, "%j") == "train.sh"
    rows = small.members(pack)
    assert set(rows[4]["cpus"]) == set(rows[1]["cpus"])
    for name in "bce":
        (small.home / f"end-{name}").touch()
    small.wait_for_states(pack, "COMPLETED")


def test_a_running_pack_without_enough_time_left_takes_nobody(small: CsubUser) -> None:
    small.script("train.sh", f"{NOTE}; until [ -e end-$1 ]; do sleep 0.1; done", directives=OPTIONS)
    pack = small.submit("pack", "train.sh a", "train.sh b")
    small.wait_for_states(pack, "RUNNING")
    (small.home / "end-a").touch()
    small.wait_for_states(pack, {1: "COMPLETED"})
    told = small.csub("--join=auto", "--explain", "--time=12", "train.sh", "c")
    assert f"pack {pack}: it needs 1140 s, the pack ends in" in told.stderr
    small.run(["scancel", told.stdout.split()[3]])
    assert join(small, "--time=9", "train.sh", "b") == f"{pack}/3"
    (small.home / "end-b").touch()
    small.wait_for_states(pack, "COMPLETED")


def test_a_lone_job_that_runs_is_left_alone(small: CsubUser) -> None:
    small.script("train.sh", f"{NOTE}; sleep 300", directives=OPTIONS)
    first = join(small, "train.sh")
    small.wait_for_states(first, "RUNNING")
    assert "/" not in join(small, "train.sh")


@pytest.mark.smoke
def test_dry_run_says_that_it_would_join(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = join(busy, "train.sh")
    told = busy.csub("--join=auto", "--dry-run", "train.sh")
    assert f"would join pack {first}" in told.stdout
    assert len(busy.members(first)) == 1


def test_the_answer_for_programs_names_pack_partners_and_reason(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = join(busy, "train.sh")
    told = json.loads(busy.csub("--join=auto", "--json", "train.sh").stdout)
    (number,) = busy.list_joined(first)
    assert told == {
        "schema": 1,
        "joined": {
            "member": f"{first}/2",
            "job_id": number,
            "slurm_job_id": first,
            "running": False,
            "partners": [f"{first}/1"],
            "places": 4,
        },
    }


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--join=maybe", "train.sh"), "the command line: --join=maybe is neither auto, pending"),
        (("--join=maybe", "--array=0-3", "train.sh"), "--join=maybe is neither auto, pending"),
    ],
)
def test_a_wrong_join_is_refused(user: CsubUser, words: tuple[str, ...], sentence: str) -> None:
    user.script("train.sh", NOTE, directives=OPTIONS)
    ended = user.csub(*words, check=False)
    assert ended.returncode == 2
    assert sentence in ended.stderr


def settings(user: CsubUser, text: str) -> Path:
    """The user's own settings."""
    path = user.home / ".config" / "slurm_colloc" / "settings.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def site_settings(user: CsubUser, text: str) -> Path:
    """The site's settings."""
    path = user.home / "site.toml"
    path.write_text(text)
    user.extra["SLURM_COLLOC_SETTINGS"] = str(path)
    return path


@pytest.mark.parametrize(
    ("option", "joins"),
    [
        ("--begin=now+1hour", False),
        ("--begin=2099-01-01T12:00", True),
        ("--dependency=singleton", False),
    ],
)
def test_what_means_something_else_to_another_job_keeps_it_apart(
    busy: CsubUser, option: str, joins: bool
) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = join(busy, option, "train.sh")
    assert (join(busy, option, "train.sh") == f"{first}/2") is joins


def test_nobody_joins_whose_output_would_be_anothers_file(busy: CsubUser) -> None:
    busy.script("train.sh", NOTE, directives=OPTIONS)
    first = join(busy, "-o", "run_2.log", "train.sh")
    # As the second member it would write run_2.log.
    other = join(busy, "-o", "run.log", "train.sh")
    assert "/" not in other
    told = busy.csub("why", other).stdout
    assert f"it did not join pack {first}: it would write to the output file of {first}/1" in told
    assert join(busy, "-o", "walk.log", "train.sh") == f"{first}/2"
