"""Scripts that take SLURM_JOB_ID for a name of their own; sbatch is the control."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slurm_colloc.model.job_ids import is_own_number

from ..bed import CsubUser

pytestmark = pytest.mark.slurm

CSUB = Path(sys.executable).parent / "csub"
DIRECTIVES = "#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=100M --time=5"
JOIN = ("--join", "--open=2", "--share=timeslice")

# Row by row what a training does with its id, and what is left of it where each has its own.
RESUMES = """
C=ckpt/$SLURM_JOB_ID; mkdir -p $C; N=0; [ -f $C/last ] && N=$(cat $C/last)
echo "from $N" >$C/began
until [ -e go.$1 ]; do sleep 0.1; done
while [ $N -lt 3 ]; do N=$((N+1)); echo $N >$C/last; done
echo $1 >$C/model
"""
PORT = """
P=$((20000 + SLURM_JOB_ID % 20000))
until [ -e go.$1 ]; do sleep 0.1; done
echo $P >port.$1
"""
RENDEZVOUS = """
until [ -e go.$1 ]; do sleep 0.1; done
echo "rdzv $SLURM_JOB_ID wandb ${WANDB_RUN_ID:-$SLURM_JOB_ID}" >meet.$1
"""


def type_two(user: CsubUser, body: str, way: str) -> tuple[list[str], list[str]]:
    """What the script's calls print and the SLURM_JOB_IDs inside, typed twice; the first runs."""
    user.script("t.sh", f'echo "$SLURM_JOB_ID" >id.$1\n{body}', directives=DIRECTIVES)
    printed = []
    for name in ("a", "b"):
        if way == "sbatch":
            argv = ["sbatch", "--parsable", "t.sh", name]
        elif way == "link":
            folder = user.home / "mybin"
            folder.mkdir(exist_ok=True)
            if not (folder / "sbatch").exists():
                (folder / "sbatch").symlink_to(CSUB)
            argv = [str(folder / "sbatch"), "--parsable", *JOIN, "t.sh", name]
        else:
            argv = ["csub", "--parsable", *JOIN, "t.sh", name]
        printed.append(user.run(argv).stdout.strip().partition(";")[0])
        if way != "sbatch":
            user.wait_for_states(printed[-1], "RUNNING")
    user.run(["touch", "go.a", "go.b"])
    for job_id in printed:
        if way == "sbatch":
            user.run(["srun", "-Q", f"--dependency=afterany:{job_id}", "--mem=10M", "true"])
        else:
            user.finish(job_id)
    return printed, [user.output(f"id.{name}").strip() for name in ("a", "b")]


def is_shared(user: CsubUser, printed: list[str]) -> bool:
    """The second has joined the pack of the first, and has a number of its own."""
    return is_own_number(printed[1]) and user.find_address(printed[1]).startswith(f"{printed[0]}/")


@pytest.mark.parametrize("way", ["sbatch", pytest.param("csub", marks=pytest.mark.smoke), "link"])
def test_a_training_typed_twice_gives_two_models(user: CsubUser, way: str) -> None:
    printed, inside = type_two(user, RESUMES, way)
    assert way == "sbatch" or is_shared(user, printed)
    # What the call printed is what its script sees, names its files after, and finds again.
    assert inside == printed
    for job_id, name in zip(printed, "ab", strict=True):
        assert user.output(f"ckpt/{job_id}/model") == f"{name}\n"
        assert user.output(f"ckpt/{job_id}/began") == "from 0\n"
        assert (user.home / f"slurm-{job_id}.out").exists()


@pytest.mark.parametrize("way", ["sbatch", "csub"])
def test_ports_differ(user: CsubUser, way: str) -> None:
    printed, _ = type_two(user, PORT, way)
    assert way == "sbatch" or is_shared(user, printed)
    ports = [20000 + int(job_id) % 20000 for job_id in printed]
    assert [user.output(f"port.{name}") for name in "ab"] == [f"{port}\n" for port in ports]
    assert len(set(ports)) == 2


@pytest.mark.parametrize("way", ["sbatch", "csub"])
def test_two_trainings_meet_under_names_of_their_own(user: CsubUser, way: str) -> None:
    printed, _ = type_two(user, RENDEZVOUS, way)
    assert way == "sbatch" or is_shared(user, printed)
    assert [user.output(f"meet.{name}") for name in "ab"] == [
        f"rdzv {job_id} wandb {job_id}\n" for job_id in printed
    ]


@pytest.mark.smoke
def test_each_task_of_an_array_writes_its_own_file(user: CsubUser) -> None:
    user.script("t.sh", "echo $SLURM_ARRAY_TASK_ID >res_$SLURM_JOB_ID.csv", directives=DIRECTIVES)
    job_id = user.submit("--share=timeslice", "--array=0-3", "t.sh")
    rows = user.finish(job_id)
    files = sorted(user.home.glob("res_*.csv"))
    assert sorted(path.read_text() for path in files) == ["0\n", "1\n", "2\n", "3\n"]
    inside = {path.stem.partition("_")[2] for path in files}
    assert inside == {row["job_id"] or job_id for row in rows.values()}


def test_links_show_a_joined_job_under_its_number(user: CsubUser) -> None:
    user.script("t.sh", "until [ -e go ]; do sleep 0.1; done", directives=DIRECTIVES)
    first, second = (
        user.csub("--parsable", *JOIN, "t.sh", name).stdout.strip() for name in ("a", "b")
    )
    assert is_shared(user, [first, second])
    user.wait_for_states(first, "RUNNING")
    folder = user.home / "mybin"
    folder.mkdir()
    for name in ("squeue", "scontrol", "sstat"):
        (folder / name).symlink_to(CSUB)
    form = ("-h", "-o", "%i %A")
    for ids, shown in (
        (second, [second]),
        (first, [first]),
        (f"{first},{second}", [first, second]),
    ):
        told = user.run([str(folder / "squeue"), *form, "-j", ids]).stdout.splitlines()
        assert told == [f"{one} {one}" for one in shown]
    record = user.run([str(folder / "scontrol"), "show", "job", second]).stdout
    assert record.startswith(f"JobId={second} JobName=t.sh")
    steps = user.run([str(folder / "sstat"), "-nP", "-o", "JobID", "-j", second], check=False)
    assert steps.stdout in (f"{second}.batch\n", ""), steps
    user.run(["touch", "go"])
    user.finish(first)
