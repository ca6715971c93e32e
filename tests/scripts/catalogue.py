"""The scripts as people write them, what each needs, and what may differ in it under csub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .comparison import Allowance

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"

STAMP = Allowance(
    r"\d{4}-\d\d-\d\d(?:[ /T_]\d\d[-:]\d\d[-:]\d\d(?:[.,]\d+)?)?", "the time of the run"
)


@dataclass(frozen=True)
class Case:
    """One script.

    Attributes:
        name: Its file.
        companions: Files of `programs` that lie next to it; `md` is compiled.
        modules: Python modules without which it cannot run.
        commands: Programs without which it cannot run.
        uses_mpi: It runs an MPI program, whose mpirun comes first in its PATH.
        options: Options for sbatch and csub alike.
        arguments: Its arguments.
        environment: Added to the environment at submission.
        outputs: The output files that it asks for; a member's have its number before the suffix.
        directories: Folders that have to be there.
        allowances: What may differ, on top of `EVERYWHERE`.
        unread: Files that are compared by name only (regular expression), and why.
        exit_code: How it ends, so that a script that does nothing is noticed.
        signal: The signal that ends it.
        collides: What csub check says of it, as (kind, file:line).
        says: A line of its output, for the same reason.
    """

    name: str
    says: str
    companions: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    uses_mpi: bool = False
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("slurm-JOB.out",)
    directories: tuple[str, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    exit_code: int = 0
    signal: int = 0
    collides: tuple[tuple[str, str], ...] = ()

    @property
    def is_array(self) -> bool:
        """It is an array itself; then its four tasks share one working directory."""
        return "#SBATCH --array" in (HERE / self.name).read_text()


_TORCH = ("--mem=1500M",)

CASES = (
    Case(
        "inner_srun.sh",
        "rank 0 of 1, name inner",
        allowances=(
            Allowance(
                r"srun: (?:Job JOB step creation (?:temporarily|still) disabled, retrying .*"
                r"|Step created for .*)\n",
                "under sbatch a step waits for the end of the one before; a member's need not",
                files=r"slurm-.*\.out",
                optional=True,
            ),
        ),
    ),
    Case(
        "conda.sh",
        "environment: train, level 1",
        companions=("miniconda3",),
    ),
    Case("venv.sh", "inside: True"),
    Case(
        "modules.sh",
        "simulating with 2.1",
        companions=("modulefiles",),
        commands=("/etc/profile.d/modules.sh",),
    ),
    Case(
        "hydra.sh",
        "wrote the result for 0.2",
        companions=("hydra_app.py",),
        modules=("hydra",),
        allowances=(STAMP,),
        collides=(
            ("default-directory", "hydra_app.py:12"),
            ("default-directory", "hydra_app.py:12"),
        ),
    ),
    Case(
        "lightning.sh",
        "step 8, rank 0 of 1",
        companions=("lightning_train.py",),
        collides=(("default-directory", "lightning_train.py:43"),),
        modules=("lightning",),
        options=_TORCH,
    ),
    Case(
        "accelerate.sh",
        "1 process on cpu",
        companions=("accelerate_train.py",),
        modules=("accelerate",),
        options=_TORCH,
    ),
    Case(
        "torchrun.sh",
        "the sum over 2 ranks is 3",
        companions=("ddp_train.py",),
        collides=(("shared-output", "ddp_train.py:12"),),
        modules=("torch",),
        options=_TORCH,
    ),
    Case(
        "master_port.sh",
        "the sum over 1 ranks is 1",
        companions=("ddp_train.py",),
        collides=(("shared-output", "ddp_train.py:12"),),
        modules=("torch",),
        options=_TORCH,
    ),
    Case(
        "hf_trainer.sh",
        "2 steps, loss",
        companions=("hf_train.py",),
        modules=("transformers", "accelerate"),
        options=_TORCH,
        allowances=(
            Allowance(
                r"('?train_(?:runtime|samples_per_second|steps_per_second)'?: '?)[\d.]+",
                "how long the training took",
            ),
        ),
    ),
    Case(
        "wandb_offline.sh",
        "logged 3 steps for lr 0.1",
        companions=("wandb_train.py",),
        modules=("wandb",),
        options=_TORCH,
        allowances=(
            Allowance(r"\d{8}_\d{6}-[0-9a-z]{8}", "the time of the run and its random id"),
            Allowance(r"(run-)[0-9a-z]{8}(\.wandb)", "the random id of the run"),
        ),
        unread=((r".*\.wandb|.*\.log", "times, pids and the random id stand in them"),),
    ),
    Case(
        "tensorboard.sh",
        "sum 264 from 2 workers, os.getpid() in seen=False",
        companions=("loader_train.py",),
        modules=("tensorboard", "torch"),
        options=_TORCH,
        allowances=(
            Allowance(r"(tfevents\.)\d+(\.[\w-]+\.)\d+(\.0)", "the time of the run and its pid"),
        ),
        unread=((r"runs/events\..*", "times stand in them"),),
    ),
    Case("mpi_srun.sh", "md ended with 0", companions=("md",), commands=("cc",), uses_mpi=True),
    Case("mpi_mpirun.sh", "md ended with 0", companions=("md",), commands=("cc",), uses_mpi=True),
    Case(
        "heredoc.sh",
        "python got 0.1 and 3 lines",
        # Two here-documents on one line.
        collides=(("not-understood", "heredoc.sh:26"),),
    ),
    Case("strict.sh", "found 0", exit_code=1),
    Case("traps.sh", "cleaning up after 40", exit_code=41),
    Case("background.sh", "ended with 3", exit_code=3),
    Case("subshells.sh", "coprocess: 42"),
    Case("exit_code.sh", "before", exit_code=37),
    Case("killed.sh", "about to die", signal=9),
    Case(
        "segfault.sh",
        "the shell says 139",
        exit_code=134,
        allowances=(
            Allowance(r"/\S+/(?:slurm_script|script)(: line \d+: ) *\d+", "$0, and a pid"),
        ),
    ),
    Case(
        "array.sh",
        "task 2 of 4 (0-3)",
        companions=("parameters.txt",),
        directories=("logs",),
        exit_code=3,
    ),
    Case("submit_dir.sh", "back where it was submitted", companions=("parameters.txt",)),
    Case("stdin.sh", "end of standard input"),
    Case("input_file.sh", "first: alpha 1", companions=("parameters.txt",)),
    Case("tmpdir.sh", "4 lines sorted", companions=("parameters.txt",)),
    Case(
        "environment.sh",
        "hello from a child",
        environment={
            "WITH_SPACES": "  several  words ",
            "WITH_LINES": "one\ntwo\n\nfour\n",
            "WITH_UNICODE": "Grüße, 世界 \u2603",
            "WITH_QUOTES": 'it\'s "quoted" $(not run) `nor this` \\ %s',
            "EMPTY": "",
            "BASH_FUNC_greet%%": '() {  echo "hello $1"\n}',
        },
    ),
    Case("locale.sh", "Grüße, 世界", environment={"LC_ALL": "C.UTF-8"}),
    Case("limits.sh", "640", options=("--mem=300M",)),
    Case(
        "arguments.sh",
        "4 arguments",
        arguments=("-l", "a 'quoted' word", "-v", 'rest $HOME * "x"'),
    ),
    Case("exec_python.sh", "args ['one', 'two words']", exit_code=5),
    Case(
        "shebang.py",
        "from a child",
        arguments=("--lr", "0.1"),
        exit_code=1,
        collides=(("shared-output", "shebang.py:19"),),
    ),
    Case("zsh.sh", "zsh: a 3", commands=("zsh",), collides=(("not-understood", "zsh.sh:10"),)),
    Case("dash.sh", "no bash"),
    Case(
        "long_output.sh",
        "100000",
        outputs=("a name with spaces.log", "a name with spaces.err"),
    ),
    Case("mixed_output.sh", "step out", directories=("out",), outputs=("out/mixed-JOB.txt",)),
    Case(
        "checkpoint.sh",
        "start at epoch 2, restart 1",
        collides=(("own-job-command", "checkpoint.sh:14"),),
        allowances=(
            Allowance(
                r"(slurmstepd-)\S+(: error: \*\*\* JOB )\S+( ON )\S+( CANCELLED AT )\S+"
                r"( DUE TO JOB REQUEUE \*\*\*)",
                "the time of the run, and which job and node it was",
                files=r"slurm-.*\.out",
            ),
        ),
    ),
    Case(
        "job_directory.sh",
        "1",
        collides=(
            ("job-id-path", "job_directory.sh:7"),
            ("timestamp-path", "job_directory.sh:9"),
        ),
        allowances=(Allowance(r"(train_)\d{8}_\d{6}(\.log)", "the time of the run"),),
    ),
)
