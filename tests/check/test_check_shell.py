"""What csub check finds in a shell script, and what does not fool it."""

from __future__ import annotations

import pytest

from slurm_colloc.check.check_script import check_script_text
from slurm_colloc.model.job import Job


def find(body: str, *arguments: str) -> list[tuple[str, int]]:
    """Kind and line of each finding; the first line of the body is line 2."""
    job = Job(1, "train", "train.sh", arguments, "/nonexistent")
    findings, _ = check_script_text(job, f"#!/bin/bash\n{body}\n".encode())
    return [(f.kind, line) for f in findings for line in (f.line, *f.also)]


PORT, JOB_ID, CLOCK = "fixed-port", "job-id-path", "timestamp-path"
DEVICES, TEMPORARY = "cuda-visible-devices", "fixed-temporary-file"
KILL, GPU, MPS, OWN = "kill-by-name", "gpu-settings", "mps-control", "own-job-command"

POSITIVES = {
    # Ports
    "export MASTER_PORT=29500": [(PORT, 2)],
    "MASTER_PORT=29500 python train": [(PORT, 2)],
    "export MASTER_PORT=$((12000 + 345))": [(PORT, 2)],
    "export MASTER_PORT=$((10000 + SLURM_JOB_ID % 50000))": [(PORT, 2)],
    "export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))": [(PORT, 2)],
    "torchrun --nproc-per-node=2 --master_port 29501 x": [(PORT, 2)],
    "torchrun --master-port=29501 x": [(PORT, 2)],
    "srun -n1 -p gpu torchrun \\\n    --master_port 29501 \\\n    x": [(PORT, 3)],
    "torchrun --rdzv_backend=c10d --rdzv_endpoint=localhost:29400 x": [(PORT, 2)],
    "torchrun --rdzv-endpoint=$HOSTNAME:29400 x": [(PORT, 2)],
    "accelerate launch --main_process_port 29555 x": [(PORT, 2)],
    "PORT=8888\njupyter lab --port $PORT": [(PORT, 2)],
    'jupyter lab --port "${PORT:-8888}"': [(PORT, 2)],
    "tensorboard --logdir runs --port=6006 &": [(PORT, 2)],
    "ray start --head": [(PORT, 2)],
    "python -m http.server 8000 &": [(PORT, 2)],
    "python x --init_method tcp://$MASTER_ADDR:3456": [(PORT, 2)],
    "python x --port=${PORT:=12355}": [(PORT, 2)],
    "{\n  python x --outdir out\n} |& tee log_$SLURM_JOB_ID.txt": [(JOB_ID, 4)],
    "case $1 in\n  a) CUDA_VISIBLE_DEVICES=0 ./run & ;;\nesac": [(DEVICES, 3)],
    "function finish { pkill -u $USER python || true; }": [(KILL, 2)],
    "declare -r OUT=/scratch/run_$(date +%H-%M-%S)\nmkdir $OUT": [(CLOCK, 2)],
    "until [ -e done ]; do\n  ./step > out/$SLURM_JOB_ID.log\ndone": [(JOB_ID, 3)],
    "args=(--lr 1)\nif true; then\n  python -m vllm --host 0.0.0.0 --port 8000\nfi": [(PORT, 4)],
    "serve() {\n  local p=9000\n  redis-server --port $p\n}\nserve": [(PORT, 3)],
    "bash -c 'torchrun --master_port 29501 x'": [(PORT, 2)],
    # Names with the job id
    "mkdir -p runs/$SLURM_JOB_ID": [(JOB_ID, 2)],
    'mkdir -p "runs/${SLURM_JOB_ID}"': [(JOB_ID, 2)],
    "out=runs/$SLURM_JOBID\nmkdir $out\ncd $out": [(JOB_ID, 2)],
    "python x --output_dir ckpt/$SLURM_JOB_ID": [(JOB_ID, 2)],
    "python x --run-name=exp_$SLURM_JOB_ID": [(JOB_ID, 2)],
    "python x > log.$SLURM_JOB_ID.txt": [(JOB_ID, 2)],
    "python x 2>&1 | tee train_$SLURM_JOB_ID.log": [(JOB_ID, 2)],
    "python x hydra.run.dir=outputs/$SLURM_JOB_ID": [(JOB_ID, 2)],
    "export WANDB_DIR=/scratch/$SLURM_JOB_ID": [(JOB_ID, 2)],
    "export TMPDIR=/tmp/$SLURM_JOB_ID": [(JOB_ID, 2)],
    "id=${SLURM_JOB_ID%%_*}\ntouch done.$id": [(JOB_ID, 2)],
    "exec > out-$SLURM_JOB_ID.log": [(JOB_ID, 2)],
    "mkdir a/$SLURM_JOB_ID\nmkdir a/$SLURM_JOB_ID": [(JOB_ID, 2), (JOB_ID, 3)],
    "trap 'rm -rf /scratch/$SLURM_JOB_ID' EXIT": [(JOB_ID, 2)],
    # Names with the time
    "mkdir runs/$(date +%Y%m%d-%H%M%S)": [(CLOCK, 2)],
    'stamp=`date +%s`\npython x --log-dir "logs/$stamp"': [(CLOCK, 2)],
    "python x > train_$(date +%F_%T).log": [(CLOCK, 2)],
    # The GPU
    "export CUDA_VISIBLE_DEVICES=0": [(DEVICES, 2)],
    "CUDA_VISIBLE_DEVICES=1 python x": [(DEVICES, 2)],
    "CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python x": [(DEVICES, 2)],
    "env CUDA_VISIBLE_DEVICES=0 python x": [(DEVICES, 2)],
    "sudo nvidia-smi -c EXCLUSIVE_PROCESS": [(GPU, 2)],
    "nvidia-smi -pm 1": [(GPU, 2)],
    "nvidia-smi --gpu-reset -i 0": [(GPU, 2)],
    "nvidia-smi mig -cgi 9": [(GPU, 2)],
    "nvidia-cuda-mps-control -d": [(MPS, 2)],
    "echo quit | nvidia-cuda-mps-control": [(MPS, 2)],
    # Processes
    "pkill python": [(KILL, 2)],
    "pkill -9 -f train.py": [(KILL, 2)],
    "killall -q python": [(KILL, 2)],
    "kill -9 $(pgrep -f train.py)": [(KILL, 2)],
    "ps aux | grep python | awk '{print $2}' | xargs kill -9": [(KILL, 2)],
    "kill -9 -1": [(KILL, 2)],
    "fuser -k /dev/nvidia0": [(KILL, 2)],
    "trap 'pkill python' EXIT": [(KILL, 2)],
    # Temporary files
    "python x > /tmp/train.log": [(TEMPORARY, 2)],
    "mkdir -p /tmp/cache": [(TEMPORARY, 2)],
    "mkdir -p /tmp/$USER/cache": [(TEMPORARY, 2)],
    "cp -r data /dev/shm/data": [(TEMPORARY, 2)],
    "python x --cache-dir /tmp/cache": [(TEMPORARY, 2)],
    "python x --socket=/tmp/s.sock": [(TEMPORARY, 2)],
    "T=/tmp\ntouch $T/lock": [(TEMPORARY, 2)],
    "rm -rf $TMPDIR/..": [("removes-neighbours", 2)],
    'rm -rf "$TMPDIR/../"*': [("removes-neighbours", 2)],
    "rm -rf /tmp/*": [("removes-neighbours", 2)],
    # Slurm
    "scontrol requeue $SLURM_JOB_ID": [(OWN, 2)],
    'scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"': [(OWN, 2)],
    "/usr/bin/scontrol requeue $SLURM_JOB_ID": [(OWN, 2)],
    "nohup /usr/bin/scontrol requeue $SLURM_JOB_ID": [("slurm-command-by-path", 2)],
    "PATH=/usr/bin:/bin\nscancel $SLURM_JOB_ID": [(OWN, 3)],
    "PATH=/usr/bin:/bin\ntimeout 9 scancel $SLURM_JOB_ID": [("slurm-command-lost", 3)],
    "PATH=$HOME/bin:$PATH\ntimeout 9 scancel $SLURM_JOB_ID": [(OWN, 3)],
    "scontrol requeue $SLURM_ARRAY_JOB_ID": [("own-job-other-id", 2)],
    "scontrol requeuehold $SLURM_JOB_ID": [("slurm-command-refused", 2)],
    "trap 'scontrol requeue $SLURM_JOB_ID' USR1": [(OWN, 2)],
    "scancel $SLURM_JOB_ID": [(OWN, 2)],
    "scancel -s USR1 ${SLURM_JOB_ID}": [(OWN, 2)],
    "/opt/slurm/bin/scancel $SLURM_JOBID": [("slurm-command-by-path", 2)],
    "/usr/bin/srun ./md": [("srun-by-path", 2)],
}


@pytest.mark.parametrize("body", POSITIVES)
def test_what_collides_is_found_with_its_line(body: str) -> None:
    assert find(body) == POSITIVES[body]


@pytest.mark.parametrize(
    ("first", "body", "kind"),
    [
        ("#!/bin/sh", "scancel $SLURM_JOB_ID", OWN),
        ("#!/bin/sh", "export PATH=/usr/bin; scancel $SLURM_JOB_ID", "slurm-command-lost"),
        ("#!/bin/sh", "PATH=/opt/x:$PATH; scancel $SLURM_JOB_ID", OWN),
        ("#!/bin/sh", "/usr/bin/scancel $SLURM_JOB_ID", "slurm-command-by-path"),
        ("#!/bin/sh -l", "scontrol requeue $SLURM_JOB_ID", "slurm-command-lost"),
        ("#!/bin/zsh --login", "scancel $SLURM_JOB_ID", "slurm-command-lost"),
        ("#!/bin/bash -l", "scancel $SLURM_JOB_ID", OWN),
        ("#!/bin/bash -l", "env scancel $SLURM_JOB_ID", OWN),
        ("#!/usr/bin/env bash", "export PATH=/usr/bin\nscancel $SLURM_JOB_ID", OWN),
    ],
)
def test_commands_that_csub_cannot_keep_in_reach_are_found(
    first: str, body: str, kind: str
) -> None:
    job = Job(1, "train", "train.sh", (), "/nonexistent")
    findings, _ = check_script_text(job, f"{first}\n{body}\n".encode())
    assert [finding.kind for finding in findings] == [kind]


NEGATIVES = [
    # Comments, quotes, here-documents
    "# export MASTER_PORT=29500",
    "echo hello # mkdir runs/$SLURM_JOB_ID",
    "echo 'export CUDA_VISIBLE_DEVICES=0'",
    'echo "pkill python"',
    "echo '$SLURM_JOB_ID' > name.txt",
    "cat <<EOF > notes.txt\nexport MASTER_PORT=29500\nmkdir /tmp/x\npkill python\nEOF",
    "cat > run.sh <<'EOF'\nCUDA_VISIBLE_DEVICES=0 python x\nEOF",
    "printf '%s\\n' 'nvidia-smi -pm 1'",
    "grep -c 'kill -9' log.txt",
    ": 'mkdir -p runs/$SLURM_JOB_ID'",
    # Ports that members have for themselves, or do not open
    "export MASTER_PORT=${MASTER_PORT:-29500}",
    "torchrun --master_port=$MASTER_PORT x",
    "torchrun --master_port=${MASTER_PORT:-29500} x",
    "export MASTER_PORT=$((20000 + RANDOM % 10000))",
    "export MASTER_PORT=$(shuf -i 20000-30000 -n 1)",
    "export MASTER_PORT=$((29500 + SLURM_ARRAY_TASK_ID))",
    "export MASTER_PORT=$(comm -23 <(seq 49152 65535) <(ss -Htan) | shuf | head -n 1)",
    "torchrun --standalone x",
    "python -m http.server 0",
    "python x --init_method tcp://$MASTER_ADDR:$MASTER_PORT",
    "MASTER_PORT=`shuf -n 1 -i 10000-65535`\nexport MASTER_PORT",
    "jupyter lab --port=$((6000 + RANDOM % 1000))",
    "kill $TB",
    "torchrun --rdzv-endpoint=localhost:0 x",
    "python x --port 0",
    "python x --port $1",
    "python client --host db.example.org --port 5432",
    "python x --export results --report 29500 --import 12",
    "port=29500",
    "echo --port 29500",
    # The job id where it names nothing
    'echo "job $SLURM_JOB_ID on $(hostname)"',
    "echo start runs/$SLURM_JOB_ID",
    "scontrol show job $SLURM_JOB_ID",
    "squeue -j $SLURM_JOB_ID",
    "sacct -j $SLURM_JOB_ID --format=JobID > usage.txt",
    "id=$SLURM_JOB_ID",
    '[ -n "$SLURM_JOB_ID" ] && echo in a job',
    "if [[ $SLURM_JOB_ID == 5 ]]; then echo; fi",
    "torchrun --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=localhost:0 x",
    "python x --seed $SLURM_JOB_ID",
    "srun --jobid=$SLURM_JOB_ID true",
    "cat < in/$SLURM_JOB_ID",
    # ... or something else tells members apart
    "mkdir runs/${SLURM_JOB_ID}_$SLURM_ARRAY_TASK_ID",
    "mkdir runs/$SLURM_COLLOC_MEMBER",
    "mkdir -p runs/${SLURM_COLLOC_MEMBER:-$SLURM_JOB_ID}",
    "mkdir runs/$SLURM_JOB_ID-$$",
    "mkdir runs/$1-$SLURM_JOB_ID",
    "name=$1\nmkdir runs/$name-$(date +%s)",
    "mkdir $TMPDIR/$SLURM_JOB_ID",
    # Time that names nothing, or only the day
    "start=$(date +%s)\npython x\necho $(( $(date +%s) - start )) seconds",
    "date +%T",
    "mkdir -p logs/$(date +%F)",
    "touch stamp-$(date +%s%N)",
    "mkdir $(date -d @0 +%s)",
    # CUDA_VISIBLE_DEVICES that is read, or keeps off the GPU
    "echo $CUDA_VISIBLE_DEVICES",
    "unset CUDA_VISIBLE_DEVICES",
    'export CUDA_VISIBLE_DEVICES=""',
    "CUDA_VISIBLE_DEVICES=-1 python prepare",
    "export CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES",
    "export CUDA_VISIBLE_DEVICES",
    "export MY_CUDA_VISIBLE_DEVICES=0",
    "nvidia-smi",
    "nvidia-smi -l 5 --query-gpu=utilization.gpu --format=csv > gpu.csv &",
    "nvidia-smi -q -i 0 -d MEMORY",
    # Processes of one's own
    "python x &\npid=$!\nkill $pid",
    "kill -TERM $$",
    "kill -9 $(jobs -p)",
    "pkill -P $$",
    "trap 'kill 0' EXIT",
    "pgrep -f train.py",
    "ps aux | grep python",
    "ls | xargs rm",
    # Temporary files of one's own
    "work=$(mktemp -d /tmp/run.XXXXXX)\ncd $work\ntouch $work/x",
    "mktemp /tmp/run.XXXXXX",
    "touch $TMPDIR/lock",
    "mkdir /tmp/run.$$",
    "export TMPDIR=/tmp",
    "ls /tmp/x; cat /tmp/x; df -h /tmp; source /tmp/env.sh",
    "python x --data-dir /tmp/imagenet",
    "cp /tmp/data.tar .",
    "rm -rf $TMPDIR",
    "rm -rf $TMPDIR/*",
    "trap 'rm -rf \"$TMPDIR/cache\"' EXIT",
    # Slurm's commands on other jobs, and srun as it should be
    "scancel 12345",
    "scontrol requeue 12345",
    "scontrol show hostnames $SLURM_JOB_NODELIST",
    "srun --exclusive -n1 ./md",
    "sbatch next.sh $SLURM_JOB_ID",
    # A variable whose last value holds
    "PORT=29500\nPORT=$MASTER_PORT\npython x --port $PORT",
    "read -r PORT < port.txt\npython x --port $PORT",
]


@pytest.mark.parametrize("body", NEGATIVES)
def test_what_does_not_collide_is_not_said_to(body: str) -> None:
    assert find(body) == []


def test_the_scripts_own_arguments_are_looked_at() -> None:
    assert find('python x "$@"', "--port", "29500") == [(PORT, 2)]
    assert find("python x --port $1", "29500") == [(PORT, 2)]
    assert find('python x "$@"', "--lr", "0.1") == []
    assert find("f() { python x --port $1; }\nf $MASTER_PORT", "29500") == []


def test_what_is_no_shell_is_told_and_the_rest_is_checked() -> None:
    found = find("for key value in ${(kv)table}; do print $key; done\nexport MASTER_PORT=29500")
    assert ("not-understood", 2) in found
    assert (PORT, 3) in found


@pytest.mark.parametrize("first", ["#!/bin/sh", "#!/usr/bin/env bash", "#!/bin/zsh -f"])
def test_every_shell_is_read(first: str) -> None:
    job = Job(1, "train", "train.sh", (), "/nonexistent")
    findings, _ = check_script_text(job, f"{first}\nexport MASTER_PORT=29500\n".encode())
    assert [finding.kind for finding in findings] == [PORT]


def test_a_script_of_another_language_is_said_not_to_be_read() -> None:
    job = Job(1, "train", "train.pl", (), "/nonexistent")
    findings, _ = check_script_text(job, b'#!/usr/bin/perl\nmkdir "runs/$SLURM_JOB_ID";\n')
    assert [finding.kind for finding in findings] == ["not-read"]
