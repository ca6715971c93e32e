"""What csub check finds in the Python programs that a script starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.check.check_script import check_script_text
from slurm_colloc.check.python_collisions import find_python_collisions
from slurm_colloc.model.job import ArrayTask, Job


def find(text: str, *arguments: str) -> list[tuple[str, int]]:
    return [(f.kind, f.line) for f in find_python_collisions(text, "t.py", arguments=arguments)]


PORT, JOB_ID, CLOCK = "fixed-port", "job-id-path", "timestamp-path"
DEVICES, TEMPORARY = "cuda-visible-devices", "fixed-temporary-file"
FOLDER, KILL, OWN = "default-directory", "kill-by-name", "own-job-command"
FRACTION, OUTPUT = "gpu-memory-fraction", "shared-output"

POSITIVES = {
    'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"': [(DEVICES, 2)],
    'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = str(args.gpu)': [(DEVICES, 2)],
    'import os\nos.environ["MASTER_PORT"] = "29500"': [(PORT, 2)],
    'import os\np = 29500\nos.environ["MASTER_PORT"] = str(p)': [(PORT, 3)],
    'import os\nos.environ["MASTER_PORT"] = str(9000 + int(os.environ["SLURM_JOB_ID"]) % 999)': [
        (PORT, 2)
    ],
    's.bind(("", 8000))': [(PORT, 1)],
    'PORT = 8000\nserver = HTTPServer(("0.0.0.0", PORT), Handler)': [(PORT, 2)],
    'dist.init_process_group("nccl", init_method="tcp://127.0.0.1:23456")': [(PORT, 1)],
    'app.run(host="0.0.0.0", port=5000)': [(PORT, 1)],
    'parser.add_argument("--port", type=int, default=29500)': [(PORT, 1)],
    'parser.add_argument("--init_method", default="tcp://127.0.0.1:3456")': [(PORT, 1)],
    'os.environ.update({"MASTER_PORT": "29500"})': [(PORT, 1)],
    'os.environ.update(CUDA_VISIBLE_DEVICES="0", X="1")': [(DEVICES, 1)],
    'os.putenv("CUDA_VISIBLE_DEVICES", "1")': [(DEVICES, 1)],
    'parser.add_argument("--master_port", default="29500")': [(PORT, 1)],
    "import os\nos.makedirs(f\"runs/{os.environ['SLURM_JOB_ID']}\")": [(JOB_ID, 2)],
    'import os\nj = os.getenv("SLURM_JOB_ID", "0")\nout = os.path.join("runs", j)\nos.mkdir(out)': [
        (JOB_ID, 2)
    ],
    "import os\nfrom pathlib import Path\n"
    'out = Path("runs") / os.environ["SLURM_JOBID"]\n'
    'out.mkdir()\ntorch.save(x, out / "a.pt")': [(JOB_ID, 3)],
    'import os\nopen("log.%s.txt" % os.environ.get("SLURM_JOB_ID"), "w")': [(JOB_ID, 2)],
    'import os\nopen("log.{}.txt".format(os.environ.get("SLURM_JOB_ID")), "w")': [(JOB_ID, 2)],
    'import os\nlogger = CSVLogger("logs", version=os.environ["SLURM_JOB_ID"])': [(JOB_ID, 2)],
    'from datetime import datetime\nos.makedirs(f"runs/{datetime.now():%Y%m%d-%H%M%S}")': [
        (CLOCK, 2)
    ],
    'stamp = time.strftime("%Y%m%d-%H%M%S")\nw = SummaryWriter("runs/" + stamp)': [(CLOCK, 1)],
    'stamp = datetime.datetime.now().strftime("%H-%M-%S")\n'
    'open(f"{args.output_dir}/{stamp}.log", "w")': [(CLOCK, 1)],
    'w = SummaryWriter(f"runs/{int(time.time())}")': [(CLOCK, 1)],
    'open("/tmp/lock", "w")': [(TEMPORARY, 1)],
    'torch.save(model, "/dev/shm/model.pt")': [(TEMPORARY, 1)],
    'Path("/tmp/cache").mkdir(exist_ok=True)': [(TEMPORARY, 1)],
    'p = "/tmp/cache"\nos.makedirs(p, exist_ok=True)': [(TEMPORARY, 1)],
    'sqlite3.connect("/tmp/runs.db")': [(TEMPORARY, 1)],
    'os.system("pkill -f train.py")': [(KILL, 1)],
    'subprocess.run(["pkill", "python"])': [(KILL, 1)],
    'subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])': [(OWN, 1)],
    "import torch\ntorch.cuda.set_per_process_memory_fraction(0.9)": [(FRACTION, 2)],
    "from torch.cuda import memory\nmemory.set_per_process_memory_fraction(args.share, 0)": [
        (FRACTION, 2)
    ],
    'os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".9"': [(FRACTION, 1)],
    'llm = LLM("m", gpu_memory_utilization=0.95)': [(FRACTION, 1)],
    'with open("results.json", "w") as f: json.dump(x, f)': [(OUTPUT, 1)],
    'open("results.json", mode="xb")': [(OUTPUT, 1)],
    'PATH = "ckpt/model.pt"\ntorch.save(model.state_dict(), PATH)': [(OUTPUT, 1)],
    'torch.save(obj=x, f="model.pt")': [(OUTPUT, 1)],
    'np.save("out.npy", x)': [(OUTPUT, 1)],
    'table.to_csv(path_or_buf="metrics.csv")': [(OUTPUT, 1)],
    'Path("runs", "best.txt").write_text("x")': [(OUTPUT, 1)],
    'model.save_pretrained("final")': [(OUTPUT, 1)],
    "import lightning as L\nL.Trainer(max_epochs=3)": [(FOLDER, 2)],
    "from pytorch_lightning import Trainer\nTrainer(logger=True)": [(FOLDER, 2)],
    'import lightning.pytorch as pl\npl.Trainer(default_root_dir="out")': [(FOLDER, 2)],
    'from lightning.pytorch.loggers import TensorBoardLogger\nTensorBoardLogger("logs")': [
        (FOLDER, 2)
    ],
    'import hydra\n@hydra.main(config_path="conf", config_name="config")\ndef main(cfg): ...': [
        (FOLDER, 2)
    ],
}


@pytest.mark.parametrize("text", POSITIVES)
def test_what_collides_is_found_with_its_line(text: str) -> None:
    found = list(dict.fromkeys(find(text)))
    assert found == POSITIVES[text]


NEGATIVES = [
    '"""os.environ["CUDA_VISIBLE_DEVICES"] = "0" """',
    '# os.environ["MASTER_PORT"] = "29500"',
    'print("set CUDA_VISIBLE_DEVICES=0 first")',
    'os.environ["CUDA_VISIBLE_DEVICES"] = ""',
    'os.environ["CUDA_VISIBLE_DEVICES"] = "-1"',
    'print(os.environ["CUDA_VISIBLE_DEVICES"])',
    'x = os.environ.get("CUDA_VISIBLE_DEVICES", "0")',
    'os.environ.setdefault("MASTER_PORT", "29500")',
    'port = os.environ.get("MASTER_PORT", "29500")\nd.init_process_group(init_method=f"tcp://h:{port}")',
    'os.environ["MASTER_PORT"] = os.environ.get("MASTER_PORT", "29500")',
    's.bind(("", 0))',
    's.bind(("", find_free_port()))',
    's.connect(("localhost", 8000))',
    'db = psycopg2.connect(host="db", port=5432)',
    "client = Client(port=8786)",
    'start(host="db.example.org", port=5432)',
    'parser.add_argument("--port", type=int, default=0)',
    'parser.add_argument("--report", default=29500)',
    'parser.add_argument("--port", type=int, required=True)',
    'print(os.environ["SLURM_JOB_ID"])',
    'log.info("job/%s", os.environ["SLURM_JOB_ID"])',
    "print(f\"runs/{os.environ['SLURM_JOB_ID']}\")",
    "os.makedirs(f\"runs/{os.environ['SLURM_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}\")",
    "os.makedirs(f\"runs/{os.environ['SLURM_JOB_ID']}-{os.getpid()}\")",
    'wandb.config.update({"job": os.environ["SLURM_JOB_ID"]})',
    "start = time.time()\ntrain()\nprint(time.time() - start)",
    'start = time.time()\nos.makedirs("runs")\nlog.info("%.1f s", time.time() - start)',
    'print(datetime.now().strftime("%H:%M:%S"))',
    'os.makedirs(f"runs/{datetime.now():%Y-%m-%d}", exist_ok=True)',
    "os.makedirs(f\"runs/{args.lr}_{time.strftime('%H%M%S')}\")",
    "os.makedirs(f\"runs/{uuid.uuid4()}-{time.strftime('%H%M%S')}\")",
    'w = SummaryWriter("runs/exp1")',
    "wandb.init(name=f\"run-{time.strftime('%H%M%S')}\")",
    'parser.add_argument("--url", default="tcp://broker")',
    'os.environ.update({"MASTER_ADDR": "127.0.0.1"})',
    'open("/tmp/data.txt")',
    'open("/tmp/data.txt", "rb")',
    'data = torch.load("/tmp/model.pt")',
    'with tempfile.TemporaryDirectory() as d: torch.save(x, d + "/a.pt")',
    'subprocess.run(["ls", "-l"])',
    'os.system("nvidia-smi")',
    "from transformers import Trainer\nTrainer(model=model)",
    "import lightning as L\nL.Trainer(logger=False)",
    "import lightning as L\nL.Trainer(logger=WandbLogger())",
    "import lightning as L\nL.Trainer(default_root_dir=args.out)",
    "import lightning as L\nL.Trainer(**options)",
    'from lightning.pytorch.loggers import CSVLogger\nCSVLogger("logs", name=args.name)',
    "import hydra\nhydra.utils.instantiate(cfg)",
    "import click\n@click.command()\ndef main(): ...",
    'open("results.txt", "a")',
    'open("config.json")',
    'open(args.out, "w")',
    "open(f\"{os.environ['SLURM_COLLOC_NAME']}.json\", 'w')",
    'torch.save(model, os.path.join(args.out, "model.pt"))',
    'torch.save(model, "{}.pt".format(args.name))',
    "torch.save(model, buffer)",
    'os.chdir(args.out)\ntorch.save(model, "model.pt")',
    'import hydra\ntorch.save(model, "model.pt")',
    'open("/dev/null", "w")',
    'open("/dev/shm/" + name, "w")',
    "torch.cuda.memory_reserved(0.9)",
]


@pytest.mark.parametrize("text", NEGATIVES)
def test_what_does_not_collide_is_not_said_to(text: str) -> None:
    assert find(text) == []


def test_what_the_command_line_says_wins_over_defaults() -> None:
    port = 'parser.add_argument("--port", "-p", type=int, default=29500)'
    assert find(port, "--port=0") == []
    assert find(port, "-p", "0") == []
    sweep = "import hydra\n@hydra.main()\ndef main(cfg): ..."
    assert find(sweep, "hydra.run.dir=out/x") == []
    assert find(sweep, "--multirun", "hydra.sweep.dir=out/x") == []
    assert find(sweep, "--multirun", "hydra.run.dir=out/x") == [(FOLDER, 2)]


STARTS = (
    "python train.py --lr 1",
    "python3.11 -u ./train.py",
    "srun -n1 --cpu-bind=none python train.py",
    "srun -p gpu -n 1 python train.py",
    "exec python train.py > out.log 2>&1 &",
    "torchrun --standalone --nproc-per-node=1 train.py",
    "python -m torch.distributed.run --nproc-per-node 1 train.py",
    "accelerate launch --num_processes 1 train.py",
    "OMP_NUM_THREADS=1 nohup timeout 60 python train.py",
    "env -u X A=1 python train.py",
    "apptainer exec --nv -B /data image.sif python train.py",
    "python -m train",
    "./train.py",
    "SCRIPT=train.py\npython $SCRIPT",
    "if true; then\n  python train.py | tee log.txt\nfi",
)


@pytest.mark.parametrize("start", STARTS)
def test_a_program_that_the_script_starts_is_read(start: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\n')
    job = Job(1, "train", "train.sh", (), str(tmp_path))
    findings, read = check_script_text(job, f"#!/bin/bash\n{start}\n".encode())
    assert [(f.kind, f.line) for f in findings] == [(DEVICES, 2)]
    assert findings[0].file.endswith("train.py")
    assert len(read) == 2


@pytest.mark.parametrize(
    "line", ["cp train.py copy.py", "echo python train.py", "# python train.py", "vim train.py"]
)
def test_a_program_that_is_only_named_is_not_read(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\n')
    job = Job(1, "train", "train.sh", (), str(tmp_path))
    assert check_script_text(job, f"#!/bin/bash\n{line}\n".encode()) == ([], ["train.sh"])


def test_python_inside_the_script_is_read_with_the_scripts_lines() -> None:
    body = (
        "#!/bin/bash\necho\npython - <<'EOF'\nimport os\n"
        'os.environ["CUDA_VISIBLE_DEVICES"] = "1"\nEOF\n'
        'python -c \'import os\nos.environ["MASTER_PORT"] = "29500"\'\n'
    )
    findings, _ = check_script_text(Job(1, "t", "t.sh", (), "/"), body.encode())
    assert [(f.kind, f.place) for f in findings] == [(DEVICES, "t.sh:5"), (PORT, "t.sh:8")]


def test_a_batch_script_in_python_is_read() -> None:
    body = b'#!/usr/bin/env python3\n#SBATCH --time=5\nimport os\nos.mkdir("/tmp/x")\n'
    findings, _ = check_script_text(Job(1, "t", "t.py", (), "/"), body)
    assert [(f.kind, f.place) for f in findings] == [(TEMPORARY, "t.py:4")]


def test_a_program_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'python 2'\n")
    job = Job(1, "train", "train.sh", (), str(tmp_path))
    findings, _ = check_script_text(job, b"#!/bin/bash\npython old.py\npython gone.py\n")
    assert [(f.kind, f.level.value, f.file) for f in findings] == [
        ("not-read", "note", "old.py"),
        ("not-read", "note", "gone.py"),
    ]


SAVES = 'torch.save(model, "model.pt")\n'
ARRAY = ArrayTask(task_id=3, count=4, minimum=1, maximum=4, step=1)


@pytest.mark.parametrize(
    ("task", "lines", "expected"),
    [
        (ARRAY, "python train.py > train.log", [("train.log", "problem"), ("model.pt", "problem")]),
        (ARRAY, "python train.py >> train.log", [("model.pt", "problem")]),
        (ARRAY, "python train.py > $SLURM_COLLOC_NAME.log 2> /dev/null", [("model.pt", "problem")]),
        (ARRAY, 'cd "runs/$SLURM_ARRAY_TASK_ID"\npython train.py > train.log', []),
        (ARRAY, "cd runs\npython train.py", [("model.pt", "problem")]),
        (None, "python train.py > train.log", [("model.pt", "note")]),
        (None, 'pushd "$1"\npython train.py', []),
    ],
)
def test_a_file_that_all_tasks_of_an_array_write_is_found(
    tmp_path: Path, task: ArrayTask | None, lines: str, expected: list[tuple[str, str]]
) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    job = Job(1, "train", "train.sh", (), str(tmp_path), array_task=task)
    findings, _ = check_script_text(job, f"#!/bin/bash\n{lines}\n".encode())
    assert {(f.kind, f.what.removeprefix("> "), f.level.value) for f in findings} == {
        (OUTPUT, what, level) for what, level in expected
    }


@pytest.mark.parametrize(
    ("value", "share", "level"),
    [("0.9", "90 %", "problem"), ("1.0", "100 %", "problem"), (".25", "25 %", "note"),
     ("share", "a fraction", "problem")],
)  # fmt: skip
def test_a_fraction_of_the_gpu_is_told_by_how_much_it_takes(
    value: str, share: str, level: str
) -> None:
    text = f"torch.cuda.set_per_process_memory_fraction({value})"
    (finding,) = find_python_collisions(text, "t.py")
    assert finding.why == (
        f"in a pack it takes {share} of the whole GPU's memory, whatever the neighbours need"
    )
    assert "--gpu-mem" in finding.advice
    assert finding.level.value == level


def test_jax_memory_fraction_in_a_shell_script_is_found() -> None:
    body = b"#!/bin/bash\nexport XLA_PYTHON_CLIENT_MEM_FRACTION=.80\npython -V\n"
    findings, _ = check_script_text(Job(1, "t", "t.sh", (), "/"), body)
    assert [(f.kind, f.line) for f in findings] == [(FRACTION, 2)]
