"""Scripts that go by SLURM_JOB_ID, as members and by sbatch: the same comes out."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

HEAD = (
    "#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=100M --time=5\n"
    "J=$SLURM_JOB_ID; T=${SLURM_ARRAY_TASK_ID:-$1}; cd $SLURM_SUBMIT_DIR"
)
SERVER = """\
python3 - $P $T <<'END' &
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    server.accept()[0].send(sys.argv[2].encode())
END
sleep 4
python3 -c 'import socket, sys
print(socket.create_connection(("127.0.0.1", int(sys.argv[1]))).recv(9).decode())' $P >r_$T
"""
# What each writes into r_TASK must be its own. The scripts are those in which members of one pack,
# which had one id, took each other's files, ports and segments.
ROWS = {
    "a seed": "echo $J >seed_$T; sleep 3; echo $T >r_$T",
    "a working directory": (
        "W=/tmp/$USER/$J; mkdir -p $W; cd $W; echo $T >c; sleep $((2+T*3)); cat c >m; sleep 4;"
        " cp m $SLURM_SUBMIT_DIR/r_$T; rm -rf $W"
    ),
    "a log": (
        "mkdir -p logs; exec >logs/$J.txt 2>&1; echo $T; sleep 3; wc -l <logs/$J.txt >n_$T;"
        " cp logs/$J.txt r_$T"
    ),
    "a port": f"P=$((20000+J%20000))\n{SERVER}",
    "a file by sbcast": (
        "echo $T >s$T; sbcast -f s$T /tmp/d_$J; sleep 2;"
        " cat /tmp/d_$J >r_$T; rm /tmp/d_$J"
    ),
    "a shared segment": (
        "python3 -c 'from multiprocessing.shared_memory import SharedMemory as S\n"
        "import os, sys, time\n"
        "try: s = S(\"c_\" + sys.argv[1], create=True, size=1); s.buf[0] = int(sys.argv[2])\n"
        "except FileExistsError: s = S(\"c_\" + sys.argv[1])\n"
        "time.sleep(2); print(s.buf[0]); time.sleep(1); s.unlink()' $J $T >r_$T"
    ),
}  # fmt: skip


def by_sbatch(user: CsubUser, folder: Path) -> list[str]:
    words = ["sbatch", "--parsable", "--array=0-1", "x.sh"]
    return [user.run(words, directory=folder).stdout.strip()]


def as_array(user: CsubUser, folder: Path) -> list[str]:
    words = ["csub", "--parsable", "--array=0-1", "x.sh"]
    return [user.run(words, directory=folder).stdout.strip()]


def as_pack(user: CsubUser, folder: Path) -> list[str]:
    words = ["csub", "pack", "--parsable", "x.sh 0", "x.sh 1"]
    return [user.run(words, directory=folder).stdout.strip()]


def one_by_one(user: CsubUser, folder: Path) -> list[str]:
    ids = []
    for task in ("0", "1"):
        words = ["csub", "--parsable", "--join=auto", "--open=2", "x.sh", task]
        ids.append(user.run(words, directory=folder).stdout.strip())
    return ids


FORMS = (by_sbatch, as_array, as_pack, one_by_one)
SMOKES = ("a working directory", "a file by sbcast")


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=pytest.mark.smoke if row in SMOKES else ()) for row in ROWS]
)
def test_what_goes_by_the_id_is_each_members_own(user: CsubUser, row: str) -> None:
    folders = {form.__name__: make_folder(user, form.__name__, ROWS[row]) for form in FORMS}
    for form in FORMS:
        form(user, folders[form.__name__])
    wait_until(lambda: not list_jobs(user), "all have ended", patience_s=180.0)
    for name, folder in folders.items():
        found = [read(folder / f"r_{task}") for task in (0, 1)]
        assert found == ["0", "1"], (row, name, [path.name for path in folder.iterdir()])
        seeds = {read(folder / f"seed_{task}") for task in (0, 1)} - {""}
        assert len(seeds) in ((2,) if row == "a seed" else (0,)), (name, seeds)


def make_folder(user: CsubUser, name: str, body: str) -> Path:
    folder = user.home / name
    folder.mkdir()
    script = user.script(f"{name}/x.sh", body, directives=HEAD)
    for path in (folder, script):
        os.chown(path, user.uid, user.gid)
    return folder


def list_jobs(user: CsubUser) -> list[str]:
    return user.run(["squeue", "-h", "-o", "%i"]).stdout.split()


def read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


@pytest.mark.parametrize("form", [by_sbatch, as_array])
def test_the_last_task_collects_once(
    user: CsubUser, form: Callable[[CsubUser, Path], list[str]]
) -> None:
    folder = make_folder(
        user,
        "collect",
        "echo $T >part_$T; sleep $((3+T*4))\n"
        "[ $(squeue -h -r -j $SLURM_ARRAY_JOB_ID | wc -l) -le 1 ] && cat part_* >>total",
    )
    form(user, folder)
    wait_until(lambda: not list_jobs(user), "all have ended", patience_s=120.0)
    assert read(folder / "total").split() == ["0", "1"]


@pytest.mark.smoke
@pytest.mark.parametrize("form", [by_sbatch, as_array])
def test_a_job_that_waits_for_its_own_task_waits_for_no_other(
    user: CsubUser, form: Callable[[CsubUser, Path], list[str]]
) -> None:
    folder = make_folder(
        user,
        "waits",
        'sbatch -d afterok:$J --mem=50M -o /dev/null --wrap "touch post_$T" >said_$T 2>&1\n'
        "exit $((T * 3))",
    )
    form(user, folder)
    wait_until((folder / "post_0").exists, "that of task 0 has run", patience_s=120.0)
    for task in (0, 1):
        assert re.fullmatch(r"Submitted batch job \d+", read(folder / f"said_{task}"))

    def has_ended_or_never_will() -> bool:
        left = user.run(["squeue", "-h", "-o", "%r"]).stdout.split()
        return set(left) <= {"DependencyNeverSatisfied"}

    wait_until(has_ended_or_never_will, "that of task 1 never will", patience_s=60.0)
    assert not (folder / "post_1").exists()
    user.run(["scancel", "--me"])


COMMANDS = """\
srun sleep 300 & sleep 3
step=$(squeue -h -s -j $SLURM_JOB_ID -o %i | grep -v -e batch -e extern)
[ "${step%.*}" = $SLURM_JOB_ID ] && echo squeue
[ "$(sstat -n -P -j $SLURM_JOB_ID -o JobID)" = $step ] && echo sstat
[ "$(sstat -n -P -j $SLURM_JOB_ID.batch -o JobID)" = $SLURM_JOB_ID.batch ] && echo batch
scontrol show step $step | grep -q "^StepId=$step .*" && echo step
scontrol listpids $SLURM_JOB_ID | awk -v j=$SLURM_JOB_ID 'NR > 1 && $2 != j {exit 1}' && echo pids
scontrol wait_job $SLURM_JOB_ID 2>/dev/null && echo wait_job
scontrol show job $SLURM_JOB_ID | grep -q "^JobId=$SLURM_JOB_ID " && echo job
squeue --json | grep -q "\\"job_id\\": $SLURM_JOB_ID,\\?$" && echo json
squeue -h -j $SLURM_JOB_ID -O jobid | grep -q "^$SLURM_JOB_ID " && echo queue
timeout 20 sattach --layout $step | grep -q "^Job step layout" && echo sattach
echo x >from.$1; sbcast -f -j $SLURM_JOB_ID from.$1 /tmp/to.$SLURM_JOB_ID && echo sbcast
rm -f /tmp/to.$SLURM_JOB_ID
scancel $step; wait; echo ended
"""
MET = (
    "squeue", "sstat", "batch", "step", "pids", "wait_job", "job", "json", "queue", "sattach",
    "sbcast", "ended",
)  # fmt: skip
STEPS = """\
show='echo $SLURM_JOB_ID $SLURM_JOBID'
srun bash -c "$show"; srun --jobid=$SLURM_JOB_ID bash -c "$show"; srun -p gpu bash -c "$show"
printf '0 /usr/bin/env\\n' >mp.$1; srun --multi-prog mp.$1 | sed -n 's/^SLURM_JOB_\\?ID=//p' | xargs
srun srun bash -c "$show"
REAL bash -c "$show"
(REAL bash -c "$show"; :)
env -i PATH=$PATH SLURM_CONF=$SLURM_CONF srun --jobid=$SLURM_JOB_ID bash -c "$show"
script -qec "srun --pty bash -c '$show'" /dev/null </dev/null | tr -d '\\r'
srun -o 'out.%j.%12j.%%j.%A' true; ls out.$SLURM_JOB_ID.*
REAL sleep 300 & sleep 2; kill $!; wait $!; [ $? -gt 128 ] && echo ended
"""


@pytest.mark.parametrize("options", [(), ("--job-id=pack",)], ids=["own", "pack"])
def test_the_commands_know_the_members_steps(user: CsubUser, options: tuple[str, ...]) -> None:
    user.script("ask.sh", COMMANDS)
    words = ("pack", "--gres=gpu:1", "--mem=100M", "--time=5", *options)
    job_id = user.submit(*words, "ask.sh 1", "ask.sh 2")
    rows = user.finish(job_id)
    for number in rows:
        told = user.output(f"slurm-{job_id}_{number}.out")
        assert [line for line in told.splitlines() if line in MET] == list(MET), told


def test_tasks_of_steps_see_the_members_id(user: CsubUser) -> None:
    user.script("srun.sh", STEPS.replace("REAL", user.find("srun")))
    words = ("pack", "--gres=gpu:1", "--mem=100M", "--time=5", "srun.sh 1", "srun.sh 2")
    job_id = user.submit(*words)
    rows = user.finish(job_id)
    seen = set()
    for number in rows:
        # The terminal shows the end of its input.
        text = user.output(f"slurm-{job_id}_{number}.out").replace("^@", "").replace("\0", "")
        told = text.splitlines()
        pairs = [line for line in told if re.fullmatch(r"\d+ \d+", line)]
        assert len(pairs) == 9, "|".join(told)
        ids = {one for line in pairs for one in line.split()}
        assert len(ids) == 1, told
        (own,) = ids
        seen.add(own)
        assert f"out.{own}.{own.zfill(10)}.%j.{own}" in told, "|".join(told)
        assert told[-1] == "ended"
    assert len(seen) == 2


@pytest.mark.parametrize("launch", ["mpirun -n 2", "srun --mpi=pmi2 -n 2"])
def test_mpi_programs_of_two_members_do_not_meet(user: CsubUser, launch: str) -> None:
    if launch.startswith("mpirun") and shutil.which("mpirun") is None:
        pytest.skip("mpich is not installed")
    user.script("mpi.sh", f"{launch} sh -c 'echo $SLURM_JOB_ID $PMI_RANK $PMI_SIZE'")
    job_id = user.submit("pack", "--gres=gpu:1", "--mem=100M", "--time=5", "mpi.sh", "mpi.sh")
    user.finish(job_id)
    told = [user.output(f"slurm-{job_id}_{number}.out").split("\n") for number in (1, 2)]
    for lines in told:
        rows = sorted(line.split() for line in lines if line)
        assert [row[1:] for row in rows] == [["0", "2"], ["1", "2"]], told
        assert len({row[0] for row in rows}) == 1
    assert told[0] != told[1]


def test_scancel_by_numbers(user: CsubUser) -> None:
    user.script("id.sh", "echo $SLURM_JOB_ID >id.$1; while [ ! -e go ]; do sleep 0.1; done")
    # Slurm's own knows no such number, and says nothing.
    call = f"import os; os.execv('{user.find('scancel')}', ['scancel', os.environ['SLURM_JOB_ID']])"
    user.script(
        "end.sh",
        "until [ -s id.3 ]; do sleep 0.1; done; scancel $(cat id.3)\n"
        f'python3 -c "{call}"; echo $? >rc\n'
        "scancel $((SLURM_JOB_ID + 1000)); scancel $SLURM_JOB_ID; sleep 60",
    )
    words = ("pack", "--gres=gpu:1", "--mem=50M", "--time=5", "--degree=4")
    job_id = user.submit(*words, "id.sh 1", "end.sh", "id.sh 3", "id.sh 4")
    user.wait_for_states(job_id, {2: "CANCELLED", 3: "CANCELLED"})
    assert user.output("rc") == "0\n"
    user.run(["touch", "go"])
    rows = user.finish(job_id)
    assert [rows[number]["state"] for number in (1, 4)] == ["COMPLETED"] * 2


def test_a_later_link_of_a_chain_has_commands_that_know_its_first_id(user: CsubUser) -> None:
    user.script(
        "link.sh",
        "trap 'exit 0' TERM\n"
        "grep -o 'job_[0-9]*' /proc/self/cgroup | head -1 >>jobs\n"
        "if [ -e first ]; then\n"
        "  srun bash -c 'echo step $SLURM_JOB_ID'\n"
        "  squeue -h -j $SLURM_JOB_ID -o 'queue %i'\n"
        "  squeue -h -s -j $SLURM_JOB_ID -o 'step %i'\n"
        "  scontrol show job $SLURM_JOB_ID | sed -n 's/^JobId=\\([0-9]*\\).*/job \\1/p'\n"
        "  echo x >from; sbcast -f from /tmp/to.$SLURM_JOB_ID && echo cast\n"
        "  rm /tmp/to.$SLURM_JOB_ID\n"
        "  scancel $SLURM_JOB_ID; sleep 60 & wait; exit 0\n"
        "fi\n"
        "touch first; while :; do sleep 1 & wait $!; done",
    )
    job_id = user.submit("--chain=3", "--gres=gpu:1", "--mem=50M", "--time=1", "link.sh")
    user.finish(job_id, patience_s=300.0)
    told = user.output(f"slurm-{job_id}.out")
    for line in ("step ID", "queue ID", "step ID.batch", "job ID", "cast"):
        assert line.replace("ID", job_id) in told.splitlines(), told
